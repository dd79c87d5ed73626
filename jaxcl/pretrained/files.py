"""The arrays of a file of weights by name, each read when it is asked for: safetensors, npz or ONNX, never a pickle."""

from __future__ import annotations

import contextlib
import json
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import jax.numpy as jnp
import numpy as np

from jaxcl.config import ConfigError
from jaxcl.pretrained.onnx import read_onnx

# of safetensors: https://huggingface.co/docs/safetensors
TYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": jnp.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
LENGTH = 8  # bytes of the number in front of the header
MAX_HEADER = 100_000_000  # bytes; the library has the same bound
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


class Arrays(Mapping[str, np.ndarray]):
    """Arrays by name, read one by one."""

    def __init__(self, path: Path, readers: Mapping[str, Callable[[], np.ndarray]]):
        """Over a function for each name in the file at a path."""
        self._path, self._readers = path, dict(readers)

    def __getitem__(self, name: str) -> np.ndarray:
        """The array, read now."""
        read = self._readers[name]
        with _one_line(f"{name} of {self._path}"):
            return read()

    def __contains__(self, name: object) -> bool:
        """Whether there is such a name; nothing is read."""
        return name in self._readers

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._readers)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._readers)


def open_arrays(path: Path) -> Arrays:
    """The arrays of a file, or of the only such file in a folder.

    Args:
        path: `.safetensors`, `.npz` or `.onnx`, or a folder.

    Returns:
        A mapping that reads an array when it is looked up.

    Raises:
        ConfigError: no such file, not one of these formats, or a damaged one.
    """
    path = _file_of(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        why = "may hold a pickle, which can run any code" if path.suffix in PICKLES else "is none of them"
        known = ", ".join(READERS)
        raise ConfigError(f"{path} {why}: weights are read from {known}; save it with safetensors first")
    with _one_line(str(path)):
        return Arrays(path, reader(path))


@contextlib.contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Whatever goes wrong with a file that is not what its name says, as one line."""
    try:
        yield
    except (ConfigError, MemoryError):
        raise
    except Exception as error:  # numpy, zipfile, zlib and json raise almost anything on hostile bytes
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{what} cannot be read: {reason}") from error


def _file_of(path: Path) -> Path:
    """The file itself, or the only one of its kind in a folder."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise ConfigError(f"{path} is neither a file nor a folder")
    found = sorted(file for file in path.iterdir() if file.suffix.lower() in READERS)
    if len(found) != 1:
        names = ", ".join(file.name for file in found[:3]) or "none"
        raise ConfigError(f"{path} should hold one file of {', '.join(READERS)}; it has {names}: name the file")
    return found[0]


def _read_safetensors(path: Path) -> dict[str, Callable[[], np.ndarray]]:
    """A length, a header in JSON, then the bytes, which are mapped and not read."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH), "little")
        if length > min(size - LENGTH, MAX_HEADER):
            raise ValueError("not a safetensors file, or cut off in its header")
        header = _parsed(file.read(length))
    start = LENGTH + length
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        bytes_needed = math.prod(entry["shape"]) * np.dtype(TYPES[entry["dtype"]]).itemsize
        if not 0 <= first <= last <= size - start or last - first != bytes_needed:
            raise ValueError(f"{name} does not lie where the header says: the file is cut off or damaged")

    def reader(entry: dict[str, Any]) -> Callable[[], np.ndarray]:
        def read() -> np.ndarray:
            first, last = entry["data_offsets"]
            data = np.memmap(path, np.uint8, "r", start + first, (last - first,)) if last > first else np.empty(0, "u1")
            return np.asarray(data).view(TYPES[entry["dtype"]]).reshape(entry["shape"])

        return read

    return {name: reader(entry) for name, entry in header.items()}


def _parsed(text: bytes) -> dict[str, Any]:
    """The arrays that a header lists, each with a type that is read, a shape and two offsets."""
    try:
        header = json.loads(text)
    except RecursionError:
        header = None
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object, as that of safetensors is")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        entry = entry if isinstance(entry, dict) else {}
        kind, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not (isinstance(kind, str) and _are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2):
            raise ValueError(f"its header says of {name} no type, shape and two offsets")
        if kind not in TYPES:
            raise ValueError(f"{name} has type {kind}, which is not read; save it as float16")
    return header


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    """Whether this is a list of whole numbers, none of them below 0."""
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _read_npz(path: Path) -> dict[str, Callable[[], np.ndarray]]:
    """Numpy's own, which reads a member at a time and refuses pickled objects; opened for each, and closed again."""
    with _archive(path) as archive:
        names = archive.files

    def read(name: str) -> np.ndarray:
        with _archive(path) as archive:
            array = archive[name]
        if not isinstance(array, np.ndarray):
            raise ValueError("it is no array of numpy's")
        return array

    return {name: partial(read, name) for name in names}


def _archive(path: Path) -> np.lib.npyio.NpzFile:
    """The open archive; numpy would offer to read a pickle, and leave a file open that is cut off."""
    if not zipfile.is_zipfile(path):
        raise ValueError("it is no archive of arrays with names, as numpy.savez writes, or is cut off")
    return np.load(path, allow_pickle=False)


READERS: dict[str, Callable[[Path], dict[str, Callable[[], np.ndarray]]]] = {
    ".safetensors": _read_safetensors,
    ".npz": _read_npz,
    ".onnx": read_onnx,
}
