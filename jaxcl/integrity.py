"""Whether arrays are those that were saved, and whether they are those that a configuration needs."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcl.config import first_of

_NAMED = 3


def by_path(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by path.

    >>> by_path({"head": {"bias": 1}})
    {'head/bias': 1}
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def array_types(tree: Any) -> dict[str, str]:
    """Type and shape of each array by its path.

    Args:
        tree: of arrays, of `jax.ShapeDtypeStruct`, or of what Orbax knows of saved ones.

    Returns:
        In the order of the tree; the same for tuples and for the dictionaries and lists that they are saved as.

    >>> array_types({"head": {"bias": np.zeros(3, np.float32)}})
    {'head/bias': 'float32[3]'}
    """
    return {path: f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in by_path(tree).items()}


def checksums(tree: Any) -> dict[str, str | None]:
    """CRC-32 of the bytes of each array, whatever devices it lies on: any single flipped bit changes it.

    Args:
        tree: of arrays; nothing happens to them.

    Returns:
        Eight hexadecimal digits by path; None where this process sees a part of an array only.

    >>> checksums({"a": jax.numpy.zeros(2)})
    {'a': '6522df69'}
    """
    return {path: _checksum(leaf) for path, leaf in by_path(tree).items()}


def text_checksum(values: Any) -> str:
    """CRC-32 of what JSON writes of some values.

    >>> text_checksum({"a": (1, 2)}) == text_checksum({"a": [1, 2]})
    True
    """
    return f"{zlib.crc32(json.dumps(values, sort_keys=True).encode()):08x}"


def differing(found: Mapping[str, str | None], wanted: Mapping[str, str | None]) -> str | None:
    """The first array whose checksum is another one; those that either side could not see are passed over.

    >>> differing({"a": "0", "b": "1"}, {"a": "0", "b": "2"})
    'b'
    """
    both = ((path, value, wanted[path]) for path, value in found.items())
    return next((path for path, value, other in both if None not in (value, other) and value != other), None)


def misfit(saved: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """What is wrong with saved arrays for somebody who needs others.

    Args:
        saved: from `array_types`.
        wanted: the same.

    Returns:
        The first three that are missing, of another type or shape, or too many; empty where all is well.

    >>> misfit({"a": "float32[3]", "b": "int32[]"}, {"a": "float32[4]", "b": "int32[]"})
    'a is float32[3], not float32[4]'
    """
    found = [
        f"{path} is {saved[path]}, not {kind}" if path in saved else f"{path} is missing"
        for path, kind in wanted.items()
        if saved.get(path) != kind
    ]
    found += [f"{path} is not expected" for path in saved if path not in wanted]
    return first_of(found, _NAMED, "; ")


def _checksum(leaf: Any) -> str | None:
    """That of one array."""
    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        return None
    return f"{zlib.crc32(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data):08x}"


def first_non_finite(tree: Any) -> str | None:
    """Where the first array with a NaN or an infinity is.

    Args:
        tree: of arrays on any devices.

    Returns:
        Its path, or None.

    >>> first_non_finite({"a": jnp.zeros(2), "b": jnp.array([1.0, jnp.inf])})
    "['b']"
    """
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    floats = [(path, leaf) for path, leaf in paths if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    there = jax.device_get(_all_finite([leaf for _, leaf in floats if not _waits(leaf)]))
    known = dict(zip([jax.tree_util.keystr(path) for path, leaf in floats if not _waits(leaf)], there, strict=True))
    for path, leaf in floats:
        name = jax.tree_util.keystr(path)
        # of those on the host one at a time is on a device
        if not (known[name] if name in known else _finite_on_device(leaf)):
            return name
    return None


def _waits(leaf: Any) -> bool:
    """Whether an array is in the host's memory, where no program computes with it."""
    return isinstance(leaf, jax.Array) and leaf.sharding.memory_kind == "pinned_host"


def _finite_on_device(leaf: jax.Array) -> bool:
    """Whether all numbers of an array that waits on the host are finite."""
    return bool(_all_finite([jax.device_put(leaf, leaf.sharding.with_memory_kind("device"))])[0])


@jax.jit
def _all_finite(leaves: list[jax.Array]) -> list[jax.Array]:
    """For each array whether all its numbers are finite."""
    return [jnp.isfinite(leaf).all() for leaf in leaves]
