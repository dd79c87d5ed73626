"""Pixels as an encoder sees them: normalised as a config says, by its own numbers or by those of published weights."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcl.augment import normalize
from jaxcl.config import DataConfig

# mean and standard deviation of each channel of pixels in [0, 1]
PUBLISHED = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
}


def normalised(images: Float[Array, "*batch c"], config: DataConfig) -> Float[Array, "*batch k"]:
    """Images as the encoder sees them.

    Args:
        images: pixels in [0, 1].
        config: mean and standard deviation, or whose.

    Returns:
        Normalised images; of three channels where those of published weights are asked for.

    >>> normalised(jnp.ones((1, 1)), DataConfig(statistics="half")).tolist()
    [[1.0, 1.0, 1.0]]
    """
    if config.statistics == "given":
        return normalize(images, config.mean, config.std)
    mean, std = (jnp.array(values, images.dtype) for values in PUBLISHED[config.statistics])
    return normalize(jnp.broadcast_to(images, (*images.shape[:-1], len(mean))), mean, std)


def seen_by_another(images: Float[Array, "*batch c"], here: DataConfig, there: DataConfig) -> Float[Array, "*batch k"]:
    """Images normalised for one encoder, normalised for another.

    Args:
        images: from `normalised`.
        here: of the one.
        there: of the other.

    Returns:
        The same images as `normalised` makes them for the other.

    >>> seen_by_another(jnp.ones((1, 1)), DataConfig(), DataConfig(mean=0.0, std=1.0)).tolist()
    [[0.75]]
    """
    if (here.statistics, here.mean, here.std) == (there.statistics, there.mean, there.std):
        return images
    if here.statistics == "given":
        return normalised(images * here.std + here.mean, there)
    mean, std = (jnp.array(values, images.dtype) for values in PUBLISHED[here.statistics])
    return normalised(images * std + mean, there)


def channels_seen(config: DataConfig, channels: int) -> int:
    """Channels of the images that the encoder sees.

    >>> channels_seen(DataConfig(statistics="clip"), 1)
    3
    """
    return channels if config.statistics == "given" else len(PUBLISHED[config.statistics][0])
