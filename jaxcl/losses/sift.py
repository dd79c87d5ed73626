"""The k largest of each row out of the few scores above a bound that the maxima of sub-blocks give.

Of J sub-blocks, k have a maximum that reaches the k-th largest maximum: so do at least k scores, and of all scores few
more. Only these are selected from. It takes a CPU a tenth of a selection from the whole row; a GPU has kernels.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import jax.numpy as jnp

from jaxcl.losses.halving import bound, largest
from jaxcl.losses.marked import places_of, values_at
from jaxcl.losses.packing import again
from jaxcl.losses.topk import top_k

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Float, Int

ROOM = 2.5  # slots for each of k: where both views of an image stand in one sub-block, 2 k scores may reach the bound


class Sifted(NamedTuple):
    """The k largest, in any order, and what it took.

    Attributes:
        values: [N, k].
        places: [N, k].
        above: [N] scores that reached the bound.
        skipped: [N] sub-blocks that had none.
        whole: [N] whether there were more than slots, and the selection was from the whole row.
    """

    values: Float[Array, "n k"]
    places: Int[Array, "n k"]
    above: Int[Array, " n"]
    skipped: Int[Array, " n"]
    whole: Array


def sift(scores: Float[Array, "n c"], k: int, width: int) -> Sifted:
    """`top_k` by way of a bound.

    Args:
        scores: [N, C].
        k: how many.
        width: scores of a sub-block; at least k of them are needed.

    Returns:
        What was found; of equal values at the edge the lowest places.

    >>> sift(jnp.array([[1.0, 5.0, 2.0, 4.0]]), 1, 2).places.tolist()
    [[1]]
    """
    columns = scores.shape[1]
    filled = jnp.pad(scores, ((0, 0), (0, -columns % width)), constant_values=-jnp.inf)
    maxima = jnp.max(filled.reshape(scores.shape[0], width, -1), axis=1)  # strided, for vector instructions
    least = bound(maxima, k)[:, None]
    places, above = places_of((scores >= least) & (scores > -jnp.inf), slots_for(k, columns))
    slot = jnp.arange(places.shape[1], dtype=jnp.int32)
    used = slot < above[:, None]
    candidates = jnp.where(used, values_at(scores, places), -jnp.inf)
    places = jnp.where(used, places, columns + slot)  # nowhere, but each elsewhere
    found, whole = largest(candidates, places, k), above > places.shape[1]
    values, places = again(lambda some: top_k(some, k), whole, scores, found)
    return Sifted(values, places, above, jnp.sum(maxima < least, axis=1, dtype=jnp.int32), whole)


def slots_for(k: int, columns: int) -> int:
    """Scores that may reach the bound before the whole row is taken.

    >>> slots_for(64, 8192)
    160
    """
    return min(int(ROOM * k), columns)
