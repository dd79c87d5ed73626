"""Feature extraction: every image once, on any number of devices, in one compilation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from jaxcl.probes.features import extract, unit_rows

NDEV = 8


def some_images(count):
    return np.random.default_rng(count).integers(0, 256, (count, 4, 3, 2), dtype=np.uint8)


@jax.jit
def encode(weight, images):
    return jnp.tanh(images.reshape(len(images), -1) @ weight / 255)


WEIGHT = np.random.default_rng(0).normal(size=(24, 5)).astype(np.float32)
APPLY = functools.partial(encode, WEIGHT)


def mesh_of(devices):
    return jax.make_mesh(
        (devices, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:devices]
    )


@pytest.mark.parametrize("count", [1, NDEV - 1, NDEV, NDEV + 1, 2 * NDEV + 3])
@pytest.mark.parametrize("devices", [None, 1, NDEV])
def test_every_image_gives_one_row_in_its_place_on_any_device_count(count, devices):
    images = some_images(count)
    mesh = devices and mesh_of(devices)
    features = extract(APPLY, images, batch=7, mesh=mesh)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, encode(WEIGHT, images), rtol=1e-5, atol=1e-6)


def test_pieces_of_any_length_give_the_same_as_one_array():
    images = some_images(23)
    pieces = (images[start:stop] for start, stop in [(0, 4), (4, 4), (4, 12), (12, 23)])
    np.testing.assert_array_equal(extract(APPLY, pieces, batch=5), extract(APPLY, images, batch=5))


def test_the_batch_is_rounded_up_to_the_devices_and_the_rows_are_spread_over_them():
    seen = []

    def apply(images):
        seen.append((images.shape[0], len(images.sharding.device_set)))
        return jnp.zeros((len(images), 1))

    extract(apply, some_images(17), batch=NDEV + 1, mesh=mesh_of(NDEV))
    assert seen == [(2 * NDEV, NDEV)] * 2


def test_two_sets_of_variables_compile_once_and_stay_as_they_were():
    traces = []

    @jax.jit
    def counted(variables, images):
        traces.append(1)
        return images.reshape(len(images), -1) @ variables["weight"]

    first, second = {"weight": jnp.asarray(WEIGHT)}, {"weight": jnp.asarray(2 * WEIGHT)}
    low = extract(functools.partial(counted, first), some_images(9), batch=4)
    high = extract(functools.partial(counted, second), some_images(9), batch=4)
    np.testing.assert_allclose(high, 2 * low, rtol=1e-5)
    assert len(traces) == 1
    np.testing.assert_array_equal(first["weight"], WEIGHT)


def test_half_precision_features_come_back_as_float32():
    features = extract(lambda images: jnp.ones((len(images), 3), jnp.bfloat16), some_images(2), batch=2)
    assert features.dtype == np.float32


@pytest.mark.parametrize("empty", [some_images(0), []])
def test_no_image_at_all_is_an_error(empty):
    with pytest.raises(ValueError, match="images is empty"):
        extract(APPLY, empty, batch=4)


def test_a_batch_below_one_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="batch is 0"):
        extract(APPLY, some_images(2), batch=0)


def test_rows_have_norm_one_at_any_scale_and_a_zero_row_stays_zero():
    rows = jnp.array([[3e20, 4e20], [3e-20, 4e-20], [0.0, 0.0]])
    np.testing.assert_allclose(unit_rows(rows), [[0.6, 0.8], [0.6, 0.8], [0.0, 0.0]], rtol=1e-6)
