"""The inputs of a contrastive loss, checked once: a wrong one is a ValueError that names it."""

from __future__ import annotations

import contextlib
import math
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

with contextlib.suppress(ImportError):
    from jaxtyping import Array, ArrayLike, Bool, Float, Int

NOBODY = -1  # a query of no group
TINY = 1e-37  # float32 numbers below 1.2e-38 have an infinite inverse, or are 0 to fast code
STRANGER = -2  # a column of no group; the two never match


class Bank(NamedTuple):
    """A queue of this device: its rows as stored, what each belongs to, and which of them count."""

    values: Float[Array, "q d"]
    groups: Int[Array, " q"]
    valid: Bool[Array, " q"]
    filled: Int[Array, ""]  # valid rows over all devices


class Problem(NamedTuple):
    """Checked inputs. Groups are ≥ 0, or `NOBODY` for a query and `STRANGER` for a column, so that == means partner."""

    queries: Float[Array, "n d"]
    keys: Float[Array, "m d"]
    query_groups: Int[Array, " n"]
    key_groups: Int[Array, " m"]
    temperature: Float[Array, ""]
    partner: Int[Array, " n"] | None  # key number of the only positive, as given; one that is no key names none
    bank: Bank | None


def check_problem(
    queries: ArrayLike,
    keys: ArrayLike,
    query_groups: ArrayLike,
    key_groups: ArrayLike,
    *,
    temperature: ArrayLike,
    positive_index: ArrayLike | None,
    queue: ArrayLike | None,
    queue_groups: ArrayLike | None,
    queue_filled: ArrayLike | None,
    exclude_diagonal: bool,
    devices: int = 1,
    axis: str | None = None,
) -> Problem:
    """Arrays with the right ranks, lengths and dtypes.

    Args:
        queries: see `infonce`, as all others.
        keys: candidates.
        query_groups: what each query belongs to.
        key_groups: what each key belongs to.
        temperature: divides the cosines.
        positive_index: the only positive.
        queue: more negatives.
        queue_groups: what each of them belongs to.
        queue_filled: how many of them count.
        exclude_diagonal: query i and key i are the same.
        devices: that share the queue; `queue_filled` counts the rows of all.
        axis: name of the mesh axis over which they are spread.

    Returns:
        The problem, groups and positives in one coding.

    Raises:
        ValueError: what does not fit, by name.
    """
    queries, keys = _embeddings("queries", queries), _embeddings("keys", keys)
    (n, d), m = queries.shape, keys.shape[0]
    if keys.shape[1] != d:
        raise ValueError(f"keys has {keys.shape[1]} dimensions, must have {d} as queries")
    if exclude_diagonal and n != m:
        raise ValueError(f"exclude_diagonal=True needs as many keys as queries, got {n} queries and {m} keys")
    query_groups = _numbers("query_groups", query_groups, n)
    key_groups = _numbers("key_groups", key_groups, m)
    partner = None
    if positive_index is not None:
        partner = _numbers("positive_index", positive_index, n)
    return Problem(
        queries,
        keys,
        jnp.where(query_groups < 0, NOBODY, query_groups),
        jnp.where(key_groups < 0, STRANGER, key_groups),
        _temperature(temperature),
        partner,
        _bank(queue, queue_groups, queue_filled, d, devices, axis),
    )


def check_top_k(
    top_k: Any,
    *,
    keys: int,
    queue: int | None,
    use_key_negatives: bool,
    exclude_diagonal: bool,
    skip_hardest: float = 0.0,
) -> int:
    """Most candidates that a query skips; ValueError unless `top_k` is None or from 1 to the number of those left."""
    if not use_key_negatives and not queue:
        raise ValueError(f"use_key_negatives=False needs a queue with at least one row, got queue of {queue} rows")
    if isinstance(skip_hardest, bool) or not isinstance(skip_hardest, int | float) or not 0 <= skip_hardest < 1:
        raise ValueError(f"skip_hardest={skip_hardest!r} must be a number in [0, 1), a share of the candidates")
    if top_k is None:
        if skip_hardest:
            raise ValueError(f"skip_hardest={skip_hardest} needs top_k; top_k=None uses every negative")
        return 0
    limit = keys * use_key_negatives - exclude_diagonal + (queue or 0)
    skip = share_of(skip_hardest, limit)
    if not 1 <= check_count("top_k", top_k) <= limit - skip:
        left = f" less the {skip} that skip_hardest={skip_hardest} leaves out" if skip else ""
        raise ValueError(
            f"top_k={top_k} must be None or in [1, {limit - skip}], the number of candidates of a query{left}"
        )
    return skip


