import math

import numpy as np
import pytest
from PIL import Image

from jaxcl.config import AugmentConfig
from jaxcl.data.crops import centre_view, random_box, random_views, resize, uniforms, view_draws

IDS = np.arange(1000, dtype=np.int32)


def test_the_numbers_are_uniform_and_uncorrelated():
    draws = uniforms(3, 5, IDS, 10)
    assert draws.shape == (1000, 2, 10)
    assert 0 <= draws.min() < draws.max() < 1
    counts = np.histogram(draws, 20, (0, 1))[0]
    assert np.abs(counts - 1000).max() < 5 * math.sqrt(1000)
    flat = draws.reshape(1000, 20)
    correlation = np.corrcoef(flat.T) - np.eye(20)
    assert np.abs(correlation).max() < 5 / math.sqrt(1000)
    assert abs(np.corrcoef(flat[1:, 0], flat[:-1, 0])[0, 1]) < 5 / math.sqrt(1000)


def test_seed_epoch_id_and_view_each_change_every_number():
    base = uniforms(3, 5, IDS, 4)
    for other in (uniforms(4, 5, IDS, 4), uniforms(3, 6, IDS, 4), uniforms(3, 5, IDS + 1, 4), base[:, ::-1]):
        assert (base != other).all()


def test_the_numbers_of_an_image_do_not_depend_on_the_batch_it_is_in():
    for size in (1, 3, 17):
        assert (uniforms(3, 5, IDS[40 : 40 + size], 4) == uniforms(3, 5, IDS, 4)[40 : 40 + size]).all()


def test_boxes_lie_inside_with_the_area_and_ratio_asked_for():
    for draws in uniforms(0, 0, IDS, 22)[:, 0].tolist():
        left, top, right, bottom = random_box(draws, 60, 80, scale=(0.2, 0.9), ratio=4 / 3)
        assert 0 <= left < right <= 80
        assert 0 <= top < bottom <= 60
        assert 0.2 - 1e-9 <= (right - left) * (bottom - top) / 4800 <= 0.9 + 1e-9
        assert 3 / 4 - 1e-9 <= (right - left) / (bottom - top) <= 4 / 3 + 1e-9


def test_area_is_uniform_and_log_ratio_symmetric_where_every_try_fits():
    boxes = np.array(
        [random_box(d, 64, 64, scale=(0.1, 0.5), ratio=1.5) for d in uniforms(0, 0, IDS, 22)[:, 1].tolist()]
    )
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area = width * height / 64**2
    assert abs(area.mean() - 0.3) < 0.02
    assert abs(area.std() - 0.4 / math.sqrt(12)) < 0.01
    assert abs(np.log(width / height).mean()) < 0.03


def test_a_strip_that_no_box_fits_falls_back_to_its_centre():
    for height, width in ((3, 500), (500, 3)):
        for draws in uniforms(0, 0, IDS[:50], 22)[:, 0].tolist():
            left, top, right, bottom = random_box(draws, height, width, scale=(0.9, 1.0), ratio=4 / 3)
            assert (left + right) / 2 == width / 2
            assert (top + bottom) / 2 == height / 2
            assert max(right - left, bottom - top) == pytest.approx(4)
            assert min(right - left, bottom - top) == 3


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 1, 1), (3, 500, 3), (40, 50, 1), (40, 50, 4)])
def test_images_of_every_shape_give_views_of_the_size_asked_for(shape):
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    views = random_views(image, view_draws(0, 0, IDS[:1])[0], 16, config=AugmentConfig())
    assert len(views) == 2
    for view in views:
        assert view.shape == (16, 16, 1 if shape[-1] == 1 else 3)
        assert view.dtype == np.uint8
    assert centre_view(image, 16).shape == views[0].shape


def test_resizing_is_antialiased_and_keeps_a_flat_colour():
    checkers = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)[..., None].repeat(3, -1)
    [small] = resize(checkers, [(0, 0, 64, 64)], 8)
    assert np.abs(small.astype(int) - 127).max() < 12
    flat = np.full((7, 9, 3), 77, np.uint8)
    assert (resize(flat, [(0.3, 0.4, 5.1, 6.2)], 32)[0] == 77).all()


def test_the_whole_image_is_its_shorter_side_scaled_and_its_centre_cut_out():
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(image).resize((30, 20), Image.Resampling.BILINEAR))[:, 5:25]
    assert (centre_view(image, 20) == expected).all()
    assert (centre_view(image[:, :40], 40) == image[:, :40]).all()


def test_a_transparent_image_gets_another_solid_background_in_each_view():
    clear = np.zeros((20, 20, 4), np.uint8)
    draws = view_draws(0, 0, IDS[:50])
    colours = np.array([[view[0, 0] for view in random_views(clear, d, 8, config=AugmentConfig())] for d in draws])
    assert len(np.unique(colours.reshape(-1, 3), axis=0)) > 95
    assert (centre_view(clear, 8) == 255).all()
    first = random_views(clear, draws[0], 8, config=AugmentConfig())[0]
    assert (first == first[0, 0]).all()
