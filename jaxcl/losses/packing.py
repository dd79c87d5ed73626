"""Numbers of the rows that need work, packed, so that a loop of dynamic length does that work and no other."""

from __future__ import annotations

import contextlib

import jax.numpy as jnp

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Bool, Int


def pack(which: Bool[Array, " n"], chunk: int) -> tuple[Int[Array, " p"], Int[Array, ""]]:
    """Numbers of marked rows in front, in their order.

    Args:
        which: the rows.
        chunk: rows of one turn of the loop.

    Returns:
        Numbers, n where there is none, as many as whole chunks may read; and the turns that the loop needs.

    >>> [x.tolist() for x in pack(jnp.array([False, True, False, True, True]), 2)]
    [[1, 3, 4, 5, 5, 5, 5], 2]
    """
    count = which.shape[0]
    slots = count + chunk  # so that the last chunk is whole
    packed = jnp.full_like(which, count, jnp.int32, shape=(slots,))
    packed = packed.at[jnp.where(which, jnp.cumsum(which) - 1, slots)].set(jnp.arange(count), mode="drop")
    return packed, (jnp.sum(which) + chunk - 1) // chunk
