"""What a GPU makes of the loss, in at most seven minutes: correctness, speed, memory, kernels; one JSON file.

python -m jaxcl.bench.gpu_check [FILE]             on the device that JAX finds
python -m jaxcl.bench.gpu_check [FILE] --dry-run   tiny sizes on whatever device is there

Needs jax and numpy; what is moved to the host also flax, optax and jaxtyping. The exit code is 1 where an engine does
not compute what the definition says, or a step with what is moved to the host does not what one without does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jaxcl.bench import gpu_plan

TOTAL_SECONDS = 400.0  # of the seven minutes, less the start and the last write
MEMORY_SECONDS = 60.0  # kept for the process that measures memory
OFFLOAD_SECONDS = 45.0  # for the steps with what is moved to the host
PLAN_SECONDS = 90.0  # and for steps beside what the planner says of them
NAME = "gpu_check.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the check.

    Args:
        arguments: those of the command line; None: of this process.

    Returns:
        0; 1 where an engine disagrees with the definition, or a step with what is moved to the host.
    """
    flags = _parser().parse_args(arguments)
    path = flags.file or Path(os.environ.get("OUT", ".")) / NAME
    with tempfile.TemporaryDirectory(prefix="jaxcl-programs-") as folder:
        result = _check(path, folder, flags.dry_run)
    print(_summary(result))
    print(f"written to {path}")
    moved = result["offload"] if isinstance(result["offload"], list) else []
    return 0 if all(verdict["agrees"] for verdict in [*result["agreement"], *moved]) else 1


