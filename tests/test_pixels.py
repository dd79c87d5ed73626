import jax.numpy as jnp
import numpy as np
import pytest

from jaxcl.augment import normalize
from jaxcl.config import DataConfig
from jaxcl.pixels import PUBLISHED, channels_seen, normalised, seen_by_another

PIXELS = jnp.asarray(np.random.default_rng(0).random((2, 3, 3, 3), np.float32))
KINDS = [DataConfig(), DataConfig(mean=0.3, std=0.7), *(DataConfig(statistics=name) for name in PUBLISHED)]


def test_given_numbers_are_those_of_the_config_bit_for_bit():
    np.testing.assert_array_equal(normalised(PIXELS, DataConfig()), normalize(PIXELS, 0.5, 0.25))


def test_published_numbers_are_one_pair_a_channel_and_grey_images_have_three_alike():
    mean, std = PUBLISHED["imagenet"]
    expected = (np.asarray(PIXELS) - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(normalised(PIXELS, DataConfig(statistics="imagenet")), expected, rtol=1e-5, atol=1e-6)
    grey = normalised(PIXELS[..., :1], DataConfig(statistics="clip"))
    three = jnp.repeat(PIXELS[..., :1], 3, axis=-1)
    np.testing.assert_array_equal(grey, normalised(three, DataConfig(statistics="clip")))
    assert [channels_seen(kind, 1) for kind in KINDS] == [1, 1, 3, 3, 3]


@pytest.mark.parametrize("there", KINDS)
@pytest.mark.parametrize("here", KINDS)
def test_what_one_encoder_sees_becomes_what_another_sees(here, there):
    found = seen_by_another(normalised(PIXELS, here), here, there)
    np.testing.assert_allclose(found, normalised(PIXELS, there), rtol=1e-4, atol=1e-5)
