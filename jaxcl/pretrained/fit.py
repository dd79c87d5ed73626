"""From the arrays of a file to the leaves of our variables, and what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxcl.integrity import array_types, misfit
from jaxcl.pretrained.rules import Family, Rule, depth_of

STACKED = "/layers/"
COUNTERS = ".num_batches_tracked"  # of PyTorch's batch norms


class Fitted(NamedTuple):
    """What a file gives to our variables.

    Attributes:
        leaves: arrays by path, all that fit.
        problem: the first few missing, unexpected and mis-shaped ones; empty where there are none.
        share: of the numbers wanted that the file gives.
        left_out: names in the file that belong to something else.
    """

    leaves: dict[str, np.ndarray]
    problem: str
    share: float
    left_out: list[str]


def root_of(names: Iterable[str], family: Family) -> str | None:
    """What stands before the names of a family in a file.

    Args:
        names: in the file.
        family: of names.

    Returns:
        Empty, or with a dot at its end; None where the file is none of the family.
    """
    roots = [name.removesuffix(family.anchor) for name in names if name.endswith(family.anchor)]
    return min((root for root in roots if not root or root.endswith(".")), key=len, default=None)


def fit(arrays: Mapping[str, np.ndarray], family: Family, like: Mapping[str, Any], parts: Iterable[str]) -> Fitted:
    """Fills the leaves of some parts from a file.

    Args:
        arrays: of the file.
        family: whose names it has.
        like: shapes of all our variables by path, as in `params/encoder/norm/scale`.
        parts: to fill, as in "encoder"; those that the family knows nothing of are passed over.

    Returns:
        What fits and what does not.
    """
    root, asked = root_of(arrays, family) or "", set(parts) & {_part(rule.leaf) for rule in family.rules}
    wanted = {path: leaf for path, leaf in like.items() if _part(path) in asked}
    depth = max((depth_of(arrays, root + rule.names[0]) for rule in family.rules if STACKED in rule.leaf), default=0)
    leaves: dict[str, np.ndarray] = {}
    used, outside = set(), []
    for rule in family.rules:
        names = _names(rule, root, depth)
        if _part(rule.leaf) not in asked:
            outside += [name for name in names if name in arrays]
        elif rule.leaf in wanted and len(names) >= len(rule.names) and all(name in arrays for name in names):
            leaves[rule.leaf] = _leaf(arrays, rule, names, wanted[rule.leaf].shape)
            used |= set(names)
    left_out = [
        name
        for name in arrays
        if not name.startswith(root) or name[len(root) :].startswith(family.ignored) or name.endswith(COUNTERS)
    ]
    unexpected = [name for name in arrays if name not in used and name not in {*left_out, *outside}]
    found, types = array_types(as_tree(leaves)), array_types(as_tree(wanted))
    problem = misfit(found | dict.fromkeys(unexpected, "array"), types)
    fitting = {path: leaf for path, leaf in leaves.items() if found[path] == types[path]}
    numbers = sum(leaf.size for leaf in wanted.values())
    share = sum(leaf.size for leaf in fitting.values()) / max(numbers, 1)
    return Fitted(fitting, problem, share, [name for name in left_out + outside if not name.endswith(COUNTERS)])


def as_tree(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dictionaries of leaves by path.

    >>> as_tree({"head/bias": 1, "head/kernel": 2})
    {'head': {'bias': 1, 'kernel': 2}}
    """
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *above, last = path.split("/")
        node = tree
        for key in above:
            node = node.setdefault(key, {})
        node[last] = leaf
    return tree


def _part(path: str) -> str:
    """The network that a leaf belongs to."""
    return path.split("/")[1]


def _names(rule: Rule, root: str, depth: int) -> list[str]:
    """All arrays that a leaf is made of, layer by layer."""
    layers = range(depth) if STACKED in rule.leaf else [0]
    return [root + name.format(number) for number in layers for name in rule.names]


def _leaf(arrays: Mapping[str, np.ndarray], rule: Rule, names: list[str], shape: tuple[int, ...]) -> np.ndarray:
    """The leaf as float32; an array of another shape than expected is left as it is, for the comparison to name."""
    each, stacked = len(rule.names), STACKED in rule.leaf
    try:
        if not stacked:
            return rule.change([_as_float(arrays[name]) for name in names], shape)
        read = [[_as_float(arrays[name]) for name in names[i : i + each]] for i in range(0, len(names), each)]
        return np.stack([rule.change(layer, shape[1:]) for layer in read])
    except (ValueError, IndexError):  # of numpy: axes that are not there, shapes that do not go together
        return _as_float(arrays[names[0]])


def _as_float(array: np.ndarray) -> np.ndarray:
    """float32 where it is any kind of float."""
    return np.asarray(array, np.float32) if jnp.issubdtype(array.dtype, jnp.floating) else array
