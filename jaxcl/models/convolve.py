"""Convolution that is one matrix product where the result has only a few pixels.

On a CPU, XLA's convolution of 2x2 pixels and 256 channels reaches 4 GFLOP/s, the product of its patches 67 (one core,
forward; the gradients alike); from 4x4 pixels on the convolution is the faster of the two.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

FEW = 4  # pixels


def convolve(
    x: Float[Array, "n h w c"],
    kernel: Float[Array, "kh kw c f"],
    strides: Any,
    padding: Any,
    **options: Any,
) -> Float[Array, "n h2 w2 f"]:
    """`lax.conv_general_dilated` of images [N, H, W, C], for `flax.linen.Conv(conv_general_dilated=…)`.

    Args:
        x: images.
        kernel: [height, width, C, F].
        strides: along height and width.
        padding: (before, after) along each.
        **options: what else `lax.conv_general_dilated` takes; dilations and groups must be 1 for the product.

    Returns:
        [N, H', W', F].

    >>> convolve(jnp.ones((1, 2, 2, 1)), jnp.ones((3, 3, 1, 1)), (1, 1), ((1, 1), (1, 1))).ravel()
    Array([4., 4., 4., 4.], dtype=float32)
    """
    sizes = [
        (pixels + sum(pad) - width) // stride + 1
        for pixels, pad, width, stride in zip(x.shape[1:3], padding, kernel.shape[:2], strides, strict=True)
    ]
    plain = all(d in (None, 1) or set(d) == {1} for d in (options.get("lhs_dilation"), options.get("rhs_dilation")))
    if sizes[0] * sizes[1] > FEW or not plain or options.get("feature_group_count", 1) != 1:
        layout = options.pop("dimension_numbers", None) or ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=layout, **options)
    rows, columns = (
        [tap for tap in range(width) if _meets_pixels(tap, pixels, pad[0], stride, size)]
        for width, pixels, pad, stride, size in zip(
            kernel.shape[:2], x.shape[1:3], padding, strides, sizes, strict=True
        )
    )
    padded = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    taps = [(i, j) for i in rows for j in columns]
    patches = [
        padded[
            :,
            i : i + (sizes[0] - 1) * strides[0] + 1 : strides[0],
            j : j + (sizes[1] - 1) * strides[1] + 1 : strides[1],
        ]
        for i, j in taps
    ]
    weights = jnp.concatenate([kernel[i, j] for i, j in taps])
    return jnp.matmul(jnp.concatenate(patches, axis=-1), weights, precision=options.get("precision"))


def _meets_pixels(tap: int, pixels: int, before: int, stride: int, size: int) -> bool:
    """Whether one row of a kernel is ever laid over a pixel, not only over padding."""
    return any(0 <= place * stride + tap - before < pixels for place in range(size))
