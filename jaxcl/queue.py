"""A ring of earlier embeddings: negatives that cost no gradient (He et al. 2020), exact for any size and any batch.

>>> q = push(init(4096, 128), jnp.ones((96, 128)), jnp.arange(96, dtype=jnp.int32))
>>> int(q.filled), int(q.cursor)
(96, 96)
"""

from __future__ import annotations

import contextlib
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

with contextlib.suppress(ImportError):
    from jaxtyping import Array, ArrayLike, Float, Int

EMPTY = -1  # group of an unfilled row
EPS = 1e-12  # squared norm; keeps a zero vector finite


class Queue(NamedTuple):
    """K rows, of which `filled` count; a row is overwritten K pushes after it was written.

    Attributes:
        values: [K, D] unit vectors in the storage type, 0 where unfilled.
        groups: [K] int32, −1 where unfilled.
        cursor: int32 scalar, the row that the next push writes.
        filled: int32 scalar, rows [0, filled) count.
    """

    values: Float[Array, "k d"]
    groups: Int[Array, " k"]
    cursor: Int[Array, ""]
    filled: Int[Array, ""]


def init(size: int, dim: int, dtype: Any = jnp.float16) -> Queue:
    """An empty queue.

    Args:
        size: rows, at least 1.
        dim: dimensions of an embedding, at least 1.
        dtype: storage type, a float type; float16 costs at most 0.0013 in a score at temperature 0.07.

    Returns:
        A queue without a valid row.

    Raises:
        ValueError: a size below 1 or a dtype that is not a float type.

    Example:
        >>> init(8, 2).values.shape
        (8, 2)
    """
    size, dim = _count("size", size), _count("dim", dim)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"dtype={jnp.dtype(dtype)} must be a float type")
    return Queue(jnp.zeros((size, dim), dtype), jnp.full(size, EMPTY, jnp.int32), jnp.int32(0), jnp.int32(0))


# Arguments are ArrayLike so that a wrong shape is the ValueError below, with or without a run-time type checker.
def push(q: Queue, values: ArrayLike, groups: ArrayLike, *, when: ArrayLike = True) -> Queue:
    """Write a batch over the oldest rows: exact first in, first out, whatever the batch size.

    Rows are normalised in float32, then stored; gradients stop here. Of a batch larger than the queue the last K rows
    remain, where they would stand had all been written one after another.

    Args:
        q: the queue.
        values: [B, D], any float dtype, need not be normalised.
        groups: [B] int32 ids.
        when: bool scalar, may be traced; False: nothing is written. To choose between two queues afterwards would take
            the memory of a second one.

    Returns:
        The queue after the push.

    Raises:
        ValueError: values or groups of another shape or type.

    Example:
        >>> push(init(4, 2), jnp.ones((3, 2)), jnp.arange(3)).groups.tolist()
        [0, 1, 2, -1]
    """
    size, dim = q.values.shape
    values, groups = _batch(values, groups, dim)
    batch = values.shape[0]
    kept = min(batch, size)
    rows = (q.cursor + (batch - kept) + jnp.arange(kept, dtype=jnp.int32)) % size  # only modulo indices wrap
    rows = jnp.where(when, rows, size + jnp.arange(kept, dtype=jnp.int32))  # rows beyond the last are dropped
    new = unit(lax.stop_gradient(values[batch - kept :])).astype(q.values.dtype)
    return Queue(
        q.values.at[rows].set(new, mode="drop", unique_indices=True),
        q.groups.at[rows].set(groups[batch - kept :], mode="drop", unique_indices=True),
        jnp.where(when, (q.cursor + batch) % size, q.cursor),
        jnp.where(when, jnp.minimum(q.filled + batch, size), q.filled),
    )


def resize(q: Queue, new_size: int) -> Queue:
    """The same rows in a queue of another size; the newest survive.

    Args:
        q: the queue.
        new_size: rows, at least 1.

    Returns:
        A queue whose rows [0, filled) count, oldest first.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> resize(push(init(4, 2), jnp.ones((6, 2)), jnp.arange(6)), 3).groups.tolist()
        [3, 4, 5]
    """
    new_size = _count("new_size", new_size)
    return _compact(q, jnp.minimum(q.filled, new_size), new_size)


def newest(q: Queue, count: ArrayLike) -> Queue:
    """The same queue as if only its newest rows had ever been pushed; no shape changes, so `count` may be traced.

    Rows of a ring count as [0, filled), and its newest lie behind the cursor: they are moved to the front, oldest
    first. Where devices share the rows, this sends them around: the price of a length that changes without a new
    program.

    Args:
        q: the queue.
        count: rows that remain, an integer; at least 0, and more than are filled means all of them.

    Returns:
        A queue of the same size; what is not among the newest is empty.

    Example:
        >>> newest(push(init(4, 2), jnp.ones((6, 2)), jnp.arange(6)), 3).groups.tolist()
        [3, 4, 5, -1]
    """
    return _compact(q, jnp.clip(jnp.asarray(count, jnp.int32), 0, q.filled), q.values.shape[0])


