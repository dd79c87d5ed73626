"""A queue whose rows wait in the host's memory, in blocks that are moved and replaced whole.

  values  a tuple of blocks [R, D] in pinned host memory, each split over the devices; the last one may be longer than
          the queue, and its rows beyond are never filled
  groups, cursor, filled  on the devices: 4 bytes a row

Nothing is ever written into host memory: a block is brought to the device, some of its rows are replaced there, and the
result takes its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from jaxcl.losses.met import Met
from jaxcl.mesh import along_data, on_host, replicated
from jaxcl.queue import EMPTY, unit

BLOCK_ROWS = 1 << 15  # 16 MiB at 256 dimensions of float16: a transfer that is worth its start


class HostQueue(NamedTuple):
    """K rows, as `jaxcl.queue.Queue`.

    Attributes:
        values: blocks [R, D] of unit vectors in the storage type.
        groups: [K] int32, −1 where unfilled.
        cursor: int32 scalar, the row that the next push writes.
        filled: int32 scalar, rows [0, filled) count.
    """

    values: tuple[Float[Array, "r d"], ...]
    groups: Int[Array, " k"]
    cursor: Int[Array, ""]
    filled: Int[Array, ""]


class Resident(NamedTuple):
    """The first block, and what was found in the others: what an objective is given as its queue.

    Attributes:
        values: [R, D], the first block.
        groups: [R].
        filled: of these rows.
        met: of each anchor, in all other blocks; None where there is none.
        others: rows of the other blocks, an int.
    """

    values: Float[Array, "r d"]
    groups: Int[Array, " r"]
    filled: Int[Array, ""]
    met: Met | None
    others: int


def init(size: int, dim: int, dtype: Any = jnp.float16, *, devices: int = 1, rows: int = BLOCK_ROWS) -> HostQueue:
    """An empty queue of NumPy arrays, to be put where `placed` says.

    Args:
        size: rows, at least 1.
        dim: dimensions of an embedding.
        dtype: storage type.
        devices: that share each block, and so divide its rows.
        rows: of a block, at most.

    Returns:
        As many blocks as are needed.

    >>> [block.shape for block in init(10, 2, rows=4).values]
    [(4, 2), (4, 2), (4, 2)]
    """
    each = -(-min(size, rows) // devices) * devices
    blocks = tuple(np.zeros((each, dim), jnp.dtype(dtype)) for _ in range(0, size, each))
    empty: Any = blocks, np.full(size, EMPTY, np.int32), np.int32(0), np.int32(0)
    return HostQueue(*empty)


def placed(q: HostQueue, mesh: Mesh) -> Any:
    """Where its arrays lie: blocks on the host, by row over `data`, the rest on every device."""
    everywhere: Any = replicated(mesh)
    host: Any = on_host(along_data(mesh))
    return HostQueue(tuple(host for _ in q.values), everywhere, everywhere, everywhere)


def touched(size: int, each: int, cursor: int, batch: int) -> Iterator[int]:
    """The blocks that a push writes to.

    Args:
        size: rows of the queue.
        each: rows of a block.
        cursor: of the queue.
        batch: rows that are pushed.

    Yields:
        Their numbers, ascending.

    >>> list(touched(10, 4, 9, 2))
    [0, 2]
    """
    rows = (cursor + np.arange(max(batch - size, 0), batch)) % size
    yield from np.unique(rows // each).tolist()


def as_rows(values: Float[Array, "b d"], size: int, dtype: Any) -> Float[Array, "k d"]:
    """Of a batch the rows that a queue keeps, as it stores them."""
    return unit(jax.lax.stop_gradient(values[max(values.shape[0] - size, 0) :])).astype(dtype)


def write(
    block: Float[Array, "r d"], rows: Float[Array, "k d"], cursor: Int[Array, ""], start: Any, *, size: int, batch: int
) -> Float[Array, "r d"]:
    """A block after a push.

    Args:
        block: before it.
        rows: from `as_rows`.
        cursor: of the queue before it.
        start: number of the block's first row.
        size: rows of the queue.
        batch: rows that were pushed, of which the last may be all that is kept.

    Returns:
        The block.
    """
    number = start + jnp.arange(block.shape[0], dtype=jnp.int32)
    kept = rows.shape[0]
    age = (number - cursor - (batch - kept)) % size
    new = rows[jnp.minimum(age, kept - 1)]
    return jnp.where(((age < kept) & (number < size))[:, None], new, block)


def pushed(q: HostQueue, groups: Int[Array, " b"]) -> HostQueue:
    """What a push changes but for the values, by the rule of `jaxcl.queue.push`.

    Args:
        q: before it; its values are not read.
        groups: [B] int32.

    Returns:
        The queue after it, with the same values.
    """
    size, batch = q.groups.shape[0], groups.shape[0]
    kept = min(batch, size)
    rows = (q.cursor + (batch - kept) + jnp.arange(kept, dtype=jnp.int32)) % size
    new = q.groups.at[rows].set(groups[batch - kept :].astype(jnp.int32), unique_indices=True)
    return HostQueue(q.values, new, (q.cursor + batch) % size, jnp.minimum(q.filled + batch, size))


def lengths(block: Float[Array, "r d"], filled: Int[Array, ""]) -> Float[Array, " 2"]:
    """The smallest and the largest length of a block's first rows, 1 where there is none, as `jaxcl.queue.norms`."""
    found = jnp.linalg.norm(block.astype(jnp.float32), axis=1)
    found = jnp.where(jnp.arange(found.shape[0]) < filled, found, 1.0)
    return jnp.stack([jnp.min(found), jnp.max(found)])
