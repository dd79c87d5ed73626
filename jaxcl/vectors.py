"""Names and vectors as a file that other programs read: Parquet, CSV or NumPy's npz."""

from __future__ import annotations

import csv
import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from jaxcl.config import ConfigError


def check_writable(path: Path, *, overwrite: bool) -> None:
    """Raises where a file could not be written in the end, before there is anything to write.

    Args:
        path: of the file; its ending says the format.
        overwrite: whether a file that is there may be replaced.

    Raises:
        ConfigError: another ending, a file that is there, a folder that is not, or a missing package.

    >>> check_writable(Path("vectors.csv"), overwrite=True)
    """
    if path.suffix.lower() not in FORMATS:
        kind = f"ends with {path.suffix!r}" if path.suffix else "has no ending"
        raise ConfigError(f"--out={path} {kind}; the formats are {', '.join(FORMATS)}")
    if path.is_dir():
        raise ConfigError(f"--out={path} is a folder; name a file in it")
    if path.exists() and not overwrite:
        raise ConfigError(f"--out={path} is there already; add --overwrite to replace it")
    if not path.parent.is_dir():
        raise ConfigError(f"--out={path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"--out={path}: the folder {path.parent} is not writable")
    if path.suffix.lower() == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"--out={path} needs pyarrow: pip install 'jaxcl[parquet]'; .csv and .npz need nothing")


def write_vectors(path: Path, names: Sequence[str], vectors: Float32[np.ndarray, "n f"]) -> None:
    """Writes one row a name, in order; the file is whole or not there.

    Args:
        path: of the file, as `check_writable` allows it; one that is there is replaced.
        names: such as relative paths.
        vectors: [n, F].

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_vectors(Path(folder) / "a.csv", ["x.png"], np.array([[0.5, -1.0]], np.float32))
    ...     (Path(folder) / "a.csv").read_text().split()
    ['path,f0,f1', 'x.png,0.5,-1.0']
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        FORMATS[path.suffix.lower()](draft, names, vectors)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _write_parquet(path: Path, names: Sequence[str], vectors: np.ndarray) -> None:
    """Columns `path`, text, and `features`, a list of F float32."""
    import pyarrow
    import pyarrow.parquet

    flat = pyarrow.array(np.ascontiguousarray(vectors).reshape(-1))
    rows = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    table = pyarrow.table({"path": pyarrow.array(names, pyarrow.string()), "features": rows})
    pyarrow.parquet.write_table(table, path)


def _write_csv(path: Path, names: Sequence[str], vectors: np.ndarray) -> None:
    """Columns `path`, `f0`, `f1`, …; numbers as short as float32 comes back from them."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["path", *(f"f{number}" for number in range(vectors.shape[1]))])
        rows.writerows([name, *map(str, vector)] for name, vector in zip(names, vectors, strict=True))


def _write_npz(path: Path, names: Sequence[str], vectors: np.ndarray) -> None:
    """Arrays `path`, text, and `features` [n, F]; no pickle."""
    with path.open("wb") as file:
        np.savez(file, path=np.array(names, np.str_), features=vectors)


FORMATS: dict[str, Callable[[Path, Sequence[str], np.ndarray], None]] = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".npz": _write_npz,
}
