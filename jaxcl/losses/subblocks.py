"""The k largest of each row from the sub-blocks that have the largest maxima.

A score outside of the k sub-blocks with the largest maxima has k others, these maxima, that are at least as large: only
k · w of the scores need a selection, and the maxima one of their own. Sub-blocks are strided, columns s, s + J, s + 2J
and so on of J · w, so that CPUs find their maxima with vector instructions. The price: of equal scores at the edge not
always the lowest column is kept; such rows are reported.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import jax.numpy as jnp

from jaxcl.losses.topk import top_k

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Bool, Float, Int


class Found(NamedTuple):
    """The k largest, largest first.

    Attributes:
        values: [N, k].
        subblock: [N, k] which of the kept sub-blocks each is in.
        line: [N, k] its line there.
        tied: [N] whether places of the smallest value may not be the lowest.
    """

    values: Float[Array, "n k"]
    subblock: Int[Array, "n k"]
    line: Int[Array, "n k"]
    tied: Bool[Array, " n"]


def strided(scores: Float[Array, "n c"], width: int) -> Float[Array, "n w j"]:
    """Sub-block s is [:, :, s]."""
    return scores.reshape(scores.shape[0], width, -1)


def take(subblocks: Float[Array, "n w j"], which: Int[Array, "n k"]) -> Float[Array, "n w k"]:
    """Some sub-blocks."""
    return jnp.take_along_axis(subblocks, which[:, None, :], axis=2, mode="clip")


def largest_of(maxima: Float[Array, "n k1"], scores: Float[Array, "n w k1"]) -> Found:
    """The k largest scores of k + 1 sub-blocks, of which the last is there for its maximum.

    That is the largest of those left out, which says where there may be a tie. It is masked, not sliced off: where a
    result of top_k is sliced, XLA's CPU code sorts whole rows instead.

    Args:
        maxima: of the sub-blocks, the largest first.
        scores: theirs.

    Returns:
        What was found.
    """
    width, slots = scores.shape[1:]
    line = jnp.arange(width, dtype=jnp.int32)[None, :, None]
    counted = jnp.arange(slots) < slots - 1
    first = jnp.min(jnp.where(scores == maxima[:, None], line, width - 1), axis=1)
    # maxima first: to TopK on a CPU a score above the k-th so far costs ten times what one below it does
    rest = jnp.where(counted & (line != first[:, None]), scores, -jnp.inf).reshape(-1, width * slots)
    candidates = jnp.concatenate([jnp.where(counted, maxima, -jnp.inf), rest], axis=1)
    values, found = top_k(candidates, slots - 1)
    subblock = found % slots
    lines = jnp.where(found < slots, jnp.take_along_axis(first, subblock, axis=1), found // slots - 1)
    kth = jnp.min(values, axis=1)
    tied = (jnp.sum(candidates >= kth[:, None], axis=1) >= slots) | (jnp.min(maxima, axis=1) == kth)
    return Found(values, subblock, lines, tied & (kth > -jnp.inf))
