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
from jaxcl.losses.topk import top_k

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Float, Int


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
        hardest = jnp.max(every, axis=1)
    else:
        values, chosen = _most_similar(every, columns, plan.top_k)
        hardest = jnp.max(values, axis=1)  # a NaN comes first
    total, attraction = _positive_sums(plan, scores, scaled, shard, runs)
    drawn = None if anchors.draws is None else _drawn_scores(every, place_of(columns, anchors.draws))
    return Partial(
        values,
        chosen,
        log_sum_of(every, hardest),
        hardest,
        total,
        attraction,
        runs.positives,
        count_negatives(plan, anchors, shard, runs),
        drawn,
        _work(plan, runs.positives, columns),
    )


def _most_similar(every: Float[Array, "b c"], columns: Columns, k: int) -> tuple[Array, Array]:
    """Scores and numbers of the k most similar negatives, or of all columns where there are fewer."""
    values, places = top_k(every, min(k, columns.size))
    return values, numbers_or_nothing(values, number_of(columns, places))


def _work(plan: Plan, like: Int[Array, " b"], columns: Columns) -> Work:
    """Every row looks at all its columns as one block and skips none."""
    padding = columns.offset - real_keys(plan, columns.offset) if plan.use_key_negatives else 0
    elements = 0 if plan.top_k is None else columns.size - padding
    return no_work(like)._replace(rows_tested=jnp.ones_like(like), elements_selected=jnp.full_like(like, elements))


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
