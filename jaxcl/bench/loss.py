"""The table of `python -m jaxcl.bench loss`: what is compared with what, and the bars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax

from jaxcl.bench import pytorch
from jaxcl.bench.measure import Measured, Program, compile_program, measure
from jaxcl.bench.programs import (
    ENGINES,
    Variant,
    arguments_of,
    embeddings,
    function_of,
    shapes_of,
)
from jaxcl.bench.pruning import pruning_rows
from jaxcl.bench.rows import FASTER, MEMORY, TIME, Bar, Row, compared, row_of
from jaxcl.bench.selection import row_maximum, row_maximum_in_strips

MIB = 1 << 20
FAST_COMPILE = {"xla_backend_optimization_level": 0}
TORCH, FLOOR, NTXENT = "dense, PyTorch", "GEMM + row maximum", "optax.losses.ntxent"


@dataclass(frozen=True)
class Scale:
    """How large everything is.

    Attributes:
        n: embeddings.
        dims: dimensions, of which the first is that of all rows measured once.
        k: negatives kept.
        more_k: other numbers of them.
        rounds: timings of each program.
        block: rows a block where memory's growth with n is measured.
        long: embeddings of the program that is only compiled.
        pairwise: embeddings at which optax's N × N × D array is still measured: 512 MiB at 1024 and 128 dimensions.
        pruned: k, and columns of a block that is skipped as a whole, where a running selection is timed.
        judged: whether the bars are for this size, and the programs optimised; else they only compile fast.
    """

    n: int
    dims: tuple[int, ...]
    k: int
    more_k: tuple[int, ...]
    rounds: int
    block: int
    long: int
    pairwise: int
    judged: bool
    pruned: tuple[int, int]

    def compile(self, function: Callable[..., Any], *arguments: Any) -> Program:
        """Compiles at this scale."""
        return compile_program(function, *arguments, options=None if self.judged else FAST_COMPILE)

    def compile_loss(self, variant: Variant) -> Program:
        """A loss, ready to run."""
        return self.compile(function_of(variant), *arguments_of(variant))

    def memory(self, variant: Variant) -> Measured:
        """A loss that is only compiled."""
        program = self.compile(function_of(variant), *shapes_of(variant))
        return Measured(None, program.temp_bytes, program.compile_seconds)


FULL = Scale(8192, (128, 512), 64, (1, 16, 410), 5, 128, 65536, 1024, judged=True, pruned=(32, 512))
QUICK = Scale(128, (16,), 8, (1,), 2, 16, 512, 32, judged=False, pruned=(2, 32))


class Bars(NamedTuple):
    """Of one dimension: speed against dense JAX and PyTorch, memory against dense JAX, forward against the product."""

    dense: Bar
    torch: Bar
    memory: Bar
    memory_two: Bar
    forward: Bar


BARS = (
    Bars(Bar(least=2.0, aim=2.5), Bar(least=3.0), Bar(most=1 / 35), Bar(most=1 / 24), Bar(most=2.2)),
    Bars(Bar(least=1.6, aim=2.0), Bar(least=2.0), Bar(most=1 / 12), Bar(most=1 / 8), Bar(most=1.25)),
)
NOT_SLOWER = Bar(least=1.0)
GROWTH = Bar(most=2.1)
LONG = Bar(most=150 * MIB)


def loss_rows(scale: Scale, say: Callable[[str], None] = lambda _: None) -> list[Row]:
    """Measures everything.

    Args:
        scale: sizes.
        say: told what comes next.

    Returns:
        Rows in the order of the table.
    """
    rows = []
    for d, bars, more in zip(scale.dims, BARS, (_more_variants(scale), []), strict=False):
        say(f"N={scale.n}, D={d}: every engine side by side")
        rows += _side_by_side(scale, d, bars, more)
    say(f"{NTXENT} at N={scale.pairwise}")
    rows += _ntxent(scale)
    k, block = scale.pruned
    say(f"a running selection of {k}, pruned and not")
    rows += pruning_rows(scale.n, scale.dims[0], k, block, scale.rounds, scale.compile)
    say("memory of larger batches, compiled only")
    rows += [*_growth(scale), *_long(scale)]
    return rows if scale.judged else [replace(row, met=None) for row in rows]


def _more_variants(scale: Scale) -> list[Variant]:
    """Other k, half-precision inputs, an odd batch."""
    base = Variant("strip", scale.n, scale.dims[0], scale.k)
    odd = replace(base, n=scale.n - 1)
    return [*(replace(base, k=k) for k in scale.more_k), replace(base, dtype="bfloat16"), odd]


def _side_by_side(scale: Scale, d: int, bars: Bars, more: list[Variant]) -> list[Row]:
    """All that is timed at one dimension, in one set of alternating rounds."""
    dense, strip = (Variant(engine, scale.n, d, k) for engine, k in (("dense", None), ("strip", scale.k)))
    two, every = replace(strip, two=True), replace(strip, k=None)
    others = [replace(strip, engine=name) for name in ENGINES if name != "strip"] + more
    forward = replace(strip, backward=False)
    learned = [replace(v, learned=True) for v in (dense, strip)] if more else []
    variants = (dense, strip, two, every, *others, *learned, forward)
    programs: dict[Any, Program] = {v: scale.compile_loss(v) for v in variants}
    programs |= _products(scale, d)
    if pytorch.is_installed():
        programs[TORCH] = pytorch.make_dense(dense)
    found = measure(programs, scale.rounds)
    floor = min((found[FLOOR], found[f"{FLOOR} in strips"]), key=lambda x: x.ms or 0)

    def against(variant: Variant, kind: str, other: Measured, to: str, bar: Bar | None = None) -> Row:
        return compared(row_of(variant, found[variant]), kind, found[variant], other, to, bar)

    dense_two = scale.memory(replace(dense, two=True))
    return [
        row_of(dense, found[dense]),
        *_torch_rows(found, dense, strip, bars.torch),
        against(strip, FASTER, found[dense], dense.name, bars.dense),
        against(strip, MEMORY, found[dense], dense.name, bars.memory),
        against(two, FASTER, found[dense], dense.name),
        against(two, MEMORY, dense_two, f"{dense.name}, two arrays", bars.memory_two),
        against(every, FASTER, found[dense], dense.name, NOT_SLOWER),
        against(every, MEMORY, found[dense], dense.name),
        *(against(v, FASTER, found[dense], dense.name) for v in others),
        *_learned_rows(found, learned),
        *(row_of(forward, found[name], name=name, k=None, loss=None) for name in (FLOOR, f"{FLOOR} in strips")),
        against(forward, TIME, floor, f"{FLOOR}, the faster", bars.forward),
    ]


def _learned_rows(found: dict[Any, Measured], variants: list[Variant]) -> list[Row]:
    """The same where the temperature is learned."""
    if not variants:
        return []
    dense, strip = variants
    row = row_of(strip, found[strip])
    against = [compared(row, kind, found[strip], found[dense], dense.name) for kind in (FASTER, MEMORY)]
    return [row_of(dense, found[dense]), *against]


def _products(scale: Scale, d: int) -> dict[Any, Program]:
    """What the forward pass is measured against, in both ways to write it."""
    z = embeddings(scale.n, d)
    in_strips = partial(row_maximum_in_strips, block=scale.block)
    return {FLOOR: scale.compile(row_maximum, z), f"{FLOOR} in strips": scale.compile(in_strips, z)}


def _torch_rows(found: dict[Any, Measured], dense: Variant, strip: Variant, bar: Bar) -> list[Row]:
    """PyTorch and the comparison with it, or that it is not there."""
    against = row_of(strip, found[strip])
    if TORCH not in found:
        gone = row_of(dense, Measured(None, None), name=TORCH, note=pytorch.MISSING)
        return [gone, replace(against, ratio_is=FASTER, to=TORCH, bar=bar, note="not compared: no PyTorch")]
    row = row_of(dense, found[TORCH], name=TORCH, note="its memory is not compiled, so not known")
    return [row, compared(against, FASTER, found[strip], found[TORCH], TORCH, bar)]


def _ntxent(scale: Scale) -> list[Row]:
    """Optax's loss where its pairwise array is affordable, and its memory at the full size."""
    from optax.losses import ntxent

    def function(temperature: jax.Array, groups: jax.Array, queries: jax.Array) -> Any:
        return jax.value_and_grad(lambda z: ntxent(z, groups, temperature))(queries)

    every = Variant("strip", scale.pairwise, scale.dims[0])
    programs: dict[Any, Program] = {NTXENT: scale.compile(function, *arguments_of(every))}
    found = measure({**programs, every: scale.compile_loss(every)}, min(scale.rounds, 3))
    full = scale.compile(function, *shapes_of(replace(every, n=scale.n)))
    row = row_of(every, found[every])
    return [
        row_of(every, found[NTXENT], name=NTXENT),
        compared(row, FASTER, found[every], found[NTXENT], NTXENT),
        compared(row, MEMORY, found[every], found[NTXENT], NTXENT),
        row_of(
            replace(every, n=scale.n),
            Measured(None, full.temp_bytes),
            name=NTXENT,
            note="compiled only: an N × N × D array",
        ),
    ]


def _growth(scale: Scale) -> list[Row]:
    """Temp memory of twice the batch at the same block."""
    rows = []
    for k in (scale.k, None):
        small = Variant("strip", scale.n, scale.dims[0], k, block=scale.block)
        large = replace(small, n=2 * scale.n)
        one, two = scale.memory(small), scale.memory(large)
        row = row_of(large, two, note=f"compiled only, blocks of {scale.block}")
        rows.append(compared(row, MEMORY, two, one, f"N={small.n}", GROWTH))
    return rows


def _long(scale: Scale) -> list[Row]:
    """Temp memory of a long batch at the block that the engine chooses."""
    variant = Variant("strip", scale.long, scale.dims[0])
    found = scale.memory(variant)
    assert found.temp_bytes is not None
    return [row_of(variant, found, bar=LONG, met=LONG.is_met(found.temp_bytes), note="compiled only, its own block")]
