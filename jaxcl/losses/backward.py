"""The backward pass by hand, from selected column numbers and a few vectors; other scores are computed again.

With g_i the cotangent of loss_i, w_ij = e^{s_ij − lse_i} and s_ij = t_i · q_i·k_j, t = 1 / temperature:
    ∂/∂s_ij = G_ij = g_i (w_ij − [j ∈ P_i] / |P_i|)        over P_i ∪ T_i, 0 elsewhere
    ∂/∂q_i = t_i Σ_j G_ij k_j,   ∂/∂k_j = Σ_i G_ij t_i q_i,   ∂/∂t_i = Σ_j G_ij q_i·k_j
Where the tail is sampled, w of a selected or drawn column carries the log-weight of its kind besides.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxcl.losses.columns import (
    Columns,
    dot,
    gather_rows,
    place_of,
    queue_norms,
    scores_of,
    weighted_rows,
    weighted_sum,
)
from jaxcl.losses.packing import pack
from jaxcl.losses.plan import GATHER_ELEMENTS, SCATTER_ELEMENTS, Plan, divisor_below
from jaxcl.losses.positives import Runs, long_mask, partner
from jaxcl.losses.sides import Anchors, Shard, columns_of, negative_mask, runs_of, slice_rows

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Bool, Float, Int

LONG_ROWS = 128  # anchors at once where a product serves long runs of positives alone


class Back(NamedTuple):
    """Anchors and what the backward pass knows of them; every leaf has a row for each.

    Attributes:
        anchors: as in the forward pass, without draws.
        log_sum: [N].
        cotangent: [N], 0 without a positive.
        positives: [N] |P|.
        chosen: [N, k + m] numbers of the selected and sampled columns.
        boost: [N, 2] their log-weights; None without a sampled tail.
        scores: [N, k + m] theirs; None where they are computed again.
    """

    anchors: Anchors
    log_sum: Float[Array, " n"]
    cotangent: Float[Array, " n"]
    positives: Int[Array, " n"]
    chosen: Int[Array, "n k"]
    boost: Float[Array, "n 2"] | None
    scores: Float[Array, "n k"] | None


class Pull(NamedTuple):
    """Running sums for the anchors.

    Attributes:
        rows: [N, D] Σ_j G_ij k_j; None where one accumulator serves queries and keys.
        slope: [N] Σ_j G_ij s_ij.
    """

    rows: Float[Array, "n d"] | None
    slope: Float[Array, " n"]


class Sums(NamedTuple):
    """All running sums: of the anchors, and [M, D] of a shard's keys; without `pull.rows` the anchors' are in there."""

    pull: Pull
    keys: Float[Array, "m d"]


def visit_back(plan: Plan, back: Back, shard: Shard, sums: Sums) -> Sums:
    """Add what a shard and some anchors owe each other.

    Args:
        plan: static choices.
        back: whole strips of anchors.
        shard: columns.
        sums: running sums.

    Returns:
        The sums.
    """
    columns = columns_of(plan, shard)
    norms = None if plan.whole else queue_norms(columns)

    def one(sums: Sums, start: Array) -> tuple[Sums, None]:
        strip = slice_rows(back, start, plan.strip)
        runs = runs_of(plan, strip.anchors, shard)
        if plan.symmetric:
            sums = _pull_symmetric(plan, sums, start, strip, back, columns, shard, runs)
        elif plan.whole:
            sums = _pull_whole(plan, sums, start, strip, columns, shard, runs)
        elif plan.axis is None:
            sums = _pull_chosen(plan, sums, start, strip, columns, norms)
        if not plan.single and not (plan.whole and plan.use_key_negatives):
            sums = _pull_long(sums, start, strip, shard, runs)
        return _pull_short(sums, start, strip, shard, runs), None

    if not plan.whole and plan.axis is not None:
        sums = _pull_pairs(plan, sums, back, columns, norms)
    return lax.scan(one, sums, jnp.arange(0, back.log_sum.shape[0], plan.strip))[0]


def _add(sums: Sums, start: Array, anchors: Anchors, pull: Float[Array, "b d"], scaled: Array) -> Sums:
    """Add Σ_j G_ij k_j of the anchors that begin at a row, and what follows for the slope."""
    return _add_both(sums, start, anchors, pull, jnp.sum(scaled * pull, axis=1))


def _add_both(sums: Sums, start: Array, anchors: Anchors, pull: Float[Array, "b d"], slope: Float[Array, " b"]) -> Sums:
    """Add Σ_j G_ij k_j and Σ_j G_ij s_ij of the anchors that begin at a row."""
    slope = _update(sums.pull.slope, start, slope)
    if sums.pull.rows is None:
        return Sums(Pull(None, slope), _update(sums.keys, start, anchors.scale[:, None] * pull))
    return Sums(Pull(_update(sums.pull.rows, start, pull), slope), sums.keys)


def _update(into: Array, start: Array, more: Array) -> Array:
    """Add to rows."""
    there = lax.dynamic_slice_in_dim(into, start, more.shape[0])
    return lax.dynamic_update_slice_in_dim(into, there + more, start, axis=0)


def _positive_weights(scores: Array, strip: Back) -> Array:
    """G of positives, from scores [b] or [b, m]."""
    column = (slice(None),) + (None,) * (scores.ndim - 1)
    share = 1 / jnp.maximum(strip.positives, 1)
    return strip.cotangent[column] * (jnp.exp(scores - strip.log_sum[column]) - share[column])


def _boosts(plan: Plan, back: Back) -> Array | float:
    """Log-weight of every selected column, [B, k + m]."""
    if back.boost is None:
        return 0.0
    selected = jnp.arange(back.chosen.shape[1]) < (plan.top_k or 0)
    return jnp.where(selected, back.boost[:, :1], back.boost[:, 1:])


def _pull_whole(plan: Plan, sums: Sums, start: Array, strip: Back, columns: Columns, shard: Shard, runs: Runs) -> Sums:
    """Negatives by whole products, and long runs of positives with them."""
    scaled = strip.anchors.scaled
    scores = scores_of(scaled, columns)
    if plan.top_k is None:
        weights = jnp.where(negative_mask(plan, strip.anchors, columns, runs), _whole_weights(scores, strip, 0.0), 0.0)
    else:
        times, boost = _selection(plan, strip, columns)
        weights = jnp.where(times > 0, times * _whole_weights(scores, strip, boost), 0.0)
    if plan.use_key_negatives and not plan.single:
        m = columns.offset

        def with_positives() -> Array:
            positive = jnp.where(long_mask(runs), _positive_weights(scores[:, :m], strip), 0.0)
            return weights.at[:, :m].add(positive)

        weights = lax.cond(shard.steps == 0, with_positives, lambda: weights)
    sums = _add(sums, start, strip.anchors, weighted_sum(weights, columns), scaled)
    if not plan.use_key_negatives:
        return sums
    return sums._replace(keys=sums.keys + dot(weights[:, : columns.offset].T, scaled))


def _pull_symmetric(
    plan: Plan, sums: Sums, start: Array, strip: Back, back: Back, columns: Columns, shard: Shard, runs: Runs
) -> Sums:
    """All negatives where queries are keys, of the same groups: s_ij = s_ji, so that one product serves both sides.

    What anchor i owes column j, G_ji, has the score that is at hand for G_ij: (G + Gᵀ) K instead of G K and Gᵀ Q.
    """
    scaled, m = strip.anchors.scaled, columns.offset
    scores, mask = scores_of(scaled, columns), negative_mask(plan, strip.anchors, columns, runs)

    def negatives() -> tuple[Array, Array]:
        mirrored = back.cotangent * jnp.exp(scores[:, :m] - back.log_sum)
        both = _whole_weights(scores[:, :m], strip, 0.0) + mirrored
        return both, jnp.where(mask[:, :m], both, 0.0)

    def with_positives() -> Array:
        both, of_keys = negatives()
        shares = [side.cotangent / jnp.maximum(side.positives, 1) for side in (strip, back)]
        return of_keys + jnp.where(long_mask(runs), both - shares[0][:, None] - shares[1], 0.0)

    # all of it in the branches: what they shared would be [b, M] twice more
    of_keys = lax.cond(shard.steps == 0, with_positives, lambda: negatives()[1])
    of_queue = jnp.where(mask[:, m:], _whole_weights(scores[:, m:], strip, 0.0), 0.0)
    pull = weighted_sum(jnp.concatenate([of_keys, of_queue], axis=1), columns)
    # Σ_ij G_ij s_ij = Σ_ij G_ji s_ij: half of both together; what the queue gave is there once
    slope = (jnp.sum(scaled * pull, axis=1) + jnp.sum(of_queue * scores[:, m:], axis=1)) / 2
    keys = _update(sums.keys, start, strip.anchors.scale[:, None] * pull)
    return Sums(Pull(None, _update(sums.pull.slope, start, slope)), keys)


def _whole_weights(scores: Array, strip: Back, boost: Array | float) -> Array:
    """G of negatives, from the scores of every column."""
    return strip.cotangent[:, None] * jnp.exp(scores + boost - strip.log_sum[:, None])


def _selection(plan: Plan, strip: Back, columns: Columns) -> tuple[Array, Array | float]:
    """How often each column was selected, and with which log-weight."""
    rows, places = jnp.arange(plan.strip)[:, None], place_of(columns, strip.chosen)
    times = jnp.zeros((plan.strip, columns.size)).at[rows, places].add(1.0, mode="drop")
    if strip.boost is None:
        return times, 0.0
    # one column is never both selected and drawn
    return times, jnp.zeros_like(times).at[rows, places].set(_boosts(plan, strip), mode="drop")


def _pull_chosen(
    plan: Plan, sums: Sums, start: Array, strip: Back, columns: Columns, norms: Float[Array, " q"] | None
) -> Sums:
    """The selected columns of one device: each is read once for the anchor, and the anchor once for it."""
    places = place_of(columns, strip.chosen)
    scores = _scores_again(strip, columns, places, norms) if strip.scores is None else strip.scores
    given = jnp.where(places < columns.size, strip.cotangent[:, None], 0.0)
    exponents = jnp.where(given == 0, -jnp.inf, scores + _boosts(plan, strip) - strip.log_sum[:, None])
    weights = given * jnp.exp(exponents)
    slope = jnp.sum(jnp.where(weights == 0, 0.0, weights * scores), axis=1)
    pull = weighted_rows(weights, columns, places, norms)
    if plan.use_key_negatives:
        sums = sums._replace(keys=_scatter(sums.keys, places, weights, strip.anchors.scaled))
    return _add_both(sums, start, strip.anchors, pull, slope)


def _scores_again(strip: Back, columns: Columns, places: Int[Array, "b k"], norms: Array | None) -> Array:
    """Scores at some places, from the columns gathered for a few anchors at a time."""
    b, dim = strip.anchors.embeddings.shape
    chunk = divisor_below(b, GATHER_ELEMENTS // (places.shape[1] * dim))

    def one(pair: tuple[Array, Array]) -> Array:
        scaled, places = pair
        return jnp.einsum("cd,ckd->ck", scaled, gather_rows(columns, places, norms), precision=lax.Precision.HIGHEST)

    parts = strip.anchors.scaled.reshape(-1, chunk, dim), places.reshape(-1, chunk, places.shape[1])
    return lax.map(one, parts).reshape(places.shape)


def _scatter(
    keys: Float[Array, "m d"], places: Int[Array, "b k"], weights: Float[Array, "b k"], scaled: Float[Array, "b d"]
) -> Float[Array, "m d"]:
    """Add weights_ic · scaled_i to the key at place_ic, for a few anchors at a time; a place behind them is nowhere."""

    def by(elements: int, keys: Array, *given: Array) -> Array:
        chunk = divisor_below(places.shape[0], elements // (places.shape[1] * keys.shape[1]))

        def one(j: Array, keys: Array) -> Array:
            place, weight, rows = slice_rows(given, j * chunk, chunk)
            updates = (weight[:, :, None] * rows[:, None, :]).reshape(-1, keys.shape[1])
            return keys.at[place.reshape(-1)].add(updates, mode="drop")

        return lax.fori_loop(0, places.shape[0] // chunk, one, keys)

    few, more = partial(by, SCATTER_ELEMENTS), partial(by, GATHER_ELEMENTS)
    return lax.platform_dependent(keys, places, weights, scaled, cpu=few, default=more)


def _pull_pairs(plan: Plan, sums: Sums, back: Back, columns: Columns, norms: Array | None) -> Sums:
    """The selected columns that lie on this shard: pairs of anchor and column, packed, a chunk at a time.

    Over all shards each pair is computed once; only the packing looks at every number on every shard.
    """
    width, dim = back.chosen.shape[1], back.anchors.embeddings.shape[1]
    places = place_of(columns, back.chosen).reshape(-1)
    here = places < columns.size
    chunk = min(max(GATHER_ELEMENTS // (2 * dim), 1), places.shape[0])
    packed, turns = pack(here, chunk)
    boosts = None if back.boost is None else jnp.reshape(_boosts(plan, back), -1)

    def one(j: Array, sums: Sums) -> Sums:
        pair = lax.dynamic_slice_in_dim(packed, j * chunk, chunk)
        real, pair = pair < places.shape[0], jnp.minimum(pair, places.shape[0] - 1)
        row, place = pair // width, jnp.minimum(places[pair], columns.size - 1)
        scaled = jax.tree.map(lambda x: x[row], back.anchors).scaled
        rows = gather_rows(columns, place, norms)
        score = jnp.sum(scaled * rows, axis=1)
        boost = 0.0 if boosts is None else boosts[pair]
        weight = back.cotangent[row] * jnp.exp(score + boost - back.log_sum[row])
        weight = jnp.where(real, weight, 0.0)[:, None]
        assert sums.pull.rows is not None  # over several devices there are two accumulators
        pull = Pull(
            rows=sums.pull.rows.at[row].add(weight * rows), slope=sums.pull.slope.at[row].add(weight[:, 0] * score)
        )
        if not plan.use_key_negatives:
            return Sums(pull, sums.keys)
        target = jnp.where(real & (place < columns.offset), place, sums.keys.shape[0])
        return Sums(pull, sums.keys.at[target].add(weight * scaled, mode="drop"))

    return lax.fori_loop(0, turns, one, sums)


def _pull_short(sums: Sums, start: Array, strip: Back, shard: Shard, runs: Runs) -> Sums:
    """Short runs of positives, one partner at a time."""
    scaled = strip.anchors.scaled

    def one(offset: Array, sums: Sums) -> Sums:
        rows, number, real = partner(shard.keys, runs, offset)
        weights = jnp.where(real, _positive_weights(jnp.sum(scaled * rows, axis=1), strip), 0.0)[:, None]
        sums = _add(sums, start, strip.anchors, weights * rows, scaled)
        return sums._replace(keys=sums.keys.at[number].add(weights * scaled))

    return lax.fori_loop(0, shard.steps, one, sums)


def _pull_long(sums: Sums, start: Array, strip: Back, shard: Shard, runs: Runs) -> Sums:
    """Long runs of positives by whole products, where `_pull_whole` did not take them along."""
    rows = strip.log_sum.shape[0]
    # never the whole strip: what does not change from turn to turn XLA takes out of the loop, and computes it always
    some = divisor_below(rows, min(LONG_ROWS, rows // 2))

    def one(j: Array, sums: Sums) -> Sums:
        part = slice_rows(strip, j * some, some)
        group, own, row = slice_rows((runs.group, runs.own, runs.row), j * some, some)
        mask: Bool[Array, "b m"] = long_mask(runs._replace(group=group, own=own, row=row))
        scaled = part.anchors.scaled
        weights = jnp.where(mask, _positive_weights(dot(scaled, shard.keys.T), part), 0.0)
        sums = _add(sums, start + j * some, part.anchors, dot(weights, shard.keys), scaled)
        return sums._replace(keys=sums.keys + dot(weights.T, scaled))

    turns = jnp.where(shard.steps == 0, rows // some, 0)
    return lax.fori_loop(0, turns, one, sums)
