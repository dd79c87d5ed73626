"""Benchmarks side by side in one process; beside each figure its bar and whether it is met.

python -m jaxcl.bench loss                 time and memory of the loss on this machine, about five minutes on two cores
python -m jaxcl.bench loss --quick         the same at sizes that take seconds; bars are not judged
python -m jaxcl.bench loss --target=h200   compiled for a GPU that is not attached: memory and kernels
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from jaxcl.command import Parser, guarded, leave


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
    _compile_for(flags) if flags.target else _measure(flags)


def _parser() -> Parser:
    """The flags."""
    shape: dict[str, Any] = dict(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser = Parser(prog="python -m jaxcl.bench", description=(__doc__ or "").strip(), **shape)
    commands = parser.add_subparsers(dest="command", required=True, metavar="loss")
    loss = commands.add_parser("loss", help="the contrastive loss against dense JAX, optax and PyTorch", **shape)
    loss.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    loss.add_argument("--quick", action="store_true", help="small sizes, a few seconds")
    loss.add_argument("--target", metavar="NAME|FILE", help="compile for this GPU instead: h200, or a .txtpb file")
    return parser


def _measure(flags: argparse.Namespace) -> None:
    """The table on this machine."""
    from jaxcl.bench.about import about, device_line  # here, so that --help answers before jax is loaded
    from jaxcl.bench.loss import FULL, QUICK, loss_rows
    from jaxcl.bench.table import count, loss_table

    rows = loss_rows(QUICK if flags.quick else FULL, lambda text: print(text, file=sys.stderr, flush=True))
    if flags.json:
        print(json.dumps({**about(), "quick": flags.quick, "rows": [row.as_json() for row in rows]}, indent=1))
        return
    print(f"{device_line(about())}\n\n{loss_table(rows)}\n\n{count(rows)}")


def _compile_for(flags: argparse.Namespace) -> None:
    """The table of a device that is not there."""
    from jaxcl.bench.deviceless import compile_for, deviceless_table, read_target, use_cpu

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
