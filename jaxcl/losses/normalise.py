"""Unit vectors in float32, finite at zero in value and gradient."""

from __future__ import annotations

import contextlib

import jax
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
    return rows.astype(jnp.float32) * inverse_norm(rows)


def inverse_norm(rows: Float[Array, "... d"]) -> Float[Array, "... 1"]:
    """What `normalise` multiplies rows by, float32: 1 for a zero vector, NaN where the norm is not finite."""
    rows = rows.astype(jnp.float32)
    square = jnp.sum(rows * rows, axis=-1, keepdims=True)
    inverse = lax.rsqrt(jnp.where(square > 0, square, 1.0) + EPS)
    # chosen among the norms: among the rows, the gradient would have an array of zeros of their size
    return jnp.where(jnp.isfinite(square), inverse, jnp.nan)


@jax.custom_vjp
def unit_rows(rows: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """`normalise`, whose gradient needs the result and the norms alone: nobody has to keep the rows.

      ∂L/∂x = r (g − u (u · g))    with u = r x the result, r the inverse norm, g = ∂L/∂u

    Args:
        rows: any float dtype.

    Returns:
        float32, the same shape.
    """
    return normalise(rows)


def _unit_rows(rows: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    """The rows, and what their gradient needs; an empty array tells the dtype it must have."""
    inverse = inverse_norm(rows)
    # or XLA would keep the rows after all, to make the unit rows again, and a broadcast of the norms, [N, D] each
    unit, kept = lax.optimization_barrier((rows.astype(jnp.float32) * inverse, inverse))
    return unit, (unit, kept, rows[:0])


def _of_rows(saved: tuple[Array, Array, Array], gradient: Array) -> tuple[Array]:
    """The gradient of rows, given that of the normalised ones."""
    unit, inverse, like = saved
    along = jnp.sum(unit * gradient, axis=-1, keepdims=True)
    return ((inverse * (gradient - unit * along)).astype(like.dtype),)


unit_rows.defvjp(_unit_rows, _of_rows)


def through_norm(rows: Float[Array, "n d"], gradient: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """The gradient of rows, given that of the normalised ones.

    >>> through_norm(jnp.array([[2.0, 0.0]]), jnp.array([[1.0, 1.0]])).tolist()
    [[0.0, 0.5]]
    """
    return jax.vjp(unit_rows, rows)[1](gradient)[0]


def is_finite(rows: Float[Array, "... d"]) -> Bool[Array, ...]:
    """True where a row can be normalised."""
    return jnp.isfinite(jnp.sum(jnp.square(rows.astype(jnp.float32)), axis=-1))
