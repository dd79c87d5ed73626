"""The k largest of each row without a sort: an interval of scores is halved until just k are above its middle.

Each turn counts the scores above a middle, which vector instructions do; a row is ready as soon as it counts k, after
some 15 turns for scores of random embeddings. Scores are halved as whole numbers of the same order, so that 32 turns
always suffice; of equal scores at the edge the lowest columns are found the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from jaxcl.losses.marked import places_of, values_at

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Bool, Float, Int


def bound(scores: Float[Array, "n c"], k: int) -> Float[Array, " n"]:
    """A number that just k of a row's scores reach; with equal scores at the edge the k-th largest.

    Args:
        scores: [N, C] float32.
        k: from 1 to C.

    Returns:
        [N].

    >>> bool(2 < bound(jnp.array([[1.0, 5.0, 2.0, 4.0]]), 2)[0] <= 4)
    True
    """
    return lax.bitcast_convert_type(_swap(_bound(_ordered(scores), k)), jnp.float32)


def largest(
    scores: Float[Array, "n c"], columns: Int[Array, "n c"], k: int
) -> tuple[Float[Array, "n k"], Int[Array, "n k"]]:
    """The k largest of each row.

    Args:
        scores: [N, C] float32.
        columns: [N, C] their numbers, of which the lowest win among equal scores.
        k: how many, from 1 to C.

    Returns:
        Values and numbers [N, k], in any order.

    >>> [x.tolist() for x in largest(jnp.array([[1.0, 5.0, 5.0, 5.0]]), jnp.array([[3, 2, 1, 0]]), 2)]
    [[[5.0, 5.0]], [[1, 0]]]
    """
    if k == scores.shape[1]:
        return scores, columns
    places, _ = places_of(_marks(_ordered(scores), columns, k), k)
    values, numbers = (values_at(x, places) for x in (scores, columns))
    return values, numbers


def _ordered(scores: Float[Array, "n c"]) -> Int[Array, "n c"]:
    """Whole numbers in the order of the scores, as `lax.top_k` orders them: −0 below 0."""
    return _swap(lax.bitcast_convert_type(scores, jnp.int32))


def _swap(bits: Array) -> Array:
    """From the bits of a float to a number in its order, and back."""
    return bits ^ (lax.shift_right_arithmetic(bits, 31) & 0x7FFFFFFF)


def _marks(numbers: Int[Array, "n c"], columns: Int[Array, "n c"], k: int) -> Bool[Array, "n c"]:
    """The k largest of each row."""
    cut = _bound(numbers, k)[:, None]
    above, at = numbers > cut, numbers == cut
    spare = _count(numbers >= cut) > k
    first, last = jnp.min(columns, axis=1), jnp.max(columns, axis=1)
    edge = _halve(
        jnp.where(spare, first, last), last, lambda middle: _count(above | (at & (columns <= middle[:, None]))), k, True
    )
    return above | (at & (columns <= edge[:, None]))


def _bound(numbers: Int[Array, "n c"], k: int) -> Int[Array, " n"]:
    """What just k numbers of a row reach, or the k-th largest.

    It lies between the smallest of the maxima of k groups, as each group has one so large, and the maximum.
    """
    groups = numbers[:, : numbers.shape[1] // k * k].reshape(numbers.shape[0], -1, k)
    low, high = jnp.min(jnp.max(groups, axis=1), axis=1), jnp.max(numbers, axis=1)
    return _halve(low, high, lambda middle: _count(numbers >= middle[:, None]), k, False)


def _halve(
    low: Int[Array, " n"], high: Int[Array, " n"], count: Callable[[Array], Array], k: int, rising: bool
) -> Int[Array, " n"]:
    """The number at which a count reaches k.

    Args:
        low: [N] bounds, included.
        high: [N].
        count: from numbers [N] to counts [N].
        k: what to reach.
        rising: whether counts rise with the number, and the smallest one is meant; else they fall, and the largest.

    Returns:
        [N]; where a number with a count of exactly k was met, that one.
    """

    def turn(bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        # their mean without overflow, rounded so that the interval always shrinks
        middle = (low & high) + ((low ^ high) >> 1) if rising else (low | high) - ((low ^ high) >> 1)
        found = count(middle)
        enough, ready = found >= k, (found == k) & (low < high)
        if rising:
            low, high = jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)
        else:
            low, high = jnp.where(enough, middle, low), jnp.where(enough, high, middle - 1)
        return jnp.where(ready, middle, low), jnp.where(ready, middle, high)

    return lax.while_loop(lambda bounds: jnp.any(bounds[0] < bounds[1]), turn, (low, high))[0]


def _count(marks: Bool[Array, "n c"]) -> Int[Array, " n"]:
    """Marks of each row."""
    return jnp.sum(marks.astype(jnp.int32), axis=1)
