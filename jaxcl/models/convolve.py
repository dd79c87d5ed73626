"""Convolutions for CPUs: one matrix product where the result has only a few pixels, and one to be used within loops.

On a CPU, XLA's convolution of 2x2 pixels and 256 channels reaches 4 GFLOP/s, the product of its patches 67 (one core,
forward; the gradients alike); from 4x4 pixels on the convolution is the faster of the two. Within `lax.scan` its
gradient to the kernel, a convolution with a kernel of as many pixels as the result has, takes 20 to 70 times as long
as outside, and that to the images at stride 1 fifteen times: there the one is a sum of products instead, and the other
a convolution with a kernel that is turned round beforehand, which take as long as outside.
"""

from __future__ import annotations

from typing import Any

import jax
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
    sizes = _sizes(x, kernel, strides, padding)
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


def convolve_in_loops(
    x: Float[Array, "n h w c"], kernel: Float[Array, "kh kw c f"], strides: Any, padding: Any, **options: Any
) -> Float[Array, "n h2 w2 f"]:
    """`convolve`, with a gradient to the kernel that is as fast within a loop as outside; reverse mode only.

      ∂/∂kernel[i, j] = Σ_{n, y, x} image[n, i + s·y, j + s·x] ⊗ ∂/∂result[n, y, x]

    Args:
        x: images.
        kernel: [height, width, C, F].
        strides: along height and width.
        padding: (before, after) along each, or "SAME" or "VALID".
        **options: as for `convolve`; without dilations and groups.

    Returns:
        [N, H', W', F].

    >>> jax.grad(lambda k: convolve_in_loops(jnp.ones((1, 3, 3, 1)), k, (1, 1), "SAME").sum())(jnp.ones((1, 1, 1, 1)))
    Array([[[[9.]]]], dtype=float32)
    """
    pads = (
        lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], strides, padding) if isinstance(padding, str) else padding
    )

    def plain(x: Any, kernel: Any) -> Any:
        return convolve(x, kernel, strides, pads, **options)

    sizes = _sizes(x, kernel, strides, pads)
    if sizes[0] * sizes[1] <= FEW:
        return plain(x, kernel)

    def of_kernel(x: Any, kernel: Any, gradient: Any) -> Any:
        padded = jnp.pad(x, ((0, 0), *pads, (0, 0)))

        def tap(i: int, j: int) -> Any:
            seen = [
                slice(at, at + (n - 1) * step + 1, step) for at, n, step in zip((i, j), sizes, strides, strict=True)
            ]
            return jnp.einsum("nyxc,nyxf->cf", padded[:, *seen], gradient, preferred_element_type=jnp.float32)

        height, width = kernel.shape[:2]
        return jnp.stack([jnp.stack([tap(i, j) for j in range(width)]) for i in range(height)]).astype(kernel.dtype)

    def of_images(x: Any, kernel: Any, gradient: Any) -> Any:
        if (*strides,) != (1, 1):
            return jax.vjp(lambda x: plain(x, kernel), x)[1](gradient)[0]
        around = [
            (width - 1 - first, width - 1 - last) for width, (first, last) in zip(kernel.shape[:2], pads, strict=True)
        ]
        turned = jnp.swapaxes(kernel[::-1, ::-1], 2, 3)  # itself, and not as a flag of the convolution
        return lax.conv_general_dilated(gradient, turned, (1, 1), around, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def backward(saved: Any, gradient: Any) -> Any:
        x, kernel = saved
        return of_images(x, kernel, gradient), of_kernel(x, kernel, gradient)

    run = jax.custom_vjp(plain)
    run.defvjp(lambda x, kernel: (plain(x, kernel), (x, kernel)), backward)
    return run(x, kernel)


def _sizes(x: Any, kernel: Any, strides: Any, padding: Any) -> list[int]:
    """Height and width of the result."""
    return [
        (pixels + sum(pad) - width) // stride + 1
        for pixels, pad, width, stride in zip(x.shape[1:3], padding, kernel.shape[:2], strides, strict=True)
    ]


def _meets_pixels(tap: int, pixels: int, before: int, stride: int, size: int) -> bool:
    """Whether one row of a kernel is ever laid over a pixel, not only over padding."""
    return any(0 <= place * stride + tap - before < pixels for place in range(size))
