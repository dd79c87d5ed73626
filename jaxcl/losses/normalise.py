"""Unit vectors in float32, finite at zero in value and gradient."""

from __future__ import annotations

import contextlib

import jax.numpy as jnp
from jax import lax

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Bool, Float

EPS = 1e-12  # squared norm


def normalise(rows: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """Rows divided by their L2 norm, in float32: x · rsqrt(Σx² + ε).

    Half-precision sums of squares overflow, so the cast comes first. A row whose squared norm is not a finite float32
    becomes NaN as a whole, so that it cannot pass for a zero vector. A zero vector stays zero, and its gradient is the
    cotangent: rsqrt(ε) times that would overflow float16.

    Args:
        rows: any float dtype.

    Returns:
        float32, the same shape.
    """
    rows = rows.astype(jnp.float32)
    square = jnp.sum(rows * rows, axis=-1, keepdims=True)
    inverse = lax.rsqrt(jnp.where(square > 0, square, 1.0) + EPS)
    # chosen among the norms: among the rows, the gradient would have an array of zeros of their size
    return rows * jnp.where(jnp.isfinite(square), inverse, jnp.nan)


def is_finite(rows: Float[Array, "... d"]) -> Bool[Array, ...]:
    """True where a row can be normalised."""
    return jnp.isfinite(jnp.sum(jnp.square(rows.astype(jnp.float32)), axis=-1))