def share_of(share: float, count: Any) -> Any:
    """How many `share` of `count` is, rounded down.

    Args:
        share: in [0, 1).
        count: an int, or an int32 array, of each of which the share is taken.

    Returns:
        The same kind; a share of exactly n in `count` is n, whatever its decimals round to.

    >>> share_of(0.29, 100), share_of(0.29, jnp.array([0, 99, 100])).tolist()
    (29, [0, 28, 29])
    """
    exact = share * (1 + 1e-6) * count
    return int(exact) if isinstance(count, int) else exact.astype(jnp.int32)


def check_tail(tail: str, tail_samples: Any, tail_key: Any, top_k: int | None, skip: int = 0) -> int:
    """Tail negatives to draw, 0 with tail="drop"; ValueError for an unknown tail, or settings that it does not read."""
    if tail not in ("drop", "sampled"):
        raise ValueError(f"tail={tail!r} must be 'drop' or 'sampled'")
    if tail == "drop":
        if tail_samples is not None or tail_key is not None:
            raise ValueError(
                f"tail_samples={tail_samples} and tail_key are read only with tail='sampled', got tail='drop'"
            )
        return 0
    if top_k is None:
        raise ValueError("tail='sampled' needs top_k; top_k=None already uses every negative")
    if skip:
        raise ValueError("tail='sampled' would bring back the negatives that skip_hardest leaves out; one of the two")
    if tail_key is None:
        raise ValueError("tail_key=None must be a random key with tail='sampled'")
    return check_count("tail_samples", tail_samples)


def check_count(name: str, value: Any) -> int:
    """A Python int ≥ 1."""
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if isinstance(value, bool) or count < 1:
        raise ValueError(f"{name}={value!r} must be an int of at least 1")
    return count


def _embeddings(name: str, value: ArrayLike) -> Float[Array, "r d"]:
    """A float matrix with at least one column."""
    array = jnp.asarray(value)
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{name} has shape {array.shape}, must be [rows, dimensions], each at least 1")
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise ValueError(f"{name} has dtype {array.dtype}, must be a float type")
    return array


def _numbers(name: str, value: ArrayLike, length: int) -> Int[Array, " r"]:
    """An int32 vector of a given length."""
    array = jnp.asarray(value)
    if array.shape != (length,):
        raise ValueError(f"{name} has shape {array.shape}, must be ({length},)")
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(f"{name} has dtype {array.dtype}, must be an integer type")
    return array.astype(jnp.int32)


def _temperature(value: ArrayLike) -> Float[Array, ""]:
    """A float32 scalar; its range is checked where its value is known."""
    if not (hasattr(value, "dtype") or isinstance(value, int | float)):
        raise ValueError(f"temperature={value!r} must be a number")
    array = jnp.asarray(value)
    if array.shape != () or not jnp.issubdtype(array.dtype, jnp.number) or jnp.iscomplexobj(array):
        raise ValueError(f"temperature has shape {array.shape} and dtype {array.dtype}, must be a real scalar")
    if not isinstance(array, jax.core.Tracer) and not (math.isfinite(float(array)) and float(array) >= TINY):
        raise ValueError(f"temperature={float(array)} must be finite and above 0, at least {TINY} in float32")
    return array.astype(jnp.float32)


def _bank(
    queue: ArrayLike | None,
    groups: ArrayLike | None,
    filled: ArrayLike | None,
    dimensions: int,
    devices: int,
    axis: str | None,
) -> Bank | None:
    """The queue; without groups a row is everybody's negative."""
    if queue is None:
        for name, value in (("queue_groups", groups), ("queue_filled", filled)):
            if value is not None:
                raise ValueError(f"{name} was given without queue")
        return None
    queue = jnp.asarray(queue)
    if queue.ndim != 2 or queue.shape[1] != dimensions:
        raise ValueError(f"queue has shape {queue.shape}, must be [rows, {dimensions}] as queries")
    if not jnp.issubdtype(queue.dtype, jnp.floating):
        raise ValueError(f"queue has dtype {queue.dtype}, must be a float type")
    size = queue.shape[0]
    groups = jnp.full(size, STRANGER) if groups is None else _numbers("queue_groups", groups, size)
    count = _filled(size * devices if filled is None else filled, size * devices)
    row = jnp.arange(size) + (size * lax.axis_index(axis) if axis else 0)
    return Bank(queue, jnp.where(groups < 0, STRANGER, groups), row < count, count)


def _filled(value: ArrayLike, size: int) -> Int[Array, ""]:
    """The number of valid rows, an int32 scalar in [0, size] where its value is known."""
    array = jnp.asarray(value)
    if array.shape != () or not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(f"queue_filled has shape {array.shape} and dtype {array.dtype}, must be an integer scalar")
    if not isinstance(array, jax.core.Tracer) and not 0 <= int(array) <= size:
        raise ValueError(f"queue_filled={int(array)} must be in [0, {size}], the rows of queue")
    return array.astype(jnp.int32)  # sums with it must not wrap
