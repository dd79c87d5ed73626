"""The k largest of each row, by `lax.top_k`, on every core of a CPU."""

from __future__ import annotations

import contextlib

import jax.numpy as jnp
from jax import lax

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Float, Int

# XLA's CPU code runs a TopK on one thread, and two side by side only in a sequence of more than 8 operations
PARTS = 16
WORTH = 1 << 16  # scores: fewer take less time than handing them to other threads


def top_k(scores: Float[Array, "b c"], k: int) -> tuple[Float[Array, "b k"], Int[Array, "b k"]]:
    """`lax.top_k` of each row: on a CPU in parts of the rows, which run side by side.

    Args:
        scores: [B, C].
        k: how many, at most C.

    Returns:
        Values [B, k], largest first, and their places; of equal ones the lowest place first.
    """
    rows = scores.shape[0]
    if rows % PARTS or scores.size < WORTH:
        return _whole(scores, k)

    def in_parts(scores: Array) -> tuple[Array, Array]:
        height = rows // PARTS
        parts = [_whole(scores[first : first + height], k) for first in range(0, rows, height)]
        values, places = (jnp.concatenate(found) for found in zip(*parts, strict=True))
        return values, places

    return lax.platform_dependent(scores, cpu=in_parts, default=lambda scores: _whole(scores, k))


def _whole(scores: Array, k: int) -> tuple[Array, Array]:
    """One call for all rows."""
    values, places = lax.top_k(scores, k)
    return values, places
