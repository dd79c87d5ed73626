import colorsys
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from PIL import Image, ImageEnhance

from jaxcl.augment import augment, normalize
from jaxcl.config import AugmentConfig

KEY = jax.random.key(7)
NOTHING = AugmentConfig(flip_prob=0.0, jitter_prob=0.0, grayscale_prob=0.0, blur_prob=0.0, solarize_prob=0.0)
EVERYTHING = AugmentConfig(flip_prob=0.5, jitter_prob=0.8, grayscale_prob=0.2, blur_prob=0.5, solarize_prob=0.3)
RNG = np.random.default_rng(0)
CROPS = RNG.integers(0, 256, (24, 2, 12, 10, 3), dtype=np.uint8)
GRAY = CROPS[..., :1]
IDS = jnp.asarray(RNG.permutation(1000)[:24], jnp.int32)
EPOCHS = jnp.asarray(RNG.integers(0, 5, 24), jnp.int32)


def only(**settings):
    """Settings with every step off but these."""
    return dataclasses.replace(NOTHING, **settings)


@functools.cache
def jitted(config):
    """Compiled once for each config and shape."""
    return jax.jit(lambda *a: augment(*a, config=config))


def run(crops, config, ids=IDS, epochs=EPOCHS, key=KEY):
    """Jitted; the result as [B, V, H, W, C]."""
    out = jitted(config)(key, jnp.asarray(crops), ids, epochs)
    assert out.dtype == jnp.float32
    return np.asarray(out).swapaxes(0, 1)


def floats(crops):
    return crops.astype(np.float32) / 255


@pytest.mark.parametrize("crops", [CROPS, GRAY])
def test_with_every_probability_zero_the_pixels_only_become_floats(crops):
    np.testing.assert_allclose(run(crops, NOTHING), floats(crops), rtol=1e-6)


def test_a_step_of_probability_zero_is_not_traced():
    def size(config):
        return len(jax.jit(lambda *a: augment(*a, config=config)).lower(KEY, CROPS, IDS, EPOCHS).as_text())

    assert size(NOTHING) < min(size(only(blur_prob=0.1)), size(only(jitter_prob=0.1))) / 1.5


@pytest.mark.parametrize("crops", [CROPS, GRAY])
def test_values_stay_in_range_and_views_come_first(crops):
    hard = AugmentConfig(
        jitter_prob=1.0, brightness=1.0, contrast=1.0, saturation=1.0, hue=0.5, blur_prob=1.0, solarize_prob=0.5
    )
    out = jitted(hard)(KEY, jnp.asarray(crops), IDS, EPOCHS)
    assert out.shape == (2, 24, 12, 10, crops.shape[-1])
    assert float(out.min()) >= 0
    assert float(out.max()) <= 1
    assert bool(jnp.isfinite(out).all())


def test_the_two_views_of_equal_crops_differ():
    same = np.repeat(CROPS[:, :1], 2, 1)
    out = run(same, EVERYTHING)
    assert (out[:, 0] != out[:, 1]).any((1, 2, 3)).mean() > 0.9


def test_the_same_image_epoch_and_view_give_the_same_bits_at_any_place_of_the_batch():
    whole = run(CROPS, EVERYTHING)
    order = RNG.permutation(24)
    assert (run(CROPS[order], EVERYTHING, IDS[order], EPOCHS[order]) == whole[order]).all()


@pytest.mark.parametrize("size", [1, 7, 23])
def test_the_size_of_the_batch_changes_nothing_but_rounding(size):
    whole = run(CROPS, EVERYTHING)
    rows = RNG.permutation(24)[:size]
    np.testing.assert_allclose(run(CROPS[rows], EVERYTHING, IDS[rows], EPOCHS[rows]), whole[rows], atol=2e-6)


