"""Random resized crops, on the host in uint8, each drawn from (seed, epoch, id, view) alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int32, UInt8
from PIL import Image

from jaxcl.config import AugmentConfig
from jaxcl.data.decode import on_colour

VIEWS = 2
_TRIES = 10
_DRAWS = 2 * _TRIES + 2 + 3  # a size and a shape for each try, a place, a colour


def uniforms(seed: int, epoch: int, ids: Int32[np.ndarray, " n"], draws: int) -> Float64[np.ndarray, "n v draws"]:
    """Uniform numbers in [0, 1) for two views of each image: a hash of its key, so they depend on nothing else.

    Args:
        seed: of the run.
        epoch: how often the data have been seen.
        ids: of the images.
        draws: numbers for each view.

    Returns:
        `[n, 2, draws]`, the top 53 bits of SplitMix64's finaliser chained over (seed, epoch, id, view, draw).

    Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014.

    >>> a = uniforms(0, 1, np.array([7, 8], np.int32), 3)
    >>> bool((a[1] == uniforms(0, 1, np.array([8], np.int32), 3)[0]).all())
    True
    """
    state = _mix(np.array([[[seed]]], np.uint64))
    for part in (
        np.array([[[epoch]]]),
        np.asarray(ids)[:, None, None],
        np.arange(VIEWS)[None, :, None],
        np.arange(draws)[None, None, :],
    ):
        state = _mix(state + _mix(part.astype(np.uint64)))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64: one step of its counter, then its finaliser."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def random_box(
    draws: Sequence[float], height: int, width: int, *, scale: tuple[float, float], ratio: float
) -> tuple[float, float, float, float]:
    """A rectangle with a uniform share of the image's area and a log-uniform aspect ratio.

    Up to ten draws of both until the rectangle fits; if none does, the largest centred one with an allowed ratio.

    Args:
        draws: 22 uniform numbers: size and shape for each try, then the place.
        height: of the image, pixels.
        width: of the image, pixels.
        scale: smallest and largest share of the area.
        ratio: width/height lies in [1/ratio, ratio].

    Returns:
        Left, top, right, bottom, in pixels, not rounded.

    Source: Szegedy et al., "Going Deeper with Convolutions", 2015, as in SimCLR (Chen et al., 2020).
    """
    low, high = scale
    for i in range(_TRIES):
        area = height * width * (low + (high - low) * draws[2 * i])
        aspect = math.exp(math.log(ratio) * (2 * draws[2 * i + 1] - 1))
        w, h = math.sqrt(area * aspect), math.sqrt(area / aspect)
        if w <= width and h <= height:
            left, top = draws[2 * _TRIES] * (width - w), draws[2 * _TRIES + 1] * (height - h)
            return left, top, min(left + w, width), min(top + h, height)
    return centre_box(height, width, ratio=ratio)


def centre_box(height: int, width: int, *, ratio: float) -> tuple[float, float, float, float]:
    """The largest centred rectangle with width/height in [1/ratio, ratio].

    >>> centre_box(20, 10, ratio=1.0)
    (0.0, 5.0, 10.0, 15.0)
    """
    w, h = min(width, height * ratio), min(height, width * ratio)
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


def resize(
    image: UInt8[np.ndarray, "h w c"], boxes: Sequence[tuple[float, float, float, float]], size: int
) -> list[UInt8[np.ndarray, "size size c"]]:
    """Cut boxes out of one image and scale each to a square, bilinear and antialiased."""
    channels = image.shape[-1]
    picture = Image.fromarray(image if channels > 1 else image[..., 0])
    cut = [np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR, box)) for box in boxes]
    return [view.reshape(size, size, channels) for view in cut]


def centre_view(image: UInt8[np.ndarray, "h w c"], size: int) -> UInt8[np.ndarray, "size size k"]:
    """The image as an encoder is evaluated on it: shorter side to `size`, centre crop, transparent parts white.

    Both at once: the centred square, scaled.
    """
    height, width = image.shape[:2]
    if (height, width) != (size, size):
        [image] = resize(image, [centre_box(height, width, ratio=1.0)], size)
    return on_colour(image, np.full(3, 255, np.uint8)) if image.shape[-1] == 4 else image


def random_views(
    image: UInt8[np.ndarray, "h w c"],
    draws: Float64[np.ndarray, "v draws"],
    size: int,
    *,
    config: AugmentConfig,
) -> list[UInt8[np.ndarray, "size size k"]]:
    """Two random resized crops of one image; one with transparency gets a random solid background in each.

    Args:
        image: uint8, 1, 3 or 4 channels.
        draws: from `view_draws`.
        size: pixels a side of a view.
        config: the range of sizes and shapes.

    Returns:
        The views, of 1 or 3 channels.
    """
    numbers = draws.tolist()
    scale = (config.crop_scale_min, config.crop_scale_max)
    boxes = [random_box(row, image.shape[0], image.shape[1], scale=scale, ratio=config.crop_ratio) for row in numbers]
    views = resize(image, boxes, size)
    if image.shape[-1] == 4:
        colours = (draws[:, -3:] * 256).astype(np.uint8)
        views = [on_colour(view, colour) for view, colour in zip(views, colours, strict=True)]
    return views


def view_draws(seed: int, epoch: int, ids: Int32[np.ndarray, " n"]) -> Float64[np.ndarray, "n v draws"]:
    """All random numbers that two views of each image need."""
    return uniforms(seed, epoch, ids, _DRAWS)
