"""The captions of a folder of images: a table of relative path and caption that lies in it."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxcl.config import ConfigError

TABLES = ("captions.tsv", "captions.csv")
HEADER = ("path", "caption")


def read_captions(root: Path, paths: Sequence[str]) -> dict[str, str]:
    """The caption of each image of a folder, from `captions.tsv` (path, tab, caption) or `captions.csv` in it.

    UTF-8; a first line `path`, `caption` is a header; lines of other files are passed over.

    Args:
        root: the folder.
        paths: of the images, relative, with "/".

    Returns:
        Captions by path; empty where there is no table.

    Raises:
        ConfigError: both tables, a line without a caption, a path twice, or an image that is not in it.
    """
    tables = [root / name for name in TABLES if (root / name).is_file()]
    if not tables:
        return {}
    if len(tables) > 1:
        raise ConfigError(f"data.name=folder:{root} has {' and '.join(TABLES)}; only one can be read")
    captions: dict[str, str] = {}
    for line, row in _rows(tables[0]):
        if len(row) != 2 or not row[1].strip():
            raise ConfigError(f"{tables[0]}, line {line}: {row!r} is not a path and a caption")
        path, caption = row[0].removeprefix("./"), row[1].strip()
        if path in captions:
            raise ConfigError(f"{tables[0]}, line {line}: {path} has a caption already; one an image is read")
        captions[path] = caption
    missing = [path for path in paths if path not in captions]
    if missing:
        raise ConfigError(
            f"{tables[0]} has no caption for {len(missing)} of {len(paths)} images; the first is {missing[0]!r}"
        )
    return captions


def _rows(table: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not empty, with their number, without a header."""
    # file names may hold bytes that are no UTF-8, as Python names them: by surrogates
    with table.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        if table.suffix == ".csv":
            rows: Iterator[list[str]] = csv.reader(file)
        else:
            rows = (line.rstrip("\r\n").split("\t", 1) for line in file)
        for line, row in enumerate(rows, 1):
            if row not in ([], [""], list(HEADER)):
                yield line, [row[0], *(_readable(cell) for cell in row[1:])]


def _readable(text: str) -> str:
    """The text with what is no UTF-8 replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
