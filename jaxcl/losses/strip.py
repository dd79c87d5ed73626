"""The strip engine: scores of a strip of anchors against all columns of a shard, and one exact top-k a row."""

from __future__ import annotations

import contextlib

import jax.numpy as jnp
from jax import lax

from jaxcl.losses.columns import Columns, dot, number_of, place_of, scores_of
from jaxcl.losses.partial import Partial, Work, log_sum_of, no_work, numbers_or_nothing
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
from jaxcl.losses.sift import sift, slots_for
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
    total, attraction = _positive_sums(plan, scaled, shard, runs)
    some_nan = _some_nan(scores)
    every = jnp.where(negative_mask(plan, anchors, columns, runs), scores, -jnp.inf)
    if plan.top_k is None:
        values, chosen = jnp.zeros((plan.strip, 0)), jnp.zeros((plan.strip, 0), jnp.int32)
        hardest, tested = jnp.max(every, axis=1), jnp.ones_like(runs.positives)
        work = no_work(tested)._replace(rows_tested=tested)
    else:
        values, chosen, work = _most_similar(plan, every, columns)
        hardest = jnp.max(values, axis=1)
    drawn = None if anchors.draws is None else _drawn_scores(every, place_of(columns, anchors.draws))
    return Partial(
        values,
        chosen,
        log_sum_of(every, hardest),
        jnp.where(_has_nan(every, some_nan), jnp.nan, hardest),
        total,
        attraction,
        runs.positives,
        count_negatives(plan, anchors, shard, runs),
        drawn,
        work,
    )


def _most_similar(plan: Plan, every: Array, columns: Columns) -> tuple[Array, Array, Work]:
    """Scores and numbers of the k most similar negatives, or of all columns where there are fewer, and what it took.

    On a CPU the scores are sifted where that takes less time. Other devices' selections do not care how much there is
    to skip.
    """
    k = min(plan.top_k or 0, columns.size)
    tested = jnp.ones_like(every[:, 0], jnp.int32)
    padding = columns.offset - real_keys(plan, columns.offset) if plan.use_key_negatives else 0

    def at_once(every: Array) -> tuple[Array, Array, Work]:
        work = no_work(tested)._replace(rows_tested=tested, elements_selected=(columns.size - padding) * tested)
        return *top_k(every, k), work

    def sifted(every: Array) -> tuple[Array, Array, Work]:
        found, maxima = sift(every, k, plan.sub), -(-columns.size // plan.sub) * tested
        again = jnp.where(found.whole, slots_for(k, columns.size) + columns.size, found.above)
        work = Work(tested, jnp.zeros_like(tested), again, maxima, found.skipped, maxima)
        return found.values, found.places, work

    if plan.sub and every.size >= WORTH:
        values, places, work = lax.platform_dependent(every, cpu=sifted, default=at_once)
    else:
        values, places, work = at_once(every)
    return values, numbers_or_nothing(values, number_of(columns, places)), work


def _some_nan(scores: Float[Array, "b c"]) -> Bool[Array, ""]:
    """Whether there may be a NaN: a column or an anchor with one makes it of every score, so one of each tells."""
    return jnp.isnan(jnp.sum(scores[0]) + jnp.sum(scores[:, 0]))


def _has_nan(every: Float[Array, "b c"], some: Bool[Array, ""]) -> Bool[Array, " b"]:
    """Rows whose candidates have a NaN, which a maximum in XLA's CPU code may lose."""
    none = jnp.zeros_like(every[:, 0], bool)
    return lax.cond(some, lambda: jnp.any(jnp.isnan(every), axis=1), lambda: none)


def _drawn_scores(every: Float[Array, "b c"], places: Int[Array, "b r"]) -> Float[Array, "b r"]:
    """Scores at some places, −inf for places outside."""
    return jnp.take_along_axis(every, places, axis=1, mode="fill", fill_value=-jnp.inf)


def _positive_sums(plan: Plan, scaled: Array, shard: Shard, runs: Runs) -> tuple[Array, Array]:
    """Sum and log-sum of the positive scores.

    Long runs take products of their own: scores with two readers could not be masked in their place, and a strip would
    hold them twice.
    """

    def long() -> tuple[Array, Array]:
        def scores(first: Array, some: int) -> Array:
            return dot(lax.dynamic_slice_in_dim(scaled, first, some), shard.keys.T)

        return long_sums(scores, runs)

    def short() -> tuple[Array, Array]:
        return short_sums(scaled, shard.keys, runs, shard.steps)

    return short() if plan.single else lax.cond(shard.steps == 0, long, short)
