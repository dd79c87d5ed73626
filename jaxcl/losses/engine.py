"""The streamed loss as one differentiable function: forward by an engine, backward by hand."""

from __future__ import annotations

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxcl.losses.arguments import NOBODY, STRANGER, Problem
from jaxcl.losses.backward import Back
from jaxcl.losses.column import visit_tile
from jaxcl.losses.columns import count_nonfinite
from jaxcl.losses.met import Met, of_met, padded_rows
from jaxcl.losses.normalise import inverse_norm, through_norm, unit_rows
from jaxcl.losses.outputs import InfoNCEOutput, Stats, without_gradient
from jaxcl.losses.partial import Partial, Rows
from jaxcl.losses.plan import Plan
from jaxcl.losses.sides import Anchors, Context, Shard, make_context
from jaxcl.losses.strip import visit_strip
from jaxcl.losses.travel import meet, meet_again
from jaxcl.losses.varying import axes_of, vary

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Float


def stream(problem: Problem, plan: Plan, *, tail_key: Array | None, met: Met | None = None) -> InfoNCEOutput:
    """Loss, validity and stats of checked inputs.

    Args:
        problem: checked inputs, of this device.
        plan: static choices.
        tail_key: random key of the sampled tail; None without one.
        met: what the queries have found among columns that are not here; None: nothing.

    Returns:
        What `streaming_infonce` returns.
    """
    nonfinite = count_nonfinite(problem.keys, problem.bank)
    problem = _padded(problem, plan)
    unit = unit_rows(problem.keys)
    queries, keys = (unit, None) if plan.same else (problem.queries, unit)
    before = None if met is None else padded_rows(met.part, -plan.rows % plan.tile)
    everything = queries, keys, 1 / problem.temperature, make_context(problem, plan, tail_key), before
    rows = _engine(plan, *vary(everything, axes_of(everything)))
    rows = jax.tree.map(lambda x: x[: plan.rows], rows)
    work = {name: jnp.sum(count, dtype=jnp.float32) for name, count in rows.work._asdict().items()}
    if plan.axis:
        nonfinite, work = lax.psum((nonfinite, work), plan.axis)
    if met is not None:
        nonfinite += met.nonfinite
    stats = Stats(
        **work,
        hardest=rows.hardest,
        kth=rows.kth,
        tail_mass=rows.tail_mass,
        positives=rows.positives,
        negatives=rows.negatives,
        nonfinite=nonfinite,
    )
    return InfoNCEOutput(rows.loss, rows.positives > 0, without_gradient(stats))


def _padded(problem: Problem, plan: Plan) -> Problem:
    """Anchors filled up to whole tiles with rows that belong to nobody; keys too where they are the same array."""
    extra = -plan.rows % plan.tile
    if not extra:
        return problem

    def fill(array: Array, value: int) -> Array:
        return jnp.pad(array, ((0, extra),) + ((0, 0),) * (array.ndim - 1), constant_values=value)

    partner = None if problem.partner is None else fill(problem.partner, -1)
    queries, query_groups = fill(problem.queries, 0), fill(problem.query_groups, NOBODY)
    problem = problem._replace(queries=queries, query_groups=query_groups, partner=partner)
    if plan.same:
        keys, key_groups = fill(problem.keys, 0), fill(problem.key_groups, STRANGER)
        problem = problem._replace(keys=keys, key_groups=key_groups)
    return problem


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _engine(
    plan: Plan,
    queries: Float[Array, "n d"],
    keys: Float[Array, "m d"] | None,
    scale: Float[Array, ""],
    context: Context,
    met: Partial | None,
) -> Rows:
    """Forward pass; keys are normalised; None: they are the queries, which then are normalised too."""
    return _forward(plan, queries, keys, scale, context, met)[0]


def _sides(queries: Array, keys: Array | None, scale: Array, context: Context) -> tuple[Anchors, Shard]:
    """Anchors and columns with their embeddings."""
    inverse = None if keys is None else inverse_norm(queries)[:, 0]
    scales = jnp.broadcast_to(scale, queries.shape[:1])
    anchors = context.anchors._replace(embeddings=queries, inverse=inverse, scale=scales)
    return anchors, context.shard._replace(keys=queries if keys is None else keys)


def _forward(
    plan: Plan, queries: Array, keys: Array | None, scale: Array, context: Context, met: Partial | None
) -> tuple[Rows, tuple]:
    """What the loss is, and what its gradient needs."""
    anchors, shard = _sides(queries, keys, scale, context)
    rows = meet(plan, anchors, shard, visit_tile if plan.impl == "column" else visit_strip, met)
    given = None if met is None else (met, rows.kth, rows.last)
    found = rows.log_sum, rows.positives, rows.chosen, rows.boost, rows.scores
    return rows, (queries, keys, scale, context, *found, given)


def _backward(plan: Plan, saved: tuple, cotangent: Rows) -> tuple:
    """Gradients of queries, keys and scale, and of scores that were met before; none for the queue."""
    queries, keys, scale, context, log_sum, positives, chosen, boost, scores, met = saved
    anchors, shard = _sides(queries, keys, scale, context)
    given = jnp.where(positives > 0, cotangent.loss, 0.0)
    back = Back(anchors._replace(draws=None), log_sum, given, positives, chosen, boost, scores)
    sums = meet_again(plan, back, shard)
    of_scores = None if met is None else of_met(plan, met[0], met[1], met[2], log_sum, given)
    others = jnp.sum(sums.pull.slope) / scale, None, of_scores
    if sums.pull.rows is None:
        return sums.keys, None, *others
    of_queries = scale * sums.pull.rows
    if keys is None:
        return of_queries + sums.keys, None, *others
    return through_norm(queries, of_queries), sums.keys, *others


_engine.defvjp(_forward, _backward)
