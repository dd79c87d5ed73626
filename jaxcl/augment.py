"""Random flips, colours and blur on the device: from uint8 crops to float32 views, a key for each sample.

Order of the steps: mirror, colour jitter (brightness, contrast, saturation, hue), grayscale, blur, solarization, as in
SimCLR (Chen et al., 2020) and BYOL (Grill et al., 2020). Crops are made on the host.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Float, Int32, Key, UInt8

_CHANNELS = -2  # inside, images are [B, V, H, C, W]: rows and columns are then both blurred without a transpose


class _Draws(NamedTuple):
    """Uniform numbers in [0, 1), `[B, V, 1, 1, 1]` each."""

    flip: Array
    jitter: Array
    brightness: Array
    contrast: Array
    saturation: Array
    hue: Array
    grayscale: Array
    blur: Array
    sigma: Array
    solarize: Array


def augment(
    key: Key[Array, ""],
    views: UInt8[Array, "b v h w c"],
    ids: Int32[Array, " b"],
    epochs: Int32[Array, " b"],
    *,
    config: Any,
) -> Float[Array, "v b h w c"]:
    """Augment crops; each view depends on its own pixels and on (key, id, view, epoch), not on its place in the batch.

    In batches of another size, or on other devices, blur and contrast may round differently, by some 1e-7.
    A step whose probability is 0 is not traced. With one channel, saturation, hue and grayscale are left out.

    Args:
        key: of the run.
        views: crops, V of each image, with 1 or 3 channels.
        ids: of the images.
        epochs: how often the data have been seen.
        config: probabilities and strengths, read while tracing: an object with the attributes of
            `jaxcl.config.AugmentConfig`.

    Returns:
        float32 in [0, 1], views first.

    >>> from jaxcl.config import AugmentConfig
    >>> crops, zero = jnp.zeros((4, 2, 8, 8, 3), jnp.uint8), jnp.zeros(4, jnp.int32)
    >>> augment(jax.random.key(0), crops, jnp.arange(4), zero, config=AugmentConfig()).shape
    (2, 4, 8, 8, 3)
    """
    draws = _draw(key, ids, epochs, views.shape[1])
    x = jnp.swapaxes(views, -1, -2).astype(jnp.float32) / 255
    colour = views.shape[-1] == 3
    if config.flip_prob > 0:
        x = jnp.where(draws.flip < config.flip_prob, x[..., ::-1], x)
    if config.jitter_prob > 0:
        x = jnp.where(draws.jitter < config.jitter_prob, _jitter(x, draws, config), x)
    if config.grayscale_prob > 0 and colour:
        x = jnp.where(draws.grayscale < config.grayscale_prob, _gray(x), x)
    if config.blur_prob > 0:
        x = jnp.where(draws.blur < config.blur_prob, _blur(x, draws.sigma, config), x)
    if config.solarize_prob > 0:
        x = jnp.where(draws.solarize < config.solarize_prob, _solarize(x, config.solarize_threshold), x)
    return jnp.transpose(x, (1, 0, 2, 4, 3))


def normalize(
    x: Float[Array, "*batch c"], mean: float | Float[Array, " c"], std: float | Float[Array, " c"]
) -> Float[Array, "*batch c"]:
    """(x − mean) / std, for all channels or for each.

    >>> normalize(jnp.full((2, 1), 0.75), 0.5, 0.25).tolist()
    [[1.0], [1.0]]
    """
    return (x - mean) / std


def _draw(key: Array, ids: Array, epochs: Array, views: int) -> _Draws:
    """The numbers of every view, from its own key."""

    def of_one(image_id: Array, epoch: Array, view: Array) -> Array:
        # Loops, because the same hashes unrolled take XLA two seconds to compile.
        path = jnp.stack([image_id, view, epoch])
        own, _ = jax.lax.scan(lambda k, part: (jax.random.fold_in(k, part), None), key, path)
        steps = jnp.arange(len(_Draws._fields))
        return jax.lax.map(lambda step: jax.random.uniform(jax.random.fold_in(own, step)), steps)

    of_views = jax.vmap(of_one, (None, None, 0))
    numbers = jax.vmap(of_views, (0, 0, None))(ids, epochs, jnp.arange(views, dtype=jnp.int32))
    return _Draws(*jnp.moveaxis(numbers, -1, 0)[..., None, None, None])


def _jitter(x: Array, draws: _Draws, config: Any) -> Array:
    """Brightness, contrast, saturation, hue, in this order, clipped to [0, 1] after each; strength 0 is left out."""
    if config.brightness > 0:
        x = _blend(0.0, x, config.brightness, draws.brightness)
    if config.contrast > 0:
        x = _blend(jnp.mean(_luma(x), (-3, -2, -1), keepdims=True), x, config.contrast, draws.contrast)
    if x.shape[_CHANNELS] == 3:
        if config.saturation > 0:
            x = _blend(_luma(x), x, config.saturation, draws.saturation)
        if config.hue > 0:
            x = _turn_hue(x, config.hue * (2 * draws.hue - 1))
    return x


def _blend(other: Array | float, x: Array, strength: float, draw: Array) -> Array:
    """Blend other + factor·(x − other), factor uniform in [1 − strength, 1 + strength]."""
    factor = 1 + strength * (2 * draw - 1)
    return jnp.clip(other + factor * (x - other), 0, 1)


def _turn_hue(x: Array, turns: Array) -> Array:
    """Turn the hue circle; value and saturation (HSV) stay."""
    import dm_pix as pix

    red, green, blue = jnp.split(x, 3, _CHANNELS)
    value = jnp.maximum(jnp.maximum(red, green), blue)
    chroma = value - jnp.minimum(jnp.minimum(red, green), blue)
    # By order, not by `value == red` as in dm_pix.rgb_to_hsv: in a fused loop the two sides may be rounded differently,
    # no channel then equals the largest, and the pixel gets another colour (seen on CPU).
    per_chroma = 1 / jnp.where(chroma > 0, chroma, 1)
    of_other = jnp.where(green >= blue, 2 + (blue - red) * per_chroma, 4 + (red - green) * per_chroma)
    sixths = jnp.where((red >= green) & (red >= blue), (green - blue) * per_chroma, of_other)
    saturation = chroma / jnp.where(value > 0, value, 1)
    turned = jnp.concatenate([sixths / 6 + turns, saturation, value], _CHANNELS)
    return jnp.clip(pix.hsv_to_rgb(turned, channel_axis=_CHANNELS), 0, 1)


def _luma(x: Array) -> Array:
    """Gray by the weights of ITU-R BT.601, one channel."""
    if x.shape[_CHANNELS] == 1:
        return x
    red, green, blue = jnp.split(x, 3, _CHANNELS)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _gray(x: Array) -> Array:
    """Gray, with as many equal channels as before."""
    return jnp.broadcast_to(jnp.clip(_luma(x), 0, 1), x.shape)


def _solarize(x: Array, threshold: float) -> Array:
    """Invert what is above a threshold."""
    import dm_pix as pix

    return pix.solarize(x, threshold)


def _blur(x: Array, draw: Array, config: Any) -> Array:
    """Gaussian blur, sigma uniform in [min, max] pixels, as K_h · x · K_w: two small matrix products a view."""
    low, high = config.blur_sigma_min, config.blur_sigma_max
    sigma = (low + (high - low) * draw)[..., 0]
    rows, columns = (_gaussian_matrix(sigma, size, high) for size in (x.shape[-3], x.shape[-1]))
    exact = jax.lax.Precision.HIGHEST
    x = jnp.einsum("bvij,bvjcw->bvicw", rows, x, precision=exact)
    return jnp.clip(jnp.einsum("bvhcj,bvij->bvhci", x, columns, precision=exact), 0, 1)


def _gaussian_matrix(sigma: Array, size: int, largest: float) -> Array:
    """`[B, V, size, size]`: convolution with a Gaussian on a line mirrored at both ends.

    K_ij ∝ Σ_m g(i − j − 2mn) + g(i + j + 1 − 2mn). The mirrored line makes K symmetric with rows of sum 1, so columns
    have sum 1 too: the mean of an image is kept, and there is no dark rim.
    """
    i, j = jnp.arange(size)[:, None], jnp.arange(size)[None, :]
    reach = max(1, math.ceil(6 * largest / (2 * size)))  # beyond 6 sigma a float32 weight is lost in the sum
    kernel = jnp.zeros((*sigma.shape[:-2], size, size))
    for period in range(-reach, reach + 1):
        for distance in (i - j - 2 * period * size, i + j + 1 - 2 * period * size):
            kernel += jnp.exp(-0.5 * (distance / sigma) ** 2)
    return kernel / jnp.sum(kernel, -1, keepdims=True)
