"""What some columns contribute to an anchor, how contributions merge, and the loss they amount to."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxcl.losses.arguments import share_of
from jaxcl.losses.columns import NOTHING
from jaxcl.losses.plan import Plan
from jaxcl.losses.tail import choose_tail

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Bool, Float, Int


class Work(NamedTuple):
    """What the selection took, for each row; what the counts mean stands in `Stats`."""

    rows_tested: Int[Array, " n"]
    rows_skipped: Int[Array, " n"]
    elements_selected: Int[Array, " n"]
    subblocks_tested: Int[Array, " n"]
    subblocks_skipped: Int[Array, " n"]
    maxima_selected: Int[Array, " n"]


def no_work(like: Int[Array, " n"]) -> Work:
    """All counts 0."""
    return Work(*(jnp.zeros_like(like) for _ in Work._fields))


def work_of_subblocks(like: Array, widths: list[int], sub: int, k: int, tied: Bool[Array, " n"] | None) -> Work:
    """Of a selection by sub-blocks.

    Args:
        like: [N].
        widths: columns of each block.
        sub: columns of a sub-block.
        k: scores kept.
        tied: rows that were selected again without sub-blocks.

    Returns:
        Counts for each row.
    """
    none, subblocks = jnp.zeros_like(like, jnp.int32), sum(widths) // sub
    repeated = 0 if tied is None else jnp.where(tied, sum(widths) + k * (len(widths) - 1), 0)
    return Work(
        rows_tested=none + len(widths),
        rows_skipped=none,
        elements_selected=none + min(k, subblocks) * sub + repeated,
        subblocks_tested=none + subblocks,
        subblocks_skipped=none + max(subblocks - k, 0),
        maxima_selected=none + subblocks + (k + 1) * (len(widths) - 1),
    )


class Partial(NamedTuple):
    """Sums over the columns that an anchor has met.

    Attributes:
        values: [N, k] scores of the most similar negatives, in any order; −inf where there was none.
        chosen: [N, k] their numbers, `NOTHING` where there was none.
        repulsion: [N] log-sum of all negatives.
        hardest: [N] largest of them.
        total: [N] sum of the positive scores.
        attraction: [N] their log-sum.
        positives: [N] |P|.
        negatives: [N] |Neg|.
        drawn: [N, R] scores of the drawn columns that are negatives, −inf for the others; None without a sampled tail.
        work: [N] each, what the selection took.
    """

    values: Float[Array, "n k"]
    chosen: Int[Array, "n k"]
    repulsion: Float[Array, " n"]
    hardest: Float[Array, " n"]
    total: Float[Array, " n"]
    attraction: Float[Array, " n"]
    positives: Int[Array, " n"]
    negatives: Int[Array, " n"]
    drawn: Float[Array, "n r"] | None
    work: Work


class Rows(NamedTuple):
    """The result for each anchor.

    Attributes:
        loss: [N], 0 without a positive.
        log_sum: [N] of the softmax whose gradient is taken.
        hardest: [N] largest score of a negative.
        kth: [N] score of the k-th.
        tail_mass: [N] softmax mass of what `top_k` left out.
        positives: [N] |P|.
        negatives: [N] |Neg| without those that are skipped as the hardest.
        chosen: [N, k + m] numbers of the selected columns, then of the sampled ones; `NOTHING` where there is none.
        boost: [N, 2] log-weights of the selected and of the sampled columns; None without a sampled tail.
        scores: [N, k + m] of the chosen columns; None where the backward pass computes them again.
        work: [N] each, what the selection took.
        last: [N] number of the last selected column, whose score is `kth`; None where nothing was met before.
    """

    loss: Float[Array, " n"]
    log_sum: Float[Array, " n"]
    hardest: Float[Array, " n"]
    kth: Float[Array, " n"]
    tail_mass: Float[Array, " n"]
    positives: Int[Array, " n"]
    negatives: Int[Array, " n"]
    chosen: Int[Array, "n k"]
    boost: Float[Array, "n 2"] | None
    scores: Float[Array, "n k"] | None
    work: Work
    last: Int[Array, " n"] | None = None


def merge(parts: Partial, top_k: int | None) -> Partial:
    """One contribution out of several that stand along a new first axis.

    Of equal scores the lowest column number stays, in whatever order the parts come.

    Args:
        parts: each leaf [S, N, ...].
        top_k: negatives to keep.

    Returns:
        The contribution of all columns.
    """
    values, chosen = (_side_by_side(x) for x in (parts.values, parts.chosen))
    if top_k is not None:
        # a NaN would sort last; it is in `repulsion`, which makes the row NaN
        values, chosen = (x[:, :top_k] for x in _ranked(values, chosen))
    return Partial(
        values,
        chosen,
        jax.nn.logsumexp(parts.repulsion, axis=0),
        jnp.max(parts.hardest, axis=0),
        jnp.sum(parts.total, axis=0),
        jax.nn.logsumexp(parts.attraction, axis=0),
        jnp.sum(parts.positives, axis=0),
        jnp.sum(parts.negatives, axis=0),
        None if parts.drawn is None else jnp.max(parts.drawn, axis=0),
        jax.tree.map(lambda x: jnp.sum(x, axis=0), parts.work),
    )


def _ranked(values: Float[Array, "n k"], chosen: Int[Array, "n k"]) -> tuple[Array, Array]:
    """Scores and column numbers with the largest score first, of equal ones the lowest number."""
    descending, chosen = lax.sort((-values, chosen), dimension=1, num_keys=2)
    return -descending, chosen


def _side_by_side(x: Float[Array, "s n k"] | Int[Array, "s n k"]) -> Array:
    """[N, S · k]."""
    return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], x.shape[0] * x.shape[2])


def finish(plan: Plan, part: Partial, draws: Int[Array, "n r"] | None) -> Rows:
    """The loss of anchors that have met every column.

    Args:
        plan: static choices.
        part: their contribution.
        draws: columns drawn for each.

    Returns:
        Rows.
    """
    kth, selected, lost = jnp.full_like(part.hardest, -jnp.inf), part.repulsion, jnp.isnan(part.hardest)
    if plan.top_k is not None:
        # the smallest, not the last: a slice of top_k's result makes XLA's CPU code sort whole rows instead
        part = _without_hardest(plan, part) if plan.skip else part
        kth, selected = jnp.min(part.values, axis=1), log_sum_of(part.values, _largest(part, plan.skip))
        # a merge sorts a NaN away, and the column engine may lose one
        if plan.transport is not None or plan.impl == "column" or plan.met:
            lost |= jnp.isnan(part.repulsion)
    last = jnp.max(jnp.where(part.values == kth[:, None], part.chosen, -1), axis=1, initial=-1) if plan.met else None
    every, used = (jnp.logaddexp(x, part.attraction) for x in (part.repulsion, selected))
    chosen, boost, scores, log_sum = part.chosen, None, part.values, used
    if draws is not None and part.drawn is not None:
        found = choose_tail(part.values, chosen, part.drawn, draws, selected, part.repulsion, plan.samples)
        chosen, boost, log_sum = jnp.concatenate([chosen, found.numbers], axis=1), found.boost, every
        scores = jnp.concatenate([scores, found.scores], axis=1)
    # in the end: XLA's CPU code drops the NaN of a select that is read by an exponential
    log_sum = jnp.where(lost, jnp.nan, log_sum)
    loss = jnp.where(part.positives > 0, log_sum - part.total / jnp.maximum(part.positives, 1), 0.0)
    mass = jnp.where(every == -jnp.inf, 0.0, -jnp.expm1(jnp.minimum(used - every, 0.0)))
    counts = part.positives, part.negatives
    kept = scores if plan.keeps_scores else None
    return Rows(loss, log_sum, part.hardest, kth, mass, *counts, chosen, boost, kept, part.work, last)


def _without_hardest(plan: Plan, part: Partial) -> Partial:
    """Leaves out a row's share of its most similar negatives, of equal ones the lowest column number.

    What is selected beyond the share and k is left out too: a row with fewer negatives skips fewer.
    """
    skipped = jnp.minimum(share_of(plan.skip_share, part.negatives), plan.skip)
    kept = skipped[:, None] + jnp.arange((plan.top_k or 0) - plan.skip)
    ranked = _ranked(part.values, part.chosen)
    values, chosen = (jnp.take_along_axis(x, kept, axis=1, mode="clip") for x in ranked)
    return part._replace(values=values, chosen=chosen, negatives=part.negatives - skipped)


def _largest(part: Partial, skip: int) -> Float[Array, " n"]:
    """The largest selected score; after a skip it may be so far below the hardest that its exponential would be 0."""
    return jnp.max(part.values, axis=1) if skip else part.hardest


def log_sum_of(scores: Float[Array, "b c"], largest: Float[Array, " b"]) -> Float[Array, " b"]:
    """Log Σ_j e^{s_ij}, given the largest; −inf where that is −inf, NaN where a score is."""
    shift = finite_or_zero(largest)
    return jnp.log(jnp.sum(jnp.exp(scores - shift[:, None]), axis=1)) + shift


def finite_or_zero(largest: Float[Array, " b"]) -> Float[Array, " b"]:
    """What a log-sum is taken relative to: the largest score, 0 where there is none."""
    return jnp.where(jnp.isfinite(largest), largest, 0.0)


def numbers_or_nothing(values: Float[Array, "n k"], numbers: Int[Array, "n k"]) -> Int[Array, "n k"]:
    """Numbers of selected columns, `NOTHING` where a row had fewer."""
    return jnp.where(values == -jnp.inf, NOTHING, numbers)
