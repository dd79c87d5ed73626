"""The two sides of a comparison: anchors, and the shard of columns they meet; either may travel between devices."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxcl.losses.arguments import Problem
from jaxcl.losses.columns import Columns
from jaxcl.losses.plan import Plan
from jaxcl.losses.positives import Runs, find_runs, named_runs, steps_of_short_runs
from jaxcl.losses.tail import draw_columns

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Bool, Float, Int


class Anchors(NamedTuple):
    """Queries and what must go where they go; every leaf has a row for each.

    Attributes:
        embeddings: [N, D]: the normalised keys where they are the queries; elsewhere as given, since a normalised copy
            would be another N × D.
        inverse: [N] what normalises them; None: they are.
        scale: [N] 1 / temperature.
        group: [N] int32.
        number: [N] int32, the key that each query is, under `exclude_diagonal`.
        own: [N] bool, that key is of the query's group.
        partner: [N] int32, number of the only positive, below 0: none; None where groups name them.
        draws: [N, R] int32, columns drawn for the sampled tail; None without one.
    """

    embeddings: Float[Array, "n d"]
    inverse: Float[Array, " n"] | None
    scale: Float[Array, " n"]
    group: Int[Array, " n"]
    number: Int[Array, " n"]
    own: Bool[Array, " n"]
    partner: Int[Array, " n"] | None
    draws: Int[Array, "n r"] | None

    @property
    def scaled(self) -> Float[Array, "n d"]:
        """Rows whose products with columns are scores."""
        unit = self.embeddings
        if self.inverse is not None:
            unit = unit.astype(jnp.float32) * self.inverse[:, None]  # then scaled: both together may overflow
        return unit * self.scale[:, None]


class Shard(NamedTuple):
    """The columns of one device.

    Attributes:
        keys: [M, D] float32, normalised: where positives are.
        columns: where negatives are; its `keys` are left out, `columns_of` puts them in.
        key_groups: [M] int32.
        order: [M] the keys sorted by group.
        census: [M + K] groups of the candidates, sorted; the others lowest.
        steps: partners to gather one after another, 0: by strips.
    """

    keys: Float[Array, "m d"]
    columns: Columns
    key_groups: Int[Array, " m"]
    order: Int[Array, " m"]
    census: Int[Array, " c"]
    steps: Int[Array, ""]


class Context(NamedTuple):
    """Everything without gradient: anchors and columns but for the embeddings of queries and keys."""

    anchors: Anchors  # its embeddings, their norms and the scale are those of the engine
    shard: Shard  # its keys too


def make_context(problem: Problem, plan: Plan, tail_key: Array | None) -> Context:
    """Vectors that say who is what for whom, on this device.

    Args:
        problem: checked inputs, anchors padded to whole tiles.
        plan: static choices.
        tail_key: of the columns that are drawn for each anchor; None without a sampled tail.

    Returns:
        The context.
    """
    device = lax.axis_index(plan.axis) if plan.axis else jnp.int32(0)
    m = problem.key_groups.shape[0]
    real = real_keys(plan, m)
    groups, candidate = [], []
    if plan.use_key_negatives:
        groups, candidate = [problem.key_groups], [jnp.arange(m) < real]
    queue, queue_start = None, jnp.int32(plan.devices * real)
    if problem.bank is not None:
        queue = problem.bank.values
        queue_start += device * queue.shape[0]
        groups, candidate = [*groups, problem.bank.groups], [*candidate, problem.bank.valid]
    group, kept = jnp.concatenate(groups), jnp.concatenate(candidate)
    columns = Columns(None, queue, group, kept, device * real, jnp.int32(real), queue_start)
    order = jnp.arange(m, dtype=jnp.int32) if plan.single else jnp.argsort(problem.key_groups).astype(jnp.int32)
    steps = jnp.int32(1) if plan.single else steps_of_short_runs(problem.key_groups, order)
    lowest = jnp.iinfo(jnp.int32).min
    shard = Shard(
        jnp.zeros((0, 0)), columns, problem.key_groups, order, jnp.sort(jnp.where(kept, group, lowest)), steps
    )
    anchors = _anchors(problem, plan, device)
    if tail_key is not None:
        keys = plan.devices * real
        filled = 0 if problem.bank is None else problem.bank.filled
        drawable = keys if plan.use_key_negatives else 0
        draws = draw_columns(tail_key, anchors.number, plan.draws, keys=drawable, queue_start=keys, filled=filled)
        anchors = anchors._replace(draws=draws)
    return Context(anchors, shard)


def real_keys(plan: Plan, stored: int) -> int:
    """Keys of a device without padding: there is some where they are the queries, which fill whole tiles."""
    return plan.rows if plan.same else stored


def _anchors(problem: Problem, plan: Plan, device: Any) -> Anchors:
    """Anchors without embeddings, norms, scale and draws."""
    rows = problem.query_groups.shape[0]
    own = jnp.zeros(rows, bool)
    if plan.exclude_diagonal:
        keys = jnp.pad(problem.key_groups, (0, rows - problem.key_groups.shape[0]), constant_values=-3)
        own = problem.query_groups == keys
    number = device * plan.rows + jnp.arange(rows, dtype=jnp.int32)
    nothing = jnp.zeros((rows, 0))
    return Anchors(nothing, None, nothing, problem.query_groups, number, own, problem.partner, None)


def columns_of(plan: Plan, shard: Shard) -> Columns:
    """The columns that are negatives."""
    return shard.columns._replace(keys=shard.keys) if plan.use_key_negatives else shard.columns


def runs_of(plan: Plan, anchors: Anchors, shard: Shard) -> Runs:
    """Where the positives of these anchors are in a shard."""
    row = _among_keys(shard, anchors.number) if plan.exclude_diagonal else jnp.full_like(anchors.number, -1)
    if anchors.partner is None:
        return find_runs(anchors.group, row, anchors.own, shard.order, shard.key_groups)
    place = _among_keys(shard, anchors.partner)
    known = (place >= 0) & (anchors.group >= 0) & (shard.key_groups[jnp.maximum(place, 0)] >= 0)
    if plan.exclude_diagonal:
        known &= anchors.partner != anchors.number
    return named_runs(jnp.where(known, place, -1), anchors.group, row, shard.order, shard.key_groups)


def _among_keys(shard: Shard, number: Int[Array, " b"]) -> Int[Array, " b"]:
    """Place of a key's number in a shard, −1 where it lies elsewhere."""
    place = number - shard.columns.key_start
    return jnp.where((number >= 0) & (place >= 0) & (place < shard.columns.key_count), place, -1)


