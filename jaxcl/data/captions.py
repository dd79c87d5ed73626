"""The captions of a folder of images: a table of relative path and caption that lies in it."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from jaxcl.config import ConfigError

TABLES = ("captions.tsv", "captions.csv")
HEADER = ("path", "caption")


def read_captions(root: Path, paths: Sequence[str]) -> dict[str, str]:
    """The caption of each image of a folder, from `captions.tsv` (path, tab, caption) or `captions.csv` in it.

    UTF-8, but for paths, which may be any bytes; a first line `path`, `caption` is a header; lines of other files are
    passed over.

    Args:
        root: the folder.
        paths: of the images, relative, with "/".

    Returns:
        Captions by path; empty where there is no table.

    Raises:
        ConfigError: both tables, one that cannot be read, is not UTF-8 or breaks off in a quote, a line without a
            caption, a path twice, or an image that is not in it.
    """
    tables = [root / name for name in TABLES if os.path.lexists(root / name)]
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
    try:
        # file names may hold bytes that are no UTF-8, as Python names them: by surrogates
        with table.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            for line, row in _quoted(table, file) if table.suffix == ".csv" else _tabbed(file):
                if row not in ([], [""], list(HEADER)):
                    _check_text(table, line, row)
                    yield line, row
    except OSError as error:
        raise ConfigError(f"{table} cannot be read: {error.strerror}") from error


def _tabbed(file: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Lines of path, tab, caption."""
    return enumerate((line.rstrip("\r\n").split("\t", 1) for line in file), 1)


def _quoted(table: Path, file: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Lines of path, comma, caption, either of which may be quoted, and then hold ends of lines."""
    rows, line = csv.reader(file, strict=True), 1
    try:
        for row in rows:
            yield line, row
            line = rows.line_num + 1
    except csv.Error as error:
        raise ConfigError(f"{table}, line {line}: {error}; is a quote that opens there never closed?") from error


def _check_text(table: Path, line: int, row: list[str]) -> None:
    """Raises where a caption is not UTF-8, or all of it is UTF-16, in which every other byte of English is 0."""
    if "\0" in "".join(row) or any("\udc80" <= sign <= "\udcff" for cell in row[1:] for sign in cell):
        raise ConfigError(f"{table}, line {line}: this is not UTF-8; save the file as UTF-8")
