"""Scores the newest checkpoint of a run again: kNN, linear probe and view retrieval, beside their floors.

python -m jaxcl.evaluate --workdir=runs/…
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from jaxcl.command import Parser, folder, guarded, leave


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
    parser = Parser(
        prog="python -m jaxcl.evaluate",
        description=(__doc__ or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--workdir", type=folder, required=True, metavar="DIR", help="the folder of a run")
    moved = "LoRA: where the weights of %s.pretrained lie now, file or folder, if not where they lay"
    parser.add_argument("--pretrained", type=folder, metavar="PATH", help=moved % "model")
    parser.add_argument("--text-pretrained", type=folder, metavar="PATH", help=moved % "text")
    flags = parser.parse_args(arguments)
    from jaxcl.train import evaluate  # here, so that --help answers before jax is loaded

    evaluate(flags.workdir, pretrained=flags.pretrained, text_pretrained=flags.text_pretrained)


if __name__ == "__main__":
    leave(main())
