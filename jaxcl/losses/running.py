"""A running selection: the k largest of each row, of blocks of scores that come one after another.

Three ways with one result, told apart by `Plan.prune`:

    None      the k kept so far and the whole block go into one top-k: b + k elements a row a block
    "rows"    a row whose block has no score above its k-th so far skips the block (Xu 2026); the rows that do not skip
              are packed and merged a few at a time, so that what is skipped is never computed
    "blocks"  the k sub-blocks with the largest maxima are kept, scores and all, and one top-k at the end reads these
              k · w scores and no others: a score outside has k others, the maxima, that are at least as large

Of equal scores at the edge the third does not always keep the lowest column. Such rows are reported, and selected again
the first way.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxcl.losses.packing import again
from jaxcl.losses.partial import Work, no_work, work_of_subblocks
from jaxcl.losses.plan import Plan
from jaxcl.losses.subblocks import largest_of, strided, take
from jaxcl.losses.topk import top_k
from jaxcl.losses.varying import full_like

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Bool, Float, Int


class Kept(NamedTuple):
    """The k largest scores so far.

    Attributes:
        values: [N, k], −inf where there was none.
        places: [N, k] of their columns.
        merges: [N] blocks that were merged.
        elements: [N] scores that went into these merges.
    """

    values: Float[Array, "n k"]
    places: Int[Array, "n k"]
    merges: Int[Array, " n"]
    elements: Int[Array, " n"]


class Best(NamedTuple):
    """The k + 1 sub-blocks with the largest maxima so far, in their order.

    The last is there for its maximum, the largest of those left out, which says where there may be a tie. It is masked
    in the end, not sliced off: where a result of top_k is sliced, XLA's CPU code sorts whole rows instead.

    Attributes:
        maxima: [N, k + 1].
        scores: [N, w, k + 1] all of theirs.
        places: [N, k + 1] of their first columns.
    """

    maxima: Float[Array, "n k1"]
    scores: Float[Array, "n w k1"]
    places: Int[Array, "n k1"]


def begin(plan: Plan, like: Float[Array, "n d"]) -> Kept | Best:
    """Nothing kept yet.

    Args:
        plan: static choices.
        like: anchors; what is kept varies over the same mesh axes.

    Returns:
        What `update` takes.
    """
    rows, kept = like.shape[0], (plan.top_k or 0) + (plan.prune == "blocks")
    values, places = full_like(like, (rows, kept), -jnp.inf), full_like(like, (rows, kept), 0, jnp.int32)
    if plan.prune == "blocks":
        return Best(values, full_like(like, (rows, plan.sub, kept), -jnp.inf), places)
    none = full_like(like, (rows,), 0, jnp.int32)
    return Kept(values, places, none, none)


def update(plan: Plan, kept: Kept | Best, block: Float[Array, "n b"], start: Int[Array, ""]) -> tuple[Any, Array]:
    """The selection with one more block.

    Args:
        plan: static choices.
        kept: what `begin` or `update` returned.
        block: scores, −inf where a column does not count.
        start: place of its first column.

    Returns:
        The selection, and the largest score of each row.
    """
    if isinstance(kept, Best):
        maxima = jnp.max(strided(block, plan.sub), axis=1)
        return _update_best(kept, block, maxima, start), jnp.max(maxima, axis=1)
    largest = jnp.max(block, axis=1)
    if plan.top_k is None:
        return kept, largest
    if plan.prune is None:
        return _merge(kept, block, start), largest
    need = ~(largest <= jnp.min(kept.values, axis=1))  # so that a NaN is merged
    return again(lambda some: _merge(some[0], some[1], start), need, (kept, block), kept), largest


def end(plan: Plan, kept: Kept | Best) -> tuple[Array, Array, Bool[Array, " n"] | None]:
    """The result.

    Args:
        plan: static choices.
        kept: the selection after all blocks.

    Returns:
        Values and places [N, k], largest first; and rows in which places of the smallest value may not be the lowest,
        None where that cannot be.
    """
    if isinstance(kept, Kept):
        return kept.values, kept.places, None
    found = largest_of(kept.maxima, kept.scores)
    first = jnp.take_along_axis(kept.places, found.subblock, axis=1)
    return found.values, first + found.line * (plan.width // plan.sub), found.tied


def work_of(plan: Plan, kept: Kept | Best, tied: Bool[Array, " n"] | None, widths: list[int]) -> Work:
    """What the selection took.

    Args:
        plan: static choices.
        kept: the selection after all blocks.
        tied: rows that were selected again.
        widths: columns of each block.

    Returns:
        Counts for each row.
    """
    if isinstance(kept, Kept):
        blocks, none = len(widths), jnp.zeros_like(kept.merges)
        skipped = blocks - kept.merges if plan.prune == "rows" else none
        return no_work(none)._replace(rows_tested=none + blocks, rows_skipped=skipped, elements_selected=kept.elements)
    return work_of_subblocks(kept.places[:, 0], widths, plan.sub, plan.top_k or 0, tied)


def _merge(kept: Kept, block: Array, start: Array) -> Kept:
    """The k largest of those kept and a whole block; kept ones are to the left, and win ties."""
    k = kept.values.shape[1]
    values, found = top_k(jnp.concatenate([kept.values, block], axis=1), k)
    old = jnp.take_along_axis(kept.places, jnp.minimum(found, k - 1), axis=1, mode="clip")
    elements = kept.elements + block.shape[1] + jnp.where(kept.merges > 0, k, 0)
    return Kept(values, jnp.where(found < k, old, start + found - k), kept.merges + 1, elements)


def _update_best(kept: Best, block: Array, maxima: Array, start: Array) -> Best:
    """The sub-blocks with the largest maxima, of those kept and those of a block."""
    width, slots = kept.scores.shape[1:]
    values, found = top_k(jnp.concatenate([kept.maxima, maxima], axis=1), slots)
    old, before, new = found < slots, jnp.minimum(found, slots - 1), jnp.maximum(found - slots, 0)

    scores = jnp.where(old[:, None], take(kept.scores, before), take(strided(block, width), new))
    places = jnp.where(old, jnp.take_along_axis(kept.places, before, axis=1, mode="clip"), start + new)
    return Best(values, scores, places)
