"""The rows of the GPU table: times of its programs, as fractions of the peak of a matrix product."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax

from jaxcl.bench.budget import Budget
from jaxcl.bench.gpu_items import Item, Sizes
from jaxcl.bench.kernels import count_kernels
from jaxcl.bench.measure import Program, alternate, compile_program
from jaxcl.bench.programs import embeddings
from jaxcl.bench.selection import product

AIMS = {"all": 0.5, "top": 0.3}  # of the bfloat16 GEMM peak, on an H200
AIM_K = 128  # the second holds up to this k
TIMED_SECONDS = 0.02  # at least this long, so that dispatch does not count
BATCH_SECONDS = 20.0  # at most about this long for all timings of one batch


class GpuRow(NamedTuple):
    """A measured program.

    Attributes:
        item: which.
        ms: median; None: it failed.
        tflops: of the counted operations.
        fraction: of the measured GEMM peak of this dtype.
        speedup: against the dense loss over all negatives, for forward + backward.
        rounds: timings.
        temp_bytes: scratch memory of the compiled program.
        predicted_bytes: scratch, arguments and results.
        kernels: name and number.
        compile_seconds: of this program, while others compiled.
        aim: of the fraction; None: none on this device.
        met: whether it is reached.
        error: what was raised instead.
    """

    item: Item
    ms: float | None = None
    tflops: float | None = None
    fraction: float | None = None
    speedup: float | None = None
    rounds: int = 0
    temp_bytes: int | None = None
    predicted_bytes: int | None = None
    kernels: Mapping[str, int] | None = None
    compile_seconds: float | None = None
    aim: float | None = None
    met: bool | None = None
    error: str | None = None


def measure_peaks(sizes: Sizes) -> dict[str, float]:
    """TFLOP/s of a large square product: bfloat16, and float32 that is not rounded.

    Args:
        sizes: of the table.

    Returns:
        By dtype.
    """
    peaks = {}
    for dtype in ("bfloat16", "float32"):
        left, right = (embeddings(sizes.peak, sizes.peak, dtype, seed) for seed in range(2))
        run = compile_program(lambda a, b: product(a, b).astype(a.dtype), left, right).run
        ms = _timed({"gemm": run}, BATCH_SECONDS / 10)[0]["gemm"]
        peaks[dtype] = 2 * sizes.peak**3 / ms / 1e9
    embeddings.cache_clear()
    return peaks


def measure_batch(
    items: list[Item], peaks: Mapping[str, float], budget: Budget, workers: int
) -> tuple[list[GpuRow], list[Item]]:
    """Compiles a batch, then times it.

    Args:
        items: of one N and dtype.
        peaks: TFLOP/s by dtype.
        budget: of time.
        workers: programs that are compiled at once.

    Returns:
        Rows, and what was left out because time was short.
    """
    with ThreadPoolExecutor(workers) as pool:
        compiled = dict(zip(items, pool.map(_try_compile, items), strict=True))
    running, failed, left_out = {}, {}, []
    for item, program in compiled.items():
        if isinstance(program, str):
            failed[item] = program
        elif budget.left() <= 0:
            left_out.append(item)
        elif (error := _try_run(program)) is not None:
            failed[item] = error
        else:
            running[item] = program
    ms, rounds = _timed({item: p.run for item, p in running.items()}, min(BATCH_SECONDS, max(budget.left(), 0)))
    embeddings.cache_clear()
    dense = next((ms[i] for i in running if i.name == "dense" and i.k is None and i.backward), None)
    rows = [_row(item, program, ms[item], rounds, peaks, dense) for item, program in running.items()]
    return rows + [GpuRow(item, error=error) for item, error in failed.items()], left_out


def _try_compile(item: Item) -> Program | str:
    """A program, or the first line of the device's complaint."""
    try:
        return item.program()
    except jax.errors.JaxRuntimeError as error:
        return _brief(error)


def _try_run(program: Program) -> str | None:
    """Warms up; what the device complains of, such as memory."""
    try:
        jax.block_until_ready(program.run())
    except jax.errors.JaxRuntimeError as error:
        return _brief(error)
    return None


def _brief(error: Exception) -> str:
    """The first line, cut."""
    return str(error).strip().splitlines()[0][:200]


def _timed(runs: Mapping[Any, Any], seconds: float) -> tuple[dict[Any, float], int]:
    """Medians of up to five rounds within some seconds, short programs called several times in each."""
    once = alternate(runs, 1)
    calls = {name: max(1, round(1e3 * TIMED_SECONDS / max(ms, 1e-3))) for name, ms in once.items()}
    a_round = sum(max(ms / 1e3, TIMED_SECONDS) for ms in once.values())
    rounds = max(1, min(5, int(seconds / max(a_round, 1e-9))))
    return alternate(runs, rounds, calls), rounds


def _row(
    item: Item, program: Program, ms: float, rounds: int, peaks: Mapping[str, float], dense: float | None
) -> GpuRow:
    """What a time means."""
    tflops = None if item.flops is None else item.flops / ms / 1e9
    fraction = None if tflops is None else tflops / peaks[item.dtype]
    aim = _aim(item) if "H200" in jax.devices()[0].device_kind else None
    return GpuRow(
        item,
        ms,
        tflops,
        fraction,
        dense / ms if dense and item.backward else None,
        rounds,
        program.temp_bytes,
        program.total_bytes,
        count_kernels(program.text),
        program.compile_seconds,
        aim,
        None if aim is None or fraction is None else fraction >= aim,
    )


def _aim(item: Item) -> float | None:
    """The fraction that an engine should reach on an H200."""
    if item.what != "loss" or item.name == "dense" or item.dtype != "bfloat16" or item.flops is None:
        return None
    if item.k is None:
        return AIMS["all"]
    return AIMS["top"] if item.k <= AIM_K else None
