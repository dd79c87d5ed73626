"""The strip engine: scores of a strip of anchors against all columns of a shard, and one exact top-k a row."""

from __future__ import annotations

import contextlib

import jax.numpy as jnp
from jax import lax

from jaxcl.losses.columns import Columns, dot, number_of, place_of, scores_of
from jaxcl.losses.partial import Partial, Work, log_sum_of, no_work, numbers_or_nothing, work_of_subblocks
from jaxcl.losses.plan import Plan
from jaxcl.losses.positives import Runs, long_sums, short_sums
from jaxcl.losses.sides import (
    Anchors,
    Shard,
    columns_of,
    count_negatives,
    negative_mask,
    real_keys,
    runs_of,
)
from jaxcl.losses.subblocks import two_levels
from jaxcl.losses.topk import WORTH, top_k

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Bool, Float, Int


def visit_strip(plan: Plan, anchors: Anchors, shard: Shard) -> Partial:
    """What a shard contributes to a strip of anchors.

    Args:
        plan: static choices.
        anchors: one strip.
        shard: columns.

    Returns:
        The contribution.
    """
    columns, runs, scaled = columns_of(plan, shard), runs_of(plan, anchors, shard), anchors.scaled
    scores = scores_of(scaled, columns)
    every = jnp.where(negative_mask(plan, anchors, columns, runs), scores, -jnp.inf)
    if plan.top_k is None:
        values, chosen = jnp.zeros((plan.strip, 0)), jnp.zeros((plan.strip, 0), jnp.int32)
        hardest, tested = jnp.max(every, axis=1), jnp.ones_like(runs.positives)
        work = no_work(tested)._replace(rows_tested=tested)
    else:
        values, chosen, work = _most_similar(plan, every, columns)
        hardest = jnp.max(values, axis=1)
    total, attraction = _positive_sums(plan, scores, scaled, shard, runs)
    drawn = None if anchors.draws is None else _drawn_scores(every, place_of(columns, anchors.draws))
    return Partial(
        values,
        chosen,
        log_sum_of(every, hardest),
        jnp.where(_has_nan(scores, every), jnp.nan, hardest),
        total,
        attraction,
        runs.positives,
        count_negatives(plan, anchors, shard, runs),
        drawn,
        work,
    )


def _most_similar(plan: Plan, every: Array, columns: Columns) -> tuple[Array, Array, Work]:
    """Scores and numbers of the k most similar negatives, or of all columns where there are fewer, and what it took.

    On a CPU by two levels where that takes less time. Other devices' selections do not care how much there is to skip.
    """
    k = min(plan.top_k or 0, columns.size)
    tested = jnp.ones_like(every[:, 0], jnp.int32)
    padding = columns.offset - real_keys(plan, columns.offset) if plan.use_key_negatives else 0

    def one_level(every: Array) -> tuple[Array, Array, Work]:
        work = no_work(tested)._replace(rows_tested=tested, elements_selected=(columns.size - padding) * tested)
        return *top_k(every, k), work

    def by_subblocks(every: Array) -> tuple[Array, Array, Work]:
        values, places, tied = two_levels(every, k, plan.sub)
        return values, places, work_of_subblocks(tested, [-(-columns.size // plan.sub) * plan.sub], plan.sub, k, tied)

    if plan.sub and every.size >= WORTH:
        values, places, work = lax.platform_dependent(every, cpu=by_subblocks, default=one_level)
    else:
        values, places, work = one_level(every)
    return values, numbers_or_nothing(values, number_of(columns, places)), work


def _has_nan(scores: Float[Array, "b c"], every: Float[Array, "b c"]) -> Bool[Array, " b"]:
    """Rows whose candidates have a NaN, which a maximum in XLA's CPU code may lose.

    A column with a NaN makes one of every score, as does such an anchor: one row and one column of the scores say
    whether there is anything to look for.
    """
    anywhere = jnp.isnan(jnp.sum(scores[0]) + jnp.sum(scores[:, 0]))
    none = jnp.zeros_like(every[:, 0], bool)
    return lax.cond(anywhere, lambda: jnp.any(jnp.isnan(every), axis=1), lambda: none)


def _drawn_scores(every: Float[Array, "b c"], places: Int[Array, "b r"]) -> Float[Array, "b r"]:
    """Scores at some places, −inf for places outside."""
    return jnp.take_along_axis(every, places, axis=1, mode="fill", fill_value=-jnp.inf)


def _positive_sums(plan: Plan, scores: Array, scaled: Array, shard: Shard, runs: Runs) -> tuple[Array, Array]:
    """Sum and log-sum of the positive scores."""

    def long() -> tuple[Array, Array]:
        of_keys = scores[:, : shard.keys.shape[0]] if plan.use_key_negatives else dot(scaled, shard.keys.T)
        return long_sums(of_keys, runs)

    def short() -> tuple[Array, Array]:
        return short_sums(scaled, shard.keys, runs, shard.steps)

    return short() if plan.single else lax.cond(shard.steps == 0, long, short)