def test_key_id_and_epoch_each_change_the_result():
    base = run(CROPS, EVERYTHING)
    for other in (
        run(CROPS, EVERYTHING, ids=IDS + 1),
        run(CROPS, EVERYTHING, epochs=EPOCHS + 1),
        run(CROPS, EVERYTHING, key=jax.random.key(8)),
    ):
        assert (base != other).any((2, 3, 4)).mean() > 0.9


def test_probabilities_are_met():
    many = np.repeat(CROPS[:1, :, :6, :6], 2000, 0)
    ids, zero = jnp.arange(2000, dtype=jnp.int32), jnp.zeros(2000, jnp.int32)
    for settings in ({"flip_prob": 0.3}, {"grayscale_prob": 0.3}, {"blur_prob": 0.3}, {"solarize_prob": 0.3}):
        changed = (np.abs(run(many, only(**settings), ids, zero) - floats(many)) > 1e-5).any((2, 3, 4))
        assert abs(changed.mean() - 0.3) < 0.03
        assert abs((changed[:, 0] & changed[:, 1]).mean() - 0.09) < 0.03


def test_a_certain_flip_is_the_mirror_image():
    np.testing.assert_allclose(run(CROPS, only(flip_prob=1.0)), floats(CROPS)[..., ::-1, :], rtol=1e-6)


def test_certain_grayscale_has_equal_channels_with_the_luma_of_pillow():
    out = run(CROPS, only(grayscale_prob=1.0))
    assert (out == out[..., :1]).all()
    luma = np.asarray([[Image.fromarray(view).convert("L") for view in pair] for pair in CROPS])
    np.testing.assert_allclose(out[..., 0], luma / 255, atol=1 / 255)


def test_solarization_inverts_what_is_above_the_threshold():
    x = floats(CROPS)
    out = run(CROPS, only(solarize_prob=1.0, solarize_threshold=0.7))
    np.testing.assert_allclose(out, np.where(x < 0.7, x, 1 - x), rtol=1e-6, atol=1e-7)