def _parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxcl.bench.gpu_check",
        description=(__doc__ or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("file", nargs="?", type=Path, help=f"default: {NAME}, in the folder $OUT where that is set")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, well under a minute")
    return parser


def _check(path: Path, folder: str, dry_run: bool) -> dict[str, Any]:
    """Everything; the file is written after each part, so that a stopped run leaves what it has."""
    import jax  # here, so that --help answers before jax is loaded

    from jaxcl.bench import agreement, gpu_items, gpu_rows
    from jaxcl.bench.about import about
    from jaxcl.bench.budget import Budget

    budget = Budget(TOTAL_SECONDS - MEMORY_SECONDS - OFFLOAD_SECONDS - PLAN_SECONDS)
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    workers = min(8, about()["device"]["cores"])
    sizes = gpu_items.DRY if dry_run else gpu_items.FULL
    result: dict[str, Any] = {**about(), "dry_run": dry_run, "agreement": [], "rows": [], "left_out": []}

    def save() -> None:
        result["seconds"] = round(budget.spent(), 1)
        _write(path, result)

    _say(budget, "engines against the definition")
    cases, rows = (agreement.DRY_CASES, agreement.DRY_ROWS) if dry_run else (agreement.CASES, agreement.ROWS)
    result["agreement"] = [verdict._asdict() for verdict in agreement.agreements(cases, rows, workers)]
    save()
    _say(budget, "peak of the matrix product")
    result["gemm_peak_tflops"] = gpu_rows.measure_peaks(sizes)
    found: list[gpu_rows.GpuRow] = []
    for items in gpu_items.batches(sizes):
        if not budget.allows():
            result["left_out"] += [item.label for item in items]
            continue
        _say(budget, f"{items[0].group} at N={items[0].n}, {items[0].dtype}")
        measured, late = gpu_rows.measure_batch(items, result["gemm_peak_tflops"], budget, workers)
        found += measured
        result["left_out"] += [item.label for item in late]
        result["rows"] += [_flat(row) for row in measured]
        save()
    _say(budget, "peak memory")
    _add_memory(result, found, folder)
    save()
    _say(budget, "optimizer and queue on the host")
    result["offload"] = _offload(dry_run)
    save()
    _say(budget, "planned and measured peaks of steps")
    steps = gpu_plan.DRY if dry_run else gpu_plan.FULL
    result["plan"] = gpu_plan.planned_steps(steps, TOTAL_SECONDS - budget.spent(), folder)
    save()
    return result


def _add_memory(result: dict[str, Any], found: list[Any], folder: str) -> None:
    """Predicted beside measured peak memory of the losses, largest N, wide strips."""
    from jaxcl.bench.gpu_memory import measured_peaks

    losses = [row for row in found if row.item.what == "loss" and row.ms is not None and row.item.backward]
    largest = max((row.item.n for row in losses), default=0)
    chosen = [row for row in losses if row.item.n == largest and (row.item.block or row.item.name == "dense")]
    chosen.sort(key=lambda row: row.predicted_bytes)
    peaks = measured_peaks([row.item for row in chosen], MEMORY_SECONDS, folder)
    each = [peaks] * len(chosen) if isinstance(peaks, str) else peaks
    result["memory"] = [
        {
            **asdict(row.item),
            "predicted_bytes": row.predicted_bytes,
            "measured_bytes": None if isinstance(peak, str) else peak,
            "note": peak if isinstance(peak, str) else None if peak else "below the peak of the one before",
        }
        for row, peak in zip(chosen, each, strict=True)
    ]


def _offload(dry_run: bool) -> list[dict[str, Any]] | str:
    """What `jaxcl.bench.gpu_offload` finds; where its libraries are missing, that."""
    try:
        from jaxcl.bench import gpu_offload
    except ImportError as error:
        return f"not run: {error}"
    return gpu_offload.offloads(gpu_offload.DRY if dry_run else gpu_offload.FULL)


def _flat(row: Any) -> dict[str, Any]:
    """One level of plain values."""
    fields = row._asdict()
    return {**asdict(fields.pop("item")), **fields}


def _write(path: Path, result: dict[str, Any]) -> None:
    """Replaces the file whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(result, indent=1) + "\n")
    part.replace(path)


def _say(budget: Any, text: str) -> None:
    """What comes next, on stderr."""
    print(f"{budget.spent():6.0f} s  {text}", file=sys.stderr, flush=True)


def _summary(result: dict[str, Any]) -> str:
    """The table in short."""
    wrong = [v for v in result["agreement"] if not v["agrees"]]
    peaks = ", ".join(f"{name} {value:.3g}" for name, value in result["gemm_peak_tflops"].items())
    lines = [
        f"{len(result['agreement']) - len(wrong)} of {len(result['agreement'])} comparisons with the definition agree",
        *(f"  WRONG: {v['engine']}, {v['kind']}, k={v['k']}, {v['dtype']}: {v}" for v in wrong),
        f"GEMM peak, TFLOP/s: {peaks}",
        f"{'':<34}{'N':>7}{'k':>5}{'block':>7} {'dtype':<9}{'work':<5}{'ms':>9}{'peak':>8}{'temp MiB':>10}  aim",
        *map(_line, result["rows"]),
    ]
    if result["left_out"]:
        lines += ["Left out, because time was short:", *(f"  {label}" for label in result["left_out"])]
    for row in result["memory"]:
        measured = row["note"] if row["measured_bytes"] is None else f"{row['measured_bytes'] / 2**20:.1f} MiB"
        k = "all" if row["k"] is None else row["k"]
        predicted = f"{row['predicted_bytes'] / 2**20:.1f} MiB"
        lines.append(f"memory of {row['name']}, k={k}, {row['dtype']}: predicted {predicted}, measured {measured}")
    return "\n".join([*lines, *_offload_lines(result["offload"]), *map(gpu_plan.line, result["plan"])])


def _offload_lines(found: list[dict[str, Any]] | str) -> list[str]:
    """What was moved to the host."""
    if isinstance(found, str):
        return [f"optimizer and queue on the host: {found}"]
    from jaxcl.bench.gpu_offload import line

    return [line(row) for row in found]


def _line(row: dict[str, Any]) -> str:
    """One program."""
    work = "both" if row["backward"] else "fwd"
    k, block = "all" if row["k"] is None else row["k"], row["block"] or "own"
    head = f"{row['name']:<34}{row['n']:>7}{k:>5}{block:>7} {row['dtype']:<9}{work:<5}"
    if row["error"]:
        return f"{head}  {row['error']}"
    fraction = "" if row["fraction"] is None else f"{row['fraction']:.1%}"
    met = "" if row["met"] is None else f"  ≥ {row['aim']:.0%}: {'met' if row['met'] else 'NOT MET'}"
    return f"{head}{row['ms']:>9.3g}{fraction:>8}{row['temp_bytes'] / 2**20:>10.1f}{met}"


if __name__ == "__main__":
    sys.exit(main())
