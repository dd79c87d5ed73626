"""The strip engine: scores of a strip of anchors against all columns, one exact top-k a row, a backward pass by hand.

With g_i the cotangent of loss_i, w_ij = e^{s_ij − lse_i} and s_ij = t · q_i·k_j, t = 1 / temperature:
    ∂/∂s_ij = G_ij = g_i (w_ij − [j ∈ P_i] / |P_i|)        over P_i ∪ T_i, 0 elsewhere
    ∂/∂q_i = t Σ_j G_ij k_j,   ∂/∂k_j = t Σ_i G_ij q_i,   ∂/∂t = Σ_i q_i · Σ_j G_ij k_j
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxcl.losses.arguments import NOBODY, STRANGER, Problem
from jaxcl.losses.columns import Columns, count_nonfinite, dot, gather_rows, scores_of, weighted_sum
from jaxcl.losses.normalise import normalise
from jaxcl.losses.outputs import Stats
from jaxcl.losses.plan import Plan, gather_chunk, is_wide
from jaxcl.losses.positives import (
    Runs,
    StripRuns,
    find_runs,
    long_mask,
    long_sums,
    partner,
    short_sums,
    steps_of_short_runs,
)

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Bool, Float, Int


class Context(NamedTuple):
    """Everything without gradient that the strips read: O(N) vectors and the queue."""

    query_groups: Int[Array, " n"]
    key_groups: Int[Array, " m"]
    partner: Int[Array, " n"] | None
    runs: Runs
    columns: Columns  # its `keys` are put in by the engine
    steps: Int[Array, ""]


class Rows(NamedTuple):
    """What the forward pass finds for each anchor."""

    loss: Float[Array, " n"]
    log_sum: Float[Array, " n"]
    hardest: Float[Array, " n"]
    kth: Float[Array, " n"]
    full: Float[Array, " n"]  # log-sum over all negatives and the positives
    chosen: Int[Array, "n k"]  # selected columns; the number of columns where there was none


def strip_infonce(problem: Problem, plan: Plan) -> tuple[Float[Array, " n"], Bool[Array, " n"], Stats]:
    """Loss, validity and stats of checked inputs.

    Args:
        problem: checked inputs.
        plan: static choices.

    Returns:
        What `InfoNCEOutput` holds.
    """
    nonfinite = count_nonfinite(problem.keys, problem.bank)
    problem = _padded(problem, plan)
    context = _context(problem, plan)
    queries = normalise(problem.queries)
    rows = _engine(plan, queries, None if plan.same else normalise(problem.keys), 1 / problem.temperature, context)
    count = context.runs.length - context.runs.own
    stats = Stats(
        rows_tested=jnp.int32(plan.rows),
        rows_skipped=jnp.int32(0),
        hardest=rows.hardest,
        kth=rows.kth,
        tail_mass=jnp.where(rows.full == -jnp.inf, 0.0, -jnp.expm1(jnp.minimum(rows.log_sum - rows.full, 0.0))),
        positives=count,
        negatives=_count_negatives(context, plan),
        nonfinite=nonfinite,
    )
    stats = jax.tree.map(lambda x: x[: plan.rows] if x.ndim else x, stats)
    return rows.loss[: plan.rows], (count > 0)[: plan.rows], stats


def _padded(problem: Problem, plan: Plan) -> Problem:
    """Anchors filled up to whole strips with rows that belong to nobody; keys too where they are numbered alike."""
    extra = -plan.rows % plan.strip
    if not extra:
        return problem

    def fill(array: Array, value: int) -> Array:
        return jnp.pad(array, ((0, extra),) + ((0, 0),) * (array.ndim - 1), constant_values=value)

    partner = None if problem.partner is None else fill(problem.partner, -1)
    queries, query_groups = fill(problem.queries, 0), fill(problem.query_groups, NOBODY)
    problem = problem._replace(queries=queries, query_groups=query_groups, partner=partner)
    if plan.same or plan.exclude_diagonal:
        keys, key_groups = fill(problem.keys, 0), fill(problem.key_groups, STRANGER)
        problem = problem._replace(keys=keys, key_groups=key_groups)
    return problem


def _context(problem: Problem, plan: Plan) -> Context:
    """Vectors that say who is what for whom."""
    groups, candidate = [], []
    if plan.use_key_negatives:
        m = problem.keys.shape[0]
        real = plan.rows if plan.same or plan.exclude_diagonal else m
        groups, candidate = [problem.key_groups], [jnp.arange(m) < real]
    if problem.bank is not None:
        groups, candidate = [*groups, problem.bank.groups], [*candidate, problem.bank.valid]
    queue = None if problem.bank is None else problem.bank.values
    columns = Columns(None, queue, jnp.concatenate(groups), jnp.concatenate(candidate))
    runs = find_runs(problem, plan.exclude_diagonal)
    steps = jnp.int32(1) if plan.single else steps_of_short_runs(runs)
    return Context(problem.query_groups, problem.key_groups, problem.partner, runs, columns, steps)


def _count_negatives(context: Context, plan: Plan) -> Int[Array, " n"]:
    """|Neg| of each query: all candidates less those of its group, less the one it may not see."""
    columns, groups = context.columns, context.query_groups
    ordered = jnp.sort(jnp.where(columns.candidate, columns.groups, STRANGER))
    same = jnp.searchsorted(ordered, groups, side="right") - jnp.searchsorted(ordered, groups, side="left")
    count = jnp.sum(columns.candidate) - same
    if plan.use_key_negatives and plan.exclude_diagonal:
        count -= context.query_groups != context.key_groups
    if plan.use_key_negatives and context.partner is not None:
        named = context.key_groups[jnp.maximum(context.partner, 0)]
        count -= (context.partner >= 0) & (named != groups)
    return count.astype(jnp.int32)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _engine(
    plan: Plan,
    queries: Float[Array, "n d"],
    keys: Float[Array, "m d"] | None,
    scale: Float[Array, ""],
    context: Context,
) -> Rows:
    """Forward pass over normalised embeddings; keys None: they are the queries."""
    return _forward(plan, queries, keys, scale, context)[0]


def _forward(plan: Plan, queries: Array, keys: Array | None, scale: Array, context: Context) -> tuple[Rows, tuple]:
    """One strip after another."""
    every_key = queries if keys is None else keys
    columns = context.columns._replace(keys=every_key if plan.use_key_negatives else None)

    def one(start: Array) -> Rows:
        anchors = lax.dynamic_slice_in_dim(queries, start, plan.strip) * scale
        return _forward_strip(plan, anchors, every_key, columns, context, start)

    found = lax.map(one, jnp.arange(0, queries.shape[0], plan.strip))
    rows = jax.tree.map(lambda x: x.reshape((x.shape[0] * x.shape[1], *x.shape[2:])), found)
    return rows, (queries, keys, scale, context, rows.log_sum, rows.chosen)


def _forward_strip(plan: Plan, anchors: Array, keys: Array, columns: Columns, context: Context, start: Array) -> Rows:
    """Scores, selection and loss of one strip."""
    runs = _runs_of(context, start, plan.strip)
    scores = scores_of(anchors, columns)
    every = jnp.where(_negative_mask(plan, columns, context, runs), scores, -jnp.inf)
    if plan.top_k is None:
        hardest, kth = jnp.max(every, axis=1), jnp.full(plan.strip, -jnp.inf)
        chosen, selected = jnp.zeros((plan.strip, 0), jnp.int32), _log_sum(every, hardest)
        repulsion = selected
    else:
        values, chosen = lax.top_k(every, plan.top_k)  # a NaN comes first, so the row becomes NaN
        chosen = jnp.where(values == -jnp.inf, every.shape[1], chosen).astype(jnp.int32)
        # a slice of top_k's result would make XLA sort whole rows instead
        hardest, kth = jnp.max(values, axis=1), jnp.min(values, axis=1)
        selected, repulsion = _log_sum(values, hardest), _log_sum(every, hardest)

    def long() -> tuple[Array, Array]:
        of_keys = scores[:, : keys.shape[0]] if plan.use_key_negatives else dot(anchors, keys.T)
        return long_sums(of_keys, runs)

    def short() -> tuple[Array, Array]:
        return short_sums(anchors, keys, runs, context.steps)

    total, positive = short() if plan.single else lax.cond(context.steps == 0, long, short)
    log_sum = jnp.logaddexp(selected, positive)
    loss = jnp.where(runs.positives > 0, log_sum - total / jnp.maximum(runs.positives, 1), 0.0)
    return Rows(loss, log_sum, hardest, kth, jnp.logaddexp(repulsion, positive), chosen)


def _log_sum(scores: Float[Array, "b c"], largest: Float[Array, " b"]) -> Float[Array, " b"]:
    """Log Σ_j e^{s_ij}, given the largest; −inf where that is −inf, NaN where a score is."""
    shift = jnp.where(jnp.isfinite(largest), largest, 0.0)
    return jnp.log(jnp.sum(jnp.exp(scores - shift[:, None]), axis=1)) + shift


def _runs_of(context: Context, start: Array, strip: int) -> StripRuns:
    """The positives of one strip."""

    def part(x: Array) -> Array:
        return lax.dynamic_slice_in_dim(x, start, strip)

    runs = context.runs
    row = start + jnp.arange(strip, dtype=jnp.int32)
    return StripRuns(
        runs.order,
        part(runs.start),
        part(runs.length),
        part(runs.own),
        row,
        part(context.query_groups),
        context.key_groups,
    )


def _negative_mask(plan: Plan, columns: Columns, context: Context, runs: StripRuns) -> Bool[Array, "b c"]:
    """Which columns are negatives of the strip's anchors."""
    mask = (runs.group[:, None] != columns.groups[None, :]) & columns.candidate[None, :]
    if not plan.use_key_negatives:
        return mask
    number = jnp.arange(columns.groups.shape[0])[None, :]
    if plan.exclude_diagonal:
        mask &= runs.row[:, None] != number
    if context.partner is not None:
        mask &= lax.dynamic_slice_in_dim(context.partner, runs.row[0], plan.strip)[:, None] != number
    return mask


