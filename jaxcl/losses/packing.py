"""Rows that need work, packed, so that a loop of dynamic length does that work and no other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Bool, Int

PACK = 16  # rows at once: fewer waste less on the last pack, more cost fewer turns of the loop


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


def again(work: Callable[[Any], Any], which: Bool[Array, " n"], rows: Any, into: Any) -> Any:
    """Apply `work` to some rows, packed, `PACK` at a time, in a loop that is as long as needed.

    Args:
        work: from `PACK` rows of `rows` to as many of `into`.
        which: the rows.
        rows: arrays [N, ...].
        into: arrays [N, ...].

    Returns:
        `into`, where the rows have been replaced.
    """
    packed, turns = pack(which, PACK)

    def one(j: Array, into: Any) -> Any:
        row = lax.dynamic_slice_in_dim(packed, j * PACK, PACK)
        some = jax.tree.map(lambda x: x.at[row].get(mode="clip"), rows)
        return jax.tree.map(lambda x, new: x.at[row].set(new, mode="drop"), into, work(some))

    return lax.fori_loop(0, turns, one, into)