def negative_mask(plan: Plan, anchors: Anchors, columns: Columns, runs: Runs) -> Bool[Array, "b c"]:
    """Which columns are negatives of the anchors."""
    mask = (anchors.group[:, None] != columns.groups[None, :]) & columns.candidate[None, :]
    if not plan.use_key_negatives:
        return mask
    place = jnp.arange(columns.size)[None, :]
    if plan.exclude_diagonal:
        mask &= runs.row[:, None] != place
    if plan.single:
        mask &= jnp.where(runs.length > 0, runs.start, -1)[:, None] != place
    return mask


def count_negatives(plan: Plan, anchors: Anchors, shard: Shard, runs: Runs) -> Int[Array, " b"]:
    """|Neg| among a shard's columns: its candidates less those of the anchor's group, less the one it may not see."""
    same = jnp.searchsorted(shard.census, anchors.group, side="right")
    same -= jnp.searchsorted(shard.census, anchors.group, side="left")
    count = jnp.sum(shard.columns.candidate) - same
    if plan.use_key_negatives and plan.exclude_diagonal:
        count -= (runs.row >= 0) & ~anchors.own
    if plan.use_key_negatives and plan.single:
        count -= (runs.length > 0) & (shard.key_groups[runs.start] != anchors.group)
    return count.astype(jnp.int32)


def slice_rows(tree: Any, start: Array, length: int) -> Any:
    """Rows [start, start + length) of every leaf."""
    return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, length), tree)