class Gradient(NamedTuple):
    """Running sums of the backward pass; `queries` is None where keys and queries share one array."""

    keys: Float[Array, "m d"]
    queries: Float[Array, "n d"] | None
    scale: Float[Array, ""]  # times the scale


class Strip(NamedTuple):
    """What the backward pass reads of one strip."""

    start: Int[Array, ""]
    anchors: Float[Array, "b d"]  # times the scale
    log_sum: Float[Array, " b"]
    cotangent: Float[Array, " b"]
    runs: StripRuns


def _backward(plan: Plan, saved: tuple, cotangent: Rows) -> tuple:
    """Gradients of normalised queries, keys and scale; none for the queue."""
    queries, keys, scale, context, log_sum, chosen = saved
    every_key = queries if keys is None else keys
    columns = context.columns._replace(keys=every_key if plan.use_key_negatives else None)
    given = jnp.where(context.runs.length - context.runs.own > 0, cotangent.loss, 0.0)

    def one(gradient: Gradient, start: Array) -> tuple[Gradient, None]:
        def part(x: Array) -> Array:
            return lax.dynamic_slice_in_dim(x, start, plan.strip)

        strip = Strip(start, part(queries) * scale, part(log_sum), part(given), _runs_of(context, start, plan.strip))
        if plan.top_k is None or is_wide(plan.top_k, columns.groups.shape[0]):
            gradient = _pull_whole(plan, gradient, strip, part(chosen), columns, context, scale)
        else:
            gradient = _pull_chosen(plan, gradient, strip, part(chosen), columns, scale)
        if not plan.single:
            gradient = _pull_long(plan, gradient, strip, every_key, context, scale)
        return _pull_short(gradient, strip, every_key, context, scale), None

    none = Gradient(jnp.zeros_like(every_key), None if plan.same else jnp.zeros_like(queries), jnp.zeros(()))
    gradient, _ = lax.scan(one, none, jnp.arange(0, queries.shape[0], plan.strip))
    if plan.same:
        return gradient.keys, None, gradient.scale / scale, None
    return gradient.queries, gradient.keys, gradient.scale / scale, None