def jitter(**strengths):
    return only(jitter_prob=1.0, **{"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0, **strengths})


@pytest.mark.parametrize(
    ("name", "enhancer"),
    [("brightness", ImageEnhance.Brightness), ("contrast", ImageEnhance.Contrast), ("saturation", ImageEnhance.Color)],
)
def test_jitter_is_pillows_enhancement_by_some_factor_in_range(name, enhancer):
    factors = np.linspace(0.5, 1.5, 201)
    best = []
    for pair, views in zip(CROPS[:4], run(CROPS, jitter(**{name: 0.5}))[:4], strict=True):
        for crop, view in zip(pair, views, strict=True):
            tries = np.array([np.asarray(enhancer(Image.fromarray(crop)).enhance(f)) for f in factors]) / 255
            errors = np.abs(tries - view).max((1, 2, 3))
            assert errors.min() < 0.012  # Pillow rounds the gray it blends with, the result, and the factor here
            best.append(factors[errors.argmin()])
    assert np.ptp(best) > 0.3


def test_jitter_in_one_compiled_program_equals_jitter_operation_by_operation():
    config = only(jitter_prob=1.0)
    slowly = augment(KEY, jnp.asarray(CROPS), IDS, EPOCHS, config=config)
    np.testing.assert_allclose(run(CROPS, config), np.asarray(slowly).swapaxes(0, 1), atol=2e-6)


def test_hue_is_colorsys_turned_and_keeps_value_and_saturation():
    out, x = run(CROPS, jitter(hue=0.2)), floats(CROPS)
    for before, after in zip(x.reshape(48, -1, 3)[:6], out.reshape(48, -1, 3)[:6], strict=True):
        was, now = (np.array([colorsys.rgb_to_hsv(*pixel) for pixel in p]) for p in (before, after))
        np.testing.assert_allclose(now[:, 1:], was[:, 1:], atol=1e-5)
        clear = was[:, 1] * was[:, 2] > 0.2  # hue means little near gray
        turn = (now[clear, 0] - was[clear, 0] + 0.5) % 1 - 0.5
        assert np.ptp(turn) < 1e-4
        assert abs(turn[0]) <= 0.2
    grays = np.repeat(GRAY, 3, -1)
    np.testing.assert_allclose(run(grays, jitter(hue=0.2)), floats(grays), atol=1e-6)


def test_one_channel_images_get_the_same_brightness_and_contrast_as_gray_ones_in_colour():
    config = only(jitter_prob=1.0, grayscale_prob=1.0, flip_prob=0.5)
    np.testing.assert_allclose(run(GRAY, config), run(np.repeat(GRAY, 3, -1), config)[..., :1], atol=1e-5)


def blurred(image, sigma):
    """A loop: mirror the image at its edges, and sum Gaussian weights far out."""
    for axis in (0, 1):
        n = image.shape[axis]
        reach = np.arange(-4 * n, 5 * n)
        line = np.where(reach // n % 2 == 0, reach % n, n - 1 - reach % n)
        rows = []
        for i in range(n):
            weights = np.exp(-0.5 * ((reach - i) / sigma) ** 2)
            rows.append(np.tensordot(weights / weights.sum(), image.take(line, axis), (0, axis)))
        image = np.stack(rows, axis)
    return image


@pytest.mark.parametrize("crops", [CROPS, GRAY])
@pytest.mark.parametrize("sigma", [0.1, 0.7, 6.0])
def test_blur_is_the_gaussian_of_the_mirrored_image_and_keeps_its_mean(crops, sigma):
    out = run(crops, only(blur_prob=1.0, blur_sigma_min=sigma, blur_sigma_max=sigma))
    for crop, view in zip(floats(crops).reshape(48, 12, 10, -1)[::12], out.reshape(48, 12, 10, -1)[::12], strict=True):
        np.testing.assert_allclose(view, blurred(crop.astype(np.float64), sigma), atol=1e-5)
    np.testing.assert_allclose(out.mean((2, 3)), floats(crops).mean((2, 3)), atol=1e-5)


def test_sigma_varies_in_its_range():
    spread = run(np.repeat(CROPS[:1], 24, 0), only(blur_prob=1.0, blur_sigma_min=0.3, blur_sigma_max=1.5)).std(
        (2, 3, 4)
    )
    ends = [blurred(floats(CROPS[0, 0]).astype(np.float64), s).std() for s in (0.3, 1.5)]
    assert (spread[:, 0] <= ends[0] + 1e-5).all()
    assert (spread[:, 0] >= ends[1] - 1e-5).all()
    assert np.ptp(spread[:, 0]) > 0.3 * (ends[0] - ends[1])


def test_eight_devices_give_what_one_gives():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("data"))
    step = jax.jit(
        lambda *a: augment(*a, config=EVERYTHING), out_shardings=NamedSharding(mesh, PartitionSpec(None, "data"))
    )
    sharded = [jax.device_put(x, split) for x in (jnp.asarray(CROPS), IDS, EPOCHS)]
    out = step(KEY, *sharded)
    assert len(out.addressable_shards) == 8
    np.testing.assert_allclose(np.asarray(out).swapaxes(0, 1), run(CROPS, EVERYTHING), atol=1e-6)
    text = step.lower(KEY, *sharded).compile().as_text()
    assert "all-gather" not in text
    assert "all-to-all" not in text


def test_normalising_subtracts_and_divides_for_all_channels_or_for_each():
    x = jnp.asarray(floats(CROPS))
    np.testing.assert_allclose(normalize(x, 0.5, 0.25), (floats(CROPS) - 0.5) / 0.25, rtol=1e-6, atol=1e-6)
    mean, std = jnp.array([0.1, 0.2, 0.3]), jnp.array([0.5, 1.0, 2.0])
    np.testing.assert_allclose(normalize(x, mean, std), (floats(CROPS) - mean) / std, rtol=1e-5, atol=1e-6)
