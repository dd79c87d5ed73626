"""The column engine: blocks of columns, and for each anchor a running selection and a running log-sum (Xu 2026).

Memory is a tile of anchors times a block of columns, whatever there is of either. What a block adds to the selection is
in `running`; the masks, the log-sum of all negatives, positives and drawn columns are here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from jaxcl.losses.arguments import STRANGER
from jaxcl.losses.columns import Columns, dot, number_of, place_of, queue_rows
from jaxcl.losses.packing import again
from jaxcl.losses.partial import Partial, finite_or_zero, numbers_or_nothing
from jaxcl.losses.plan import Plan
from jaxcl.losses.positives import Runs, long_sums, short_sums
from jaxcl.losses.running import begin, end, update, work_of
from jaxcl.losses.sides import (
    Anchors,
    Shard,
    columns_of,
    count_negatives,
    negative_mask,
    real_keys,
    runs_of,
)
from jaxcl.losses.varying import full_like

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Bool, Float, Int


class Section(NamedTuple):
    """Columns of one kind.

    Attributes:
        rows: [C, D] normalised keys, or the queue as it is stored.
        groups: [C] int32, below 0 for no group.
        candidate: [C] bool.
        length: columns without padding.
        offset: place of the first.
        stored: whether rows must be normalised where they are read.
    """

    rows: Float[Array, "c d"]
    groups: Int[Array, " c"]
    candidate: Bool[Array, " c"]
    length: int
    offset: int
    stored: bool


class Block(NamedTuple):
    """Columns that are compared at once.

    Attributes:
        rows: [B, D] float32, normalised.
        groups: [B] int32, `STRANGER` for columns that an earlier block had.
        candidate: [B] bool, False for them too.
        place: of the first.
    """

    rows: Float[Array, "b d"]
    groups: Int[Array, " b"]
    candidate: Bool[Array, " b"]
    place: Int[Array, ""]


class Sums(NamedTuple):
    """Running sums for each anchor; `mass` is Σ e^{s − hardest} over negatives, the others are those of `Partial`."""

    hardest: Float[Array, " n"]
    mass: Float[Array, " n"]
    total: Float[Array, " n"]
    attraction: Float[Array, " n"]
    drawn: Float[Array, "n r"] | None


def visit_tile(plan: Plan, anchors: Anchors, shard: Shard) -> Partial:
    """What a shard contributes to a tile of anchors.

    Args:
        plan: static choices.
        anchors: one tile.
        shard: columns.

    Returns:
        The contribution.
    """
    columns, runs, scaled = columns_of(plan, shard), runs_of(plan, anchors, shard), anchors.scaled
    draws = None if anchors.draws is None else place_of(columns, anchors.draws)
    keys, queue = _keys(plan, shard), _queue(columns)
    sections = [keys] * plan.use_key_negatives + ([] if queue is None else [queue])

    def negatives(carry: tuple[Any, Sums], block: Block, scores: Array) -> tuple[Any, Sums]:
        kept, sums = carry
        every = _negative_scores(plan, anchors, columns, runs, block, scores)
        kept, largest = update(plan, kept, every, block.place)
        return kept, _add_negatives(sums, every, largest, block, draws)

    def of_keys(carry: tuple[Any, Sums], block: Block) -> tuple[Any, Sums]:
        scores = dot(scaled, block.rows.T)
        kept, sums = negatives(carry, block, scores) if plan.use_key_negatives else carry
        return kept, sums if plan.single else _add_positives(sums, scores, block, shard, runs)

    def of_queue(carry: tuple[Any, Sums], block: Block) -> tuple[Any, Sums]:
        return negatives(carry, block, dot(scaled, block.rows.T))

    carry = begin(plan, scaled), _begin_sums(scaled, draws, shard, runs)
    # keys that are no negatives are read in blocks only where positives are not gathered one after another
    carry = _over(plan, keys, of_keys, carry, idle=False if plan.use_key_negatives else shard.steps > 0)
    kept, sums = carry if queue is None else _over(plan, queue, of_queue, carry)
    values, places, tied = end(plan, kept)
    if tied is not None:
        places = again(lambda some: _lowest_places(plan, some, shard), tied, anchors, places)
    return Partial(
        values,
        numbers_or_nothing(values, number_of(columns, places)),
        jnp.log(sums.mass) + finite_or_zero(sums.hardest),
        sums.hardest,
        sums.total,
        sums.attraction,
        runs.positives,
        count_negatives(plan, anchors, shard, runs),
        sums.drawn,
        work_of(plan, kept, tied, _widths(plan, sections)),
    )


def _lowest_places(plan: Plan, anchors: Anchors, shard: Shard) -> Int[Array, "n k"]:
    """Places of the selected columns of a few anchors, without pruning."""
    plan = plan._replace(prune=None)
    columns, runs, scaled = columns_of(plan, shard), runs_of(plan, anchors, shard), anchors.scaled

    def add(kept: Any, block: Block) -> Any:
        every = _negative_scores(plan, anchors, columns, runs, block, dot(scaled, block.rows.T))
        return update(plan, kept, every, block.place)[0]

    kept = begin(plan, scaled)
    for section in (_keys(plan, shard) if plan.use_key_negatives else None, _queue(columns)):
        kept = kept if section is None else _over(plan, section, add, kept)
    return end(plan, kept)[1]


def _keys(plan: Plan, shard: Shard) -> Section:
    """The keys of a shard."""
    count = real_keys(plan, shard.keys.shape[0])
    real = jnp.arange(shard.keys.shape[0]) < count
    return Section(shard.keys, shard.key_groups, real, count, 0, False)


def _queue(columns: Columns) -> Section | None:
    """The queue rows of a shard."""
    if columns.queue is None:
        return None
    first = columns.offset
    return Section(columns.queue, columns.groups[first:], columns.candidate[first:], columns.size - first, first, True)


def _width(plan: Plan, count: int) -> int:
    """Columns that a block of `count` columns or more reads."""
    return plan.width if plan.sub else min(plan.block, count)


def _widths(plan: Plan, sections: list[Section]) -> list[int]:
    """What their blocks read, one after another."""
    counts = [section.length for section in sections]
    return [_width(plan, count) for count in counts for _ in range(-(-count // plan.block))]


def _over(plan: Plan, section: Section, add: Callable[[Any, Block], Any], carry: Any, idle: Any = False) -> Any:
    """Add one block after another; the last begins earlier, so that all are of one width.

    A section of less than that is filled up, which copies less than a block.
    """
    count, size = section.length, section.groups.shape[0]
    width = _width(plan, count)
    rows, groups, candidate = (
        jnp.pad(x, ((0, max(width - size, 0)),) + ((0, 0),) * (x.ndim - 1))
        for x in (section.rows, section.groups, section.candidate)
    )

    def one(j: Array, carry: Any) -> Any:
        start = jnp.minimum(j * plan.block, groups.shape[0] - width)
        number = start + jnp.arange(width)
        fresh = (number >= j * plan.block) & (number < jnp.minimum((j + 1) * plan.block, count))
        theirs, real = (lax.dynamic_slice_in_dim(x, start, width) for x in (groups, candidate))
        if section.stored:
            read = queue_rows(rows, candidate, start, width)
        else:
            read = lax.dynamic_slice_in_dim(rows, start, width)
        return add(carry, Block(read, jnp.where(fresh, theirs, STRANGER), real & fresh, section.offset + start))

    blocks = -(-count // plan.block)
    return lax.fori_loop(0, jnp.where(idle, 0, blocks), one, carry)


def _negative_scores(
    plan: Plan, anchors: Anchors, columns: Columns, runs: Runs, block: Block, scores: Float[Array, "n b"]
) -> Float[Array, "n b"]:
    """Scores of negatives, −inf for all else."""
    columns = columns._replace(groups=block.groups, candidate=block.candidate)
    runs = runs._replace(row=runs.row - block.place, start=runs.start - block.place)
    return jnp.where(negative_mask(plan, anchors, columns, runs), scores, -jnp.inf)


def _begin_sums(scaled: Float[Array, "n d"], draws: Array | None, shard: Shard, runs: Runs) -> Sums:
    """Nothing but positives that are gathered one after another; where they are not, there are no steps."""
    rows = scaled.shape[:1]
    low, none = full_like(scaled, rows, -jnp.inf), full_like(scaled, rows, 0.0)
    drawn = None if draws is None else full_like(scaled, draws.shape, -jnp.inf)
    return Sums(low, none, *short_sums(scaled, shard.keys, runs, shard.steps), drawn)


def _add_negatives(
    sums: Sums, every: Float[Array, "n b"], largest: Float[Array, " n"], block: Block, draws: Array | None
) -> Sums:
    """One more block of negatives; a NaN stays one."""
    hardest = jnp.maximum(sums.hardest, largest)
    shift = finite_or_zero(hardest)
    mass = sums.mass * jnp.exp(sums.hardest - shift) + jnp.sum(jnp.exp(every - shift[:, None]), axis=1)
    if draws is None or sums.drawn is None:
        return sums._replace(hardest=hardest, mass=mass)
    there = draws - block.place
    there = jnp.where(there < 0, every.shape[1], there)  # a negative one would count from the end
    scores = jnp.take_along_axis(every, there, axis=1, mode="fill", fill_value=-jnp.inf)
    return sums._replace(hardest=hardest, mass=mass, drawn=jnp.maximum(sums.drawn, scores))


def _add_positives(sums: Sums, scores: Float[Array, "n b"], block: Block, shard: Shard, runs: Runs) -> Sums:
    """One more block of positives, where they are not gathered."""
    runs = runs._replace(row=runs.row - block.place, key_groups=block.groups)

    def long() -> tuple[Array, Array]:
        total, attraction = long_sums(lambda first, some: lax.dynamic_slice_in_dim(scores, first, some), runs)
        return sums.total + total, jnp.logaddexp(sums.attraction, attraction)

    total, attraction = lax.cond(shard.steps == 0, long, lambda: (sums.total, sums.attraction))
    return sums._replace(total=total, attraction=attraction)