_engine.defvjp(_forward, _backward)


def _pull(gradient: Gradient, start: Array, anchors: Array, pull: Float[Array, "b d"], scale: Array) -> Gradient:
    """Add Σ_j G_ij k_j of some anchors to the queries' gradient, and their share to the scale's."""
    into = gradient.keys if gradient.queries is None else gradient.queries
    there = lax.dynamic_slice_in_dim(into, start, pull.shape[0])
    into = lax.dynamic_update_slice_in_dim(into, there + scale * pull, start, axis=0)
    gradient = gradient._replace(scale=gradient.scale + jnp.sum(anchors * pull))
    return gradient._replace(keys=into) if gradient.queries is None else gradient._replace(queries=into)


def _positive_weights(scores: Array, strip: Strip) -> Array:
    """G of positives, from scores [b] or [b, m]."""
    column = (slice(None),) + (None,) * (scores.ndim - 1)
    share = 1 / jnp.maximum(strip.runs.positives, 1)
    return strip.cotangent[column] * (jnp.exp(scores - strip.log_sum[column]) - share[column])


def _pull_whole(
    plan: Plan, gradient: Gradient, strip: Strip, chosen: Array, columns: Columns, context: Context, scale: Array
) -> Gradient:
    """Negatives by whole products, and long runs of positives with them."""
    scores = scores_of(strip.anchors, columns)
    if plan.top_k is None:
        mask = _negative_mask(plan, columns, context, strip.runs)
    else:
        rows = jnp.arange(plan.strip)[:, None]
        mask = jnp.zeros(scores.shape, bool).at[rows, chosen].set(True, mode="drop")
    weights = jnp.where(mask, strip.cotangent[:, None] * jnp.exp(scores - strip.log_sum[:, None]), 0.0)
    if plan.use_key_negatives and not plan.single:
        m = columns.offset

        def with_positives() -> Array:
            positive = jnp.where(long_mask(strip.runs), _positive_weights(scores[:, :m], strip), 0.0)
            return weights.at[:, :m].add(positive)

        weights = lax.cond(context.steps == 0, with_positives, lambda: weights)
    gradient = _pull(gradient, strip.start, strip.anchors, weighted_sum(weights, columns), scale)
    if not plan.use_key_negatives:
        return gradient
    return gradient._replace(keys=gradient.keys + dot(weights[:, : columns.offset].T, strip.anchors))


