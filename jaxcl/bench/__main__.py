"""Benchmarks side by side in one process; beside each figure its bar and whether it is met.

python -m jaxcl.bench loss                 time and memory of the loss on this machine, about five minutes on two cores
python -m jaxcl.bench loss --quick         the same at sizes that take seconds; bars are not judged
python -m jaxcl.bench loss --target=h200   compiled for a GPU that is not attached: memory and kernels
python -m jaxcl.bench step                 a training step with cached gradients against one that keeps every activation
python -m jaxcl.bench memory               what the planner says of a step on this CPU against what the process grew by
python -m jaxcl.bench methods              every method on Fashion-MNIST, three seeds: hours; goes on where it stopped
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxcl.command import Parser, folder, guarded, leave
from jaxcl.config import ConfigError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: those of the command line; None: of this process.

    Returns:
        The exit code: 0, 2 after a mistake in what was asked for.
    """
    return guarded(lambda: _run(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: Sequence[str]) -> None:
    """Everything."""
    flags = _parser().parse_args(arguments)
    if flags.command == "methods":
        _compare(flags)
    elif flags.command == "step":
        _measure_steps(flags)
    elif flags.command == "memory":
        _measure_memory(flags)
    elif flags.target is not None:
        _compile_for(flags)
    else:
        _measure(flags)


def _parser() -> Parser:
    """The flags."""
    shape: dict[str, Any] = dict(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser = Parser(prog="python -m jaxcl.bench", description=(__doc__ or "").strip(), **shape)
    commands = parser.add_subparsers(dest="command", required=True, metavar="loss|step|memory|methods")
    loss = commands.add_parser("loss", help="the contrastive loss against dense JAX, optax and PyTorch", **shape)
    loss.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    loss.add_argument("--quick", action="store_true", help="small sizes, a few seconds")
    loss.add_argument("--target", metavar="NAME|FILE", help="compile for this GPU instead: h200, or a .txtpb file")
    step = commands.add_parser("step", help="cached gradients against the step that keeps every activation", **shape)
    step.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    step.add_argument("--quick", action="store_true", help="small sizes, a few seconds; bars are not judged")
    memory = commands.add_parser("memory", help="planned bytes of a step against measured ones, on this CPU", **shape)
    memory.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    memory.add_argument("--quick", action="store_true", help="one small step")
    methods = commands.add_parser("methods", help="linear probe and kNN of every method at one budget", **shape)
    add = methods.add_argument
    add("--runs", type=folder, default=Path("runs/methods"), metavar="DIR", help="folder of the runs [runs/methods]")
    add("--seeds", default="0,1,2", metavar="N,…", help="seeds of every row [0,1,2]")
    add("--rows", metavar="NAME;…", help="some rows only, by the names of the table")
    add("--show", action="store_true", help="print the table of the runs that there are, train nothing")
    add("--json", action="store_true", help="print one JSON object instead of the table")
    return parser


def _compare(flags: argparse.Namespace) -> None:
    """The table of methods."""
    from jaxcl.bench.about import about, device_line
    from jaxcl.bench.contest import pick
    from jaxcl.bench.contest_table import as_json, contest_table, requirements
    from jaxcl.bench.trials import results, run_all

    rows, seeds = pick(flags.rows), _seeds(flags.seeds)
    if flags.runs.exists() and not flags.runs.is_dir():
        raise ConfigError(f"--runs={flags.runs} is not a folder")
    if not flags.show:
        run_all(rows, flags.runs, seeds, lambda text: print(text, file=sys.stderr, flush=True))
    found = {row.name: results(row, flags.runs, seeds) for row in rows}
    if flags.json:
        print(json.dumps({**about(), "rows": as_json(found)}, indent=1))
        return
    print("\n".join([device_line(about()), "", contest_table(rows, found), "", *requirements(found)]))


def _seeds(text: str) -> tuple[int, ...]:
    """The numbers of `--seeds`."""
    try:
        seeds = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise ConfigError(f"--seeds={text} is not a list of whole numbers such as 0,1,2") from None
    if min(seeds) < 0:
        raise ConfigError(f"--seeds={text}: seeds are not negative")
    return seeds


def _measure(flags: argparse.Namespace) -> None:
    """The table on this machine."""
    from jaxcl.bench.loss import FULL, QUICK, loss_rows  # here, so that --help answers before jax is loaded

    _print_rows(flags, loss_rows(QUICK if flags.quick else FULL, _say))


def _measure_steps(flags: argparse.Namespace) -> None:
    """The table of training steps on this machine."""
    from jaxcl.bench.step import FULL, QUICK, step_rows

    _print_rows(flags, step_rows(QUICK if flags.quick else FULL, _say))


def _measure_memory(flags: argparse.Namespace) -> None:
    """The table of plans and what became of them."""
    from jaxcl.bench.about import about, device_line
    from jaxcl.bench.reality import FULL, QUICK, measure_all, reality_table

    found = measure_all(QUICK if flags.quick else FULL, _say)
    if flags.json:
        print(json.dumps({**about(), "quick": flags.quick, "rows": [vars(row) for row in found]}, indent=1))
        return
    print(f"{device_line(about())}\n\n{reality_table(found)}")


def _say(text: str) -> None:
    """Says what comes next, beside the table."""
    print(text, file=sys.stderr, flush=True)


def _print_rows(flags: argparse.Namespace, rows: Sequence[Any]) -> None:
    """The rows as a table or as JSON."""
    from jaxcl.bench.about import about, device_line
    from jaxcl.bench.table import count, loss_table

    if flags.json:
        print(json.dumps({**about(), "quick": flags.quick, "rows": [row.as_json() for row in rows]}, indent=1))
        return
    print(f"{device_line(about())}\n\n{loss_table(rows)}\n\n{count(rows)}")


def _compile_for(flags: argparse.Namespace) -> None:
    """The table of a device that is not there."""
    from jaxcl.bench.deviceless import compile_for, deviceless_table, read_target
    from jaxcl.planner.targets import use_cpu

    target = read_target(flags.target)
    use_cpu()
    programs = compile_for(target, quick=flags.quick)
    if flags.json:
        from jaxcl.bench.about import about

        described = {**about(), "target": flags.target, "quick": flags.quick}
        print(json.dumps({**described, "rows": [program._asdict() for program in programs]}, indent=1))
        return
    print(deviceless_table(programs))


if __name__ == "__main__":
    leave(main())
