"""What pruning saves in a running selection, and how much is skipped, beside the law that says how much can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxcl.bench.measure import Program, measure
from jaxcl.bench.programs import Variant
from jaxcl.bench.rows import FASTER, Bar, Row, compared, row_of
from jaxcl.losses.plan import Plan
from jaxcl.losses.pruning import Blocks, column_blocks, expected_skip_rate
from jaxcl.losses.running import begin, end, update, work_of

LESS_TIME = Bar(least=1.5)
CALLS = 8  # runs within one timing: a selection of one tile takes a few milliseconds
PLAIN = "selection, nothing pruned"
PAPER = "selection, as Xu (2026) reports it"
WHAT_IT_COUNTS = (
    "89.1 % of (row, whole block) pairs skipped, and a selection 3.62 times as fast: more than columns in random order "
    "allow at this k and block; no code is published"
)


def pruning_rows(n: int, d: int, k: int, block: int, rounds: int, compile_program: Callable[..., Program]) -> list[Row]:
    """Times the selection of one tile of anchors, pruned in both ways and not at all.

    The scores of each block are an argument, as in the engine, where a product has just made them: nothing but the
    selection is timed.

    Args:
        n: columns.
        d: dimensions of the embeddings that they are scores of.
        k: scores kept.
        block: columns of a block where whole blocks are skipped.
        rounds: timings of each.
        compile_program: as in `measure`.

    Returns:
        Rows.
    """
    chosen = column_blocks(rows=n, strip=n, keys=n, queue=0, top_k=k, block_size=None)
    ways = {PLAIN: chosen._replace(prune=None, sub=0, width=chosen.block)}
    if chosen.prune is not None:
        ways[f"selection, sub-blocks of {chosen.sub} pruned"] = chosen
    whole = column_blocks(rows=n, strip=n, keys=n, queue=0, top_k=k, block_size=block)._replace(prune="rows", sub=0)
    ways[f"selection, whole blocks of {block} pruned"] = whole._replace(width=block, tile=chosen.tile)
    scores = _scores(n, d, chosen.tile)
    programs: dict[Any, Program] = {
        name: compile_program(_selection(way, n, k), *_blocks(scores, way)) for name, way in ways.items()
    }
    found, variant = measure(programs, rounds, calls=CALLS), Variant("column", n, d, k, backward=False)
    rows = []
    for name, way in ways.items():
        _, skipped = programs[name].run()
        row = row_of(variant, found[name], name=name, loss=None, note=_note(way, n, k, float(skipped)))
        if name != PLAIN:
            row = compared(row, FASTER, found[name], found[PLAIN], PLAIN, LESS_TIME if way is chosen else None)
        rows.append(row)
    return [*rows, row_of(variant, found[PLAIN]._replace(ms=None, temp_bytes=None), name=PAPER, note=WHAT_IT_COUNTS)]


def _scores(n: int, d: int, tile: int) -> jax.Array:
    """Cosines of a tile of anchors with n others, [tile, n]."""
    anchors, columns = (jax.random.normal(jax.random.key(seed), (rows, d)) for seed, rows in ((0, tile), (1, n)))
    unit = [x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (anchors, columns)]
    return jnp.matmul(unit[0], unit[1].T)


def _blocks(scores: jax.Array, blocks: Blocks) -> list[jax.Array]:
    """Whole blocks of columns, filled up to what a block reads; what remains is left out, here and in the law."""
    whole = scores.shape[1] // blocks.block * blocks.block
    parts = jnp.split(scores[:, :whole], whole // blocks.block, axis=1)
    return [jnp.pad(x, ((0, 0), (0, blocks.width - blocks.block)), constant_values=-jnp.inf) for x in parts]


def _selection(blocks: Blocks, n: int, k: int) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """A function of the blocks' scores: places of the k largest a row, and the share of the work that was skipped."""

    def select(*parts: jax.Array) -> tuple[jax.Array, jax.Array]:
        plan = _plan(blocks, parts[0].shape[0], n, k)
        kept = begin(plan, parts[0])
        for j, part in enumerate(parts):
            kept, _ = update(plan, kept, part, jnp.int32(j * blocks.block))
        _, places, tied = end(plan, kept)
        work = work_of(plan, kept, tied, [blocks.width] * len(parts))
        tested = work.subblocks_tested if blocks.sub else work.rows_tested
        skipped = work.subblocks_skipped if blocks.sub else work.rows_skipped
        return places, jnp.sum(skipped) / jnp.sum(tested)

    return select


def _plan(blocks: Blocks, rows: int, columns: int, k: int) -> Plan:
    """What a selection reads of a plan, and the rest as in a loss without anything special."""
    flags = dict(exclude_diagonal=False, use_key_negatives=True, same=False, same_groups=False, single=False)
    sizes = dict(rows=rows, top_k=k, samples=0, draws=0, dimensions=0, columns=columns, devices=1)
    return Plan(**sizes, **flags, axis=None, transport=None, impl="column", **blocks._asdict())  # type: ignore[arg-type]


def _note(blocks: Blocks, n: int, k: int, skipped: float) -> str | None:
    """What was skipped beside the law."""
    if blocks.prune is None:
        return None
    whole = n // blocks.block * blocks.block
    if blocks.sub:
        law, what = 1 - k * blocks.sub / whole, "(row, sub-block) pairs: law 1 − k/J"
    else:
        law, what = (
            expected_skip_rate(whole, blocks.block, k),
            "(row, whole block) pairs: law for columns in random order",
        )
    return f"skips {skipped:.1%} of {what} = {law:.1%}"
