"""Embeddings of any folder of images by a trained run, one row a file: .parquet, .csv or .npz.

python -m jaxcl.embed --workdir=runs/… --images=FOLDER --out=FILE
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxcl.command import Parser, folder, guarded, leave, refuse_repeated
from jaxcl.config import ConfigError
from jaxcl.interrupt import stopping
from jaxcl.vectors import check_writable, write_vectors

LAYERS = ("features", "embedding")


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
    flags = _parse(arguments)
    check_writable(flags.out, overwrite=flags.overwrite)
    if not flags.images.is_dir():
        raise ConfigError(f"--images={flags.images} is not a folder")
    from jaxcl.trained import encode_folder, open_trained  # here, so that --help and a typo answer before jax is loaded

    with stopping("stopped; nothing was written"):
        trained = open_trained(flags.workdir)
        names, vectors, skipped = encode_folder(trained, flags.images, layer=flags.layer, batch=flags.batch)
    write_vectors(flags.out, names, vectors)
    left_out = f"; {skipped:,} could not be read and {'are' if skipped > 1 else 'is'} left out" if skipped else ""
    print(f"{flags.out}: {len(names):,} images, {vectors.shape[1]:,} numbers each, of step {trained.step}{left_out}")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The flags."""
    parser = Parser(
        prog="python -m jaxcl.embed",
        description=(__doc__ or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--workdir", type=folder, required=True, metavar="DIR", help="the folder of a run")
    add(
        "--images",
        type=folder,
        required=True,
        metavar="FOLDER",
        help="images, nested as they come",
    )
    add("--out", type=_file, required=True, metavar="FILE", help=".parquet, .csv or .npz; one row a file, by path")
    add(
        "--layer",
        default="features",
        choices=LAYERS,
        help="features: of the encoder, what probes see; embedding: of its head, normalised, what the loss compares",
    )
    add("--batch", type=_count, metavar="N", help="images encoded at once, over all devices; left out: eval.batch")
    add("--overwrite", action="store_true", help="replace FILE")
    refuse_repeated(arguments, ("--workdir", "--images", "--out", "--layer", "--batch"))
    return parser.parse_args(arguments)


def _file(text: str) -> Path:
    """The file that `--out` names."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty, and names a file")
    return Path(text).expanduser()


def _count(text: str) -> int:
    """The number of `--batch`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of images, 1 or more")
    return int(text)


if __name__ == "__main__":
    leave(main())
