"""The arrays of an ONNX graph under the names that they had in PyTorch.

An exporter keeps a parameter's name unless it folds something into it. It turns the kernels of linear layers round, and
then they are called `onnx::MatMul_123`; the product that reads one is named after its layer, `/layer.0/mlp/fc1/MatMul`.
Position embeddings that are resized in the graph it cuts into that of the class token and those of the patches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxcl.config import ConfigError

FOLDED = "onnx::"
CUT = {"Concat": 0, "Reshape": 1}  # what reads the two parts of position embeddings, in their order


def read_onnx(path: Path) -> dict[str, Callable[[], np.ndarray]]:
    """What `jaxcl.pretrained.files` needs to know of an ONNX file.

    Args:
        path: of the file.

    Returns:
        For each name a function that reads its array.

    Raises:
        ConfigError: the package `onnx` is missing.
        ValueError: it is not such a file.
    """
    try:
        import onnx
    except ImportError:
        raise ConfigError(f"{path} needs the library that reads it: pip install onnx") from None
    try:
        graph = onnx.load(str(path)).graph
    except Exception as error:  # of protobuf, of no common class
        raise ValueError(f"not an ONNX file: {' '.join(str(error).split())}") from error
    arrays = {tensor.name: partial(onnx.numpy_helper.to_array, tensor) for tensor in graph.initializer}
    found = {name: read for name, read in arrays.items() if not name.startswith(FOLDED)}
    parts: dict[str, dict[int, Callable[[], np.ndarray]]] = {}
    for kind, module, read in _folded(graph, arrays):
        if kind == "MatMul":
            found[f"{module}.weight"] = partial(_turned, read)
        elif kind in CUT:
            parts.setdefault(f"{module}.position_embeddings", {})[CUT[kind]] = read
    cut = {name: both for name, both in parts.items() if len(both) == len(CUT)}
    return found | {name: partial(_rejoined, both) for name, both in cut.items()}


def _folded(graph: Any, arrays: dict[str, Any]) -> Iterator[tuple[str, str, Callable[[], np.ndarray]]]:
    """What reads each nameless array, the module it belongs to, with dots, and the array's reader."""
    for node in graph.node:
        for name in node.input:
            if name.startswith(FOLDED) and name in arrays:
                yield node.op_type, node.name.rpartition("/")[0].strip("/").replace("/", "."), arrays[name]


def _turned(read: Callable[[], np.ndarray]) -> np.ndarray:
    """The kernel as PyTorch has it."""
    return read().T


def _rejoined(parts: dict[int, Callable[[], np.ndarray]]) -> np.ndarray:
    """Position embeddings [1, 1 + patches, D] from their two parts."""
    return np.concatenate([parts[number]() for number in sorted(parts)], axis=1)
