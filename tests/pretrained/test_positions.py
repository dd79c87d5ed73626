import numpy as np
import pytest

from jaxcl.pretrained.positions import cubic_weights, resize_positions


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize(("old", "new"), [(7, 14), (14, 7), (5, 8), (37, 16), (1, 3), (6, 6)])
def test_rows_sum_to_one_and_a_constant_stays(old, new, antialias):
    weights = cubic_weights(old, new, antialias=antialias)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(weights, weights[::-1, ::-1], atol=1e-12)  # left and right are alike
    if old == new:
        np.testing.assert_allclose(weights, np.eye(old), atol=1e-12)


def test_a_ramp_is_continued_inside():
    ramp = cubic_weights(8, 16, antialias=True) @ np.arange(8.0)
    np.testing.assert_allclose(ramp[4:12], (np.arange(4, 12) + 0.5) / 2 - 0.5, atol=0.02)


def test_the_class_token_stays_and_rows_are_not_columns():
    position = np.zeros((1, 10, 2), np.float32)
    position[0, 0] = 7
    position[0, 1:4, 0] = 1  # the first row of patches
    for antialias in (False, True):
        resized = resize_positions(position, 37, antialias=antialias)
        assert resized.shape == (1, 37, 2)
        assert resized.dtype == np.float32
        np.testing.assert_array_equal(resized[0, 0], [7, 7])
        grid = resized[0, 1:, 0].reshape(6, 6)
        np.testing.assert_allclose(grid, np.broadcast_to(grid[:, :1], (6, 6)), atol=1e-6)
        assert grid[0, 0] > 0.9 > 0.1 > grid[-1, 0]


@pytest.mark.parametrize(("have", "want"), [(10, 10), (11, 37), (10, 36)])
def test_what_is_no_square_is_left_for_the_comparison_of_shapes(have, want):
    position = np.ones((1, have, 2), np.float32)
    assert resize_positions(position, want, antialias=False) is position