def norms(q: Queue) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The smallest and the largest length of its valid rows; both 1 where there is none.

    Args:
        q: the queue.

    Returns:
        Two float32 scalars. Stored in half precision, a row of length 1 may be 1 ± 0.001.

    Example:
        >>> [float(x) for x in norms(push(init(4, 2), jnp.array([[3.0, 0.0]]), jnp.arange(1)))]
        [1.0, 1.0]
    """
    lengths = jnp.linalg.norm(q.values.astype(jnp.float32), axis=1)
    lengths = jnp.where(jnp.arange(lengths.shape[0]) < q.filled, lengths, 1.0)
    return jnp.min(lengths), jnp.max(lengths)


def sample(q: Queue, key: Array, num_negatives: int) -> tuple[Float[Array, "s d"], Int[Array, " s"]]:
    """Random valid rows, each at most once.

    Where fewer rows are valid than asked for, all of them come first; the rest are zeros of group −1 and must not be
    counted: give the loss `queue_filled=jnp.minimum(q.filled, num_negatives)`.

    Args:
        q: the queue.
        key: random key.
        num_negatives: rows to draw, between 1 and the size of the queue.

    Returns:
        Values [num_negatives, D] in the storage type, groups [num_negatives].

    Raises:
        ValueError: more rows than the queue has, or fewer than 1.

    Example:
        >>> values, groups = sample(push(init(4, 2), jnp.ones((4, 2)), jnp.arange(4)), jax.random.key(0), 2)
        >>> values.shape
        (2, 2)
    """
    size = q.values.shape[0]
    if _count("num_negatives", num_negatives) > size:
        raise ValueError(f"num_negatives={num_negatives} must be at most {size}, the size of the queue")
    lottery = jnp.where(jnp.arange(size) < q.filled, jax.random.uniform(key, (size,)), -1.0)
    _, rows = lax.top_k(lottery, num_negatives)
    real = jnp.arange(num_negatives) < q.filled
    values = jnp.where(real[:, None], q.values[rows], jnp.zeros((), q.values.dtype))
    return values, jnp.where(real, q.groups[rows], EMPTY)


def drawn(q: Queue, key: Array, num_negatives: int) -> Queue:
    """A queue of some random valid rows, each at most once.

    Args:
        q: the queue.
        key: random key.
        num_negatives: rows to draw, between 1 and the size of the queue.

    Returns:
        A queue of `num_negatives` rows, of which as many are filled as there were valid ones.

    Example:
        >>> drawn(push(init(4, 2), jnp.ones((3, 2)), jnp.arange(3)), jax.random.key(0), 2).filled
        Array(2, dtype=int32)
    """
    values, groups = sample(q, key, num_negatives)
    return Queue(values, groups, jnp.int32(0), jnp.minimum(q.filled, num_negatives))


def _compact(q: Queue, filled: Int[Array, ""], new_size: int) -> Queue:
    """The newest `filled` rows first, in order, in a queue of `new_size` rows."""
    place = jnp.arange(new_size, dtype=jnp.int32)
    rows = (q.cursor - filled + place) % q.values.shape[0]
    real = place < filled
    values = jnp.where(real[:, None], q.values[rows], jnp.zeros((), q.values.dtype))
    return Queue(values, jnp.where(real, q.groups[rows], EMPTY), filled % new_size, filled)


def unit(values: Float[Array, "b d"]) -> Float[Array, "b d"]:
    """Rows divided by their norm, in float32: half-precision squares overflow.

    >>> unit(jnp.array([[0.0, 4.0]])).tolist()
    [[0.0, 1.0]]
    """
    values = values.astype(jnp.float32)
    return values * lax.rsqrt(jnp.sum(values * values, axis=1, keepdims=True) + EPS)


def _batch(values: ArrayLike, groups: ArrayLike, dim: int) -> tuple[Float[Array, "b d"], Int[Array, " b"]]:
    """A batch of the right shapes and types."""
    values, groups = jnp.asarray(values), jnp.asarray(groups)
    if values.ndim != 2 or values.shape[1] != dim:
        raise ValueError(f"values has shape {values.shape}, must be [rows, {dim}] as the queue")
    if not jnp.issubdtype(values.dtype, jnp.floating):
        raise ValueError(f"values has dtype {values.dtype}, must be a float type")
    if groups.shape != values.shape[:1] or not jnp.issubdtype(groups.dtype, jnp.integer):
        raise ValueError(
            f"groups has shape {groups.shape} and dtype {groups.dtype}, must be ({values.shape[0]},) int32"
        )
    return values, groups.astype(jnp.int32)


def _count(name: str, value: Any) -> int:
    """A Python int ≥ 1."""
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if isinstance(value, bool) or count < 1:
        raise ValueError(f"{name}={value!r} must be an int of at least 1")
    return count
