"""Ways to find the k largest of each row, measured where a loss uses them: after the product, a strip at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

# GPUs: lax.top_k is a kernel up to k = 16, a sort of whole rows above. RAFT's kernels reach k = 256, but equal values
# come in any order: newer versions of JAX ask for them by an argument, older ones by an option of the compiler.
HAS_UNSTABLE = "is_stable" in inspect.signature(lax.top_k).parameters
RAFT: Mapping[str, Any] = {} if HAS_UNSTABLE else {"xla_gpu_experimental_use_raft_select_k": True}

Select = Callable[[jax.Array, int], tuple[jax.Array, jax.Array]]


class Selection(NamedTuple):
    """One way.

    Attributes:
        select: scores [b, n] and k to values and columns [b, k].
        options: of the compiler.
    """

    select: Select
    options: Mapping[str, Any]


def selections(platform: str) -> dict[str, Selection]:
    """All ways of this version of JAX.

    Args:
        platform: "gpu" or another.

    Returns:
        Name and way.

    >>> "two levels" in selections("cpu")
    True
    """
    ways = {"lax.top_k": Selection(lax.top_k, {})}
    if HAS_UNSTABLE:
        unstable: dict[str, Any] = {"is_stable": False}  # not an argument that every version has
        ways["lax.top_k, is_stable=False"] = Selection(partial(lax.top_k, **unstable), {})
    elif platform == "gpu":
        ways["lax.top_k, RAFT"] = Selection(lax.top_k, RAFT)
    ways["two levels"] = Selection(two_levels, {})
    ways["approx_max_k, recall 1"] = Selection(partial(lax.approx_max_k, recall_target=1.0), {})
    return ways


def two_levels(scores: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The k largest, exactly: those of the k groups with the largest maxima.

    A column outside these groups has k others that are at least as large, their maxima.

    Args:
        scores: [b, n] float32.
        k: at most n.

    Returns:
        Values and columns [b, k]; of equal values any.

    >>> [x.tolist() for x in two_levels(jnp.array([[1.0, 5.0, 2.0, 4.0, 3.0]]), 2)]
    [[[5.0, 4.0]], [[1, 3]]]
    """
    rows, n = scores.shape
    size = group_size(n, k)
    groups = jnp.pad(scores, ((0, 0), (0, -n % size)), constant_values=-jnp.inf).reshape(rows, -1, size)
    _, best = lax.top_k(jnp.max(groups, axis=2), k)
    candidates = jnp.take_along_axis(groups, best[:, :, None], axis=1).reshape(rows, k * size)
    values, place = lax.top_k(candidates, k)
    group = jnp.take_along_axis(best, place // size, axis=1)
    return values, group * size + place % size


def group_size(n: int, k: int) -> int:
    """Columns a group: a power of two near √(n/k), where both levels are of one length; at least k groups.

    >>> group_size(65536, 64)
    32
    """
    size = 1
    while (2 * size) ** 2 * k <= n:
        size *= 2
    return size


def select_in_strips(queries: jax.Array, select: Select, k: int, block: int) -> tuple[jax.Array, jax.Array]:
    """Product and selection of every row, in float32 scores.

    Args:
        queries: [n, d], n a multiple of the block.
        select: one way.
        k: columns kept.
        block: rows of a strip.

    Returns:
        Values and columns [n, k].
    """
    strips = queries.reshape(-1, block, queries.shape[1])
    found = lax.map(lambda strip: select(product(strip, queries), k), strips)
    values, columns = (x.reshape(queries.shape[0], k) for x in found)
    return values, columns


def row_maximum(queries: jax.Array) -> jax.Array:
    """The product and a maximum a row, all at once: what no selection can do without.

    Args:
        queries: [n, d].

    Returns:
        [n] float32.
    """
    return jnp.max(product(queries, queries), axis=1)


def row_maximum_in_strips(queries: jax.Array, block: int) -> jax.Array:
    """`row_maximum` of one strip after another, which spares caches.

    On a GPU the scores are written and read: no selection from written scores is faster.

    Args:
        queries: [n, d].
        block: rows of a strip.

    Returns:
        [n] float32, n down to whole strips.
    """
    whole = queries.shape[0] // block
    strips = queries[: whole * block].reshape(whole, block, -1)
    return lax.map(lambda strip: jnp.max(lax.optimization_barrier(product(strip, queries)), axis=1), strips).ravel()


def product(left: jax.Array, right: jax.Array) -> jax.Array:
    """Similarities in float32, of float32 without rounding to fewer bits.

    Args:
        left: [a, d].
        right: [b, d].

    Returns:
        [a, b].
    """
    precision = lax.Precision.HIGHEST if left.dtype == jnp.float32 else lax.Precision.DEFAULT
    return jnp.matmul(left, right.T, precision=precision, preferred_element_type=jnp.float32)