def _pull_chosen(
    plan: Plan, gradient: Gradient, strip: Strip, chosen: Array, columns: Columns, scale: Array
) -> Gradient:
    """The selected negatives, gathered for a few anchors at a time."""
    chunk = gather_chunk(plan.strip, chosen.shape[1], strip.anchors.shape[1])

    def one(j: Array, gradient: Gradient) -> Gradient:
        def part(x: Array) -> Array:
            return lax.dynamic_slice_in_dim(x, j * chunk, chunk)

        anchors, numbers = part(strip.anchors), part(chosen)
        rows = gather_rows(columns, numbers)
        scores = jnp.einsum("cd,ckd->ck", anchors, rows, precision=lax.Precision.HIGHEST)
        weights = part(strip.cotangent)[:, None] * jnp.exp(scores - part(strip.log_sum)[:, None])
        weights = jnp.where(numbers < columns.groups.shape[0], weights, 0.0)
        pull = jnp.einsum("ck,ckd->cd", weights, rows, precision=lax.Precision.HIGHEST)
        gradient = _pull(gradient, strip.start + j * chunk, anchors, pull, scale)
        if not plan.use_key_negatives:
            return gradient
        updates = (weights[:, :, None] * anchors[:, None, :]).reshape(-1, anchors.shape[1])
        target = jnp.where(numbers < columns.offset, numbers, gradient.keys.shape[0]).reshape(-1)
        return gradient._replace(keys=gradient.keys.at[target].add(updates, mode="drop"))

    return lax.fori_loop(0, plan.strip // chunk, one, gradient)


def _pull_short(gradient: Gradient, strip: Strip, keys: Array, context: Context, scale: Array) -> Gradient:
    """Short runs of positives, one partner at a time."""

    def one(offset: Array, gradient: Gradient) -> Gradient:
        rows, number, real = partner(keys, strip.runs, offset)
        scores = jnp.sum(strip.anchors * rows, axis=1)
        weights = jnp.where(real, _positive_weights(scores, strip), 0.0)[:, None]
        gradient = _pull(gradient, strip.start, strip.anchors, weights * rows, scale)
        return gradient._replace(keys=gradient.keys.at[number].add(weights * strip.anchors))

    return lax.fori_loop(0, context.steps, one, gradient)


def _pull_long(plan: Plan, gradient: Gradient, strip: Strip, keys: Array, context: Context, scale: Array) -> Gradient:
    """Long runs of positives by whole products, where `_pull_whole` did not take them along."""
    if plan.use_key_negatives and (plan.top_k is None or is_wide(plan.top_k, context.columns.groups.shape[0])):
        return gradient

    def update(gradient: Gradient) -> Gradient:
        scores = dot(strip.anchors, keys.T)
        weights = jnp.where(long_mask(strip.runs), _positive_weights(scores, strip), 0.0)
        gradient = _pull(gradient, strip.start, strip.anchors, dot(weights, keys), scale)
        return gradient._replace(keys=gradient.keys + dot(weights.T, strip.anchors))

    return lax.cond(context.steps == 0, update, lambda gradient: gradient, gradient)
