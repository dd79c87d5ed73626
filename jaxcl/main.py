"""Trains an encoder from a config, evaluates it and writes the report.

python -m jaxcl.main --config=configs/simclr_stream.py
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from jaxcl.command import OVERRIDE, Parser, folder, guarded, leave, refuse_repeated, split_overrides
from jaxcl.config import ConfigError, describe, load_config, resolve
from jaxcl.interrupt import Interrupted


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: those of the command line; None: of this process.

    Returns:
        The exit code: 0, 2 after a mistake in what was asked for, 130 or 143 after Ctrl-C or SIGTERM.
    """
    return guarded(lambda: _run(_parse(sys.argv[1:] if arguments is None else arguments)))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The flags, with `--config.a.b=v` collected in `overrides`."""
    overrides, others = split_overrides(arguments)
    refuse_repeated(arguments, ("--config", "--workdir"))
    parser = Parser(
        prog="python -m jaxcl.main",
        description=(__doc__ or "").strip(),
        epilog=describe(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", required=True, metavar="FILE[:VARIANT]", help="a file in configs/; every one has :smoke")
    add("--workdir", type=folder, metavar="DIR", help="output folder; left out: a new one under runs/")
    add("--resume", action="store_true", help="continue the run in --workdir")
    add("--overwrite", action="store_true", help="replace the run in --workdir")
    add(f"{OVERRIDE}SETTING=VALUE", action="store_true", dest="_", help="change one setting, listed below")
    flags = parser.parse_args(others)
    flags.overrides = overrides
    return flags


def _run(flags: argparse.Namespace) -> None:
    """Everything after the flags."""
    if flags.workdir is None and (flags.resume or flags.overwrite):
        raise ConfigError("--resume and --overwrite need --workdir=DIR")
    config = resolve(load_config(flags.config, flags.overrides))
    from jaxcl.train import train  # here, so that --help and a typo answer before jax is loaded
    from jaxcl.workdir import default_path

    workdir = flags.workdir or default_path(flags.config)
    try:
        train(config, workdir, resume=flags.resume, overwrite=flags.overwrite)
    except Interrupted as stop:
        if not stop.resumable:
            raise
        overrides = [f"{OVERRIDE}{item}" for item in flags.overrides]
        command = ["python", "-m", "jaxcl.main", f"--config={flags.config}", *overrides, f"--workdir={workdir}"]
        raise Interrupted(f"{stop}:\n{shlex.join([*command, '--resume'])}", stop.signum) from None


if __name__ == "__main__":
    leave(main())
