"""Negatives that come block by block: a queue too large for the device passes by it, once forward and once backward.

  met ← meet_block(met, queries, block)          for each block: scores, and the k largest so far or the log-sum so far
  loss, ∂/∂met ← streaming_infonce(…, met=met)   the rest of the columns are here
  ∂/∂queries += pull_block(∂/∂met, block)        for each block again: Σ_j ∂/∂s_ij · block_j / temperature

The second pass has the column numbers that were selected, and no gradient to the block: it is the chain rule through
`met`. Of scores one strip against one block exists at a time; with `axis_name` every device gathers the block, of which
each holds a share, and keeps its queries.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxcl.losses.arguments import NOBODY, STRANGER, Bank, Problem
from jaxcl.losses.columns import count_nonfinite, scores_of, weighted_sum
from jaxcl.losses.met import Met, padded_rows
from jaxcl.losses.normalise import inverse_norm
from jaxcl.losses.plan import Plan, strip_size
from jaxcl.losses.pruning import subblocks_for
from jaxcl.losses.sides import Anchors, Shard, columns_of, make_context, negative_mask, runs_of
from jaxcl.losses.strip import visit_strip
from jaxcl.losses.travel import by_tiles, nothing_yet, together
from jaxcl.losses.varying import axes_of, vary

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Float, Int


class Block(NamedTuple):
    """Some rows of a queue, one after another.

    Attributes:
        values: [R, D], any float dtype; with `axis_name` this device's share of the rows.
        groups: [R] int32 of all of them.
        start: number of the first one in the queue, an int32 scalar.
        filled: valid rows of the whole queue, the first ones, an int32 scalar.
    """

    values: Float[Array, "r d"]
    groups: Int[Array, " all"]
    start: Int[Array, ""]
    filled: Int[Array, ""]


def nothing_met(rows: int, top_k: int | None) -> Met:
    """What queries have met before the first block.

    Args:
        rows: how many queries.
        top_k: negatives that are kept for each; None: all count, and none is kept.

    Returns:
        For `meet_block`.

    >>> nothing_met(3, 2).part.values.shape
    (3, 2)
    """
    plan = _plan(rows, rows, 1, top_k)
    like: Any = Anchors(*(jnp.zeros(rows, jnp.int32),) * 6, None, None)
    return Met(nothing_yet(plan, like), jnp.int32(0))


def meet_block(
    met: Met,
    queries: Float[Array, "n d"],
    query_groups: Int[Array, " n"],
    block: Block,
    *,
    temperature: Any,
    top_k: int | None,
    keys: int,
    axis_name: str | None = None,
) -> Met:
    """Queries meet one more block; of equal scores the lowest column number stays, whatever the order.

    Args:
        met: from `nothing_met` or `meet_block`.
        queries: [N, D], as the loss is given them.
        query_groups: [N] int32.
        block: rows of the queue.
        temperature: scalar above 0.
        top_k: as in `nothing_met`.
        keys: of the loss, over all devices: queue rows are numbered behind them.
        axis_name: inside `jax.shard_map` with check_vma=True: queries and the block's values are this device's share.

    Returns:
        What they have met now.

    Example:
        >>> block = Block(jnp.eye(4), jnp.arange(4), jnp.int32(0), jnp.int32(3))
        >>> queries, groups, given = jnp.eye(4)[1:3], jnp.array([1, 7]), dict(temperature=1.0, top_k=1, keys=2)
        >>> met = meet_block(nothing_met(2, 1), queries, groups, block, **given)
        >>> met.part.chosen.tolist(), met.part.negatives.tolist()
        ([[2], [4]], [2, 3])
    """
    bad = count_nonfinite(jnp.zeros((1, queries.shape[1])), _bank(block, _first_row(block, axis_name)))
    bad = bad if axis_name is None else lax.psum(bad, axis_name)
    block = _whole(block, axis_name)
    plan, anchors, shard = _sides(queries, query_groups, block, temperature, top_k, keys)
    part = padded_rows(met.part, anchors.group.shape[0] - plan.rows)
    everything = vary((anchors, shard, part), axes_of((anchors, shard, part)))

    def one(tile: tuple[Anchors, Any]) -> Any:
        return together(plan, visit_strip(plan, tile[0], everything[1]), tile[1])

    found = by_tiles(plan, (everything[0], everything[2]), one)
    return Met(jax.tree.map(lambda x: x[: plan.rows], found), met.nonfinite + bad)


def pull_block(
    cotangent: tuple[Float[Array, "n k"], Float[Array, " n"]],
    met: Met,
    queries: Float[Array, "n d"],
    query_groups: Int[Array, " n"],
    block: Block,
    *,
    temperature: Any,
    top_k: int | None,
    keys: int,
    axis_name: str | None = None,
) -> Float[Array, "n d"]:
    """What one block adds to the gradient of the normalised queries.

    Args:
        cotangent: of `met.part.values` and `met.part.repulsion`, those of the last block's result.
        met: that result.
        queries: [N, D], and the rest as in `meet_block`.
        query_groups: [N] int32.
        block: rows of the queue.
        temperature: scalar above 0.
        top_k: as there.
        keys: as there.
        axis_name: as there.

    Returns:
        [N, D] float32; `through_norm` makes the gradient of the queries of the sum over all blocks.
    """
    block = _whole(block, axis_name)
    plan, anchors, shard = _sides(queries, query_groups, block, temperature, top_k, keys)
    given = padded_rows((*cotangent, met.part.chosen, met.part.repulsion), anchors.group.shape[0] - plan.rows)
    everything = vary((anchors, shard, given), axes_of((anchors, shard, given)))
    columns = columns_of(plan, everything[1])

    def one(tile: tuple[Anchors, Any]) -> Array:
        own, (of_values, of_repulsion, chosen, repulsion) = tile
        if top_k is None:
            mask = negative_mask(plan, own, columns, runs_of(plan, own, everything[1]))
            share = jnp.exp(scores_of(own.scaled, columns) - repulsion[:, None])
            weights = jnp.where(mask, of_repulsion[:, None] * share, 0.0)
        else:
            place = chosen - columns.queue_start
            place = jnp.where((place >= 0) & (place < columns.size), place, columns.size)
            row = jnp.arange(plan.strip)[:, None]
            weights = jnp.zeros((plan.strip, columns.size)) + 0 * own.scale[:, None]  # varies as the anchors do
            weights = weights.at[row, place].add(of_values, mode="drop")
        return own.scale[:, None] * weighted_sum(weights, columns)

    return by_tiles(plan, (everything[0], everything[2]), one)[: plan.rows]


def _plan(rows: int, columns: int, dimensions: int, top_k: int | None) -> Plan:
    """The strip engine on one device, for columns that are a queue."""
    strip = strip_size(rows, columns, dimensions, None)
    return Plan(
        rows=rows,
        strip=strip,
        top_k=top_k,
        samples=0,
        draws=0,
        exclude_diagonal=False,
        use_key_negatives=False,
        same=False,
        same_groups=False,
        single=True,
        dimensions=dimensions,
        columns=columns,
        devices=1,
        axis=None,
        transport=None,
        impl="strip",
        tile=strip,
        sub=0 if top_k is None else subblocks_for(columns, top_k),
        met=True,
    )


def _sides(
    queries: Array, query_groups: Array, block: Block, temperature: Any, top_k: int | None, keys: int
) -> tuple[Plan, Anchors, Shard]:
    """Queries filled up to whole strips, and the block; nobody has a positive in it."""
    size, dimensions = block.values.shape
    plan = _plan(queries.shape[0], size, dimensions, top_k)
    extra = -plan.rows % plan.strip
    queries = jnp.pad(queries, ((0, extra), (0, 0)))
    groups = jnp.pad(jnp.where(query_groups < 0, NOBODY, query_groups), (0, extra), constant_values=NOBODY)
    no_key, no_partner = jnp.zeros((1, queries.shape[1])), jnp.full(groups.shape, -1, jnp.int32)
    scale = 1 / jnp.asarray(temperature, jnp.float32)
    stranger = jnp.full(1, STRANGER, jnp.int32)
    problem = Problem(queries, no_key, groups, stranger, scale, no_partner, _bank(block, jnp.int32(0)))
    context = make_context(problem, plan, None)
    scales, inverse = jnp.broadcast_to(scale, groups.shape), inverse_norm(queries)[:, 0]
    anchors = context.anchors._replace(embeddings=queries, inverse=inverse, scale=scales)
    columns = context.shard.columns._replace(queue_start=keys + block.start)
    return plan, anchors, context.shard._replace(keys=no_key, columns=columns)


def _bank(block: Block, first: Any) -> Bank:
    """The rows from one on, with the mask of those that count."""
    rows = block.values.shape[0]
    groups = lax.dynamic_slice_in_dim(block.groups, first, rows)
    valid = block.start + first + jnp.arange(rows) < block.filled
    return Bank(block.values, jnp.where(groups < 0, STRANGER, groups), valid, block.filled)


def _first_row(block: Block, axis_name: str | None) -> Any:
    """Of this device, in the block."""
    return jnp.int32(0) if axis_name is None else lax.axis_index(axis_name) * block.values.shape[0]


def _whole(block: Block, axis_name: str | None) -> Block:
    """All rows of a block on every device."""
    if axis_name is None:
        return block
    return block._replace(values=lax.all_gather(block.values, axis_name, tiled=True))
