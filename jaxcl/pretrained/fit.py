"""From the arrays of a file to the leaves of our variables, and what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxcl.config import ConfigError, first_of
from jaxcl.pretrained.rules import Family, Rule

STACKED = "/layers/"
COUNTERS = ".num_batches_tracked"  # of PyTorch's batch norms
_NAMED = 3  # of what does not fit


class Fitted(NamedTuple):
    """What a file gives to our variables.

    Attributes:
        leaves: arrays by path, all that fit.
        problem: the first few missing, mis-shaped and unexpected arrays, by their names in the file; empty where there
            are none.
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

    Raises:
        ConfigError: the file has the network several times, and none of them without a root.
    """
    found = {name.removesuffix(family.anchor) for name in names if name.endswith(family.anchor)}
    roots = sorted((root for root in found if not root or root.endswith(".")), key=lambda root: (len(root), root))
    if len(roots) > 1 and roots[0]:
        raise ConfigError(
            f"it holds the {family.title} {len(roots)} times, with names that begin with {' and '.join(roots)}: save "
            "one of them alone"
        )
    return roots[0] if roots else None


def fit(arrays: Mapping[str, np.ndarray], family: Family, like: Mapping[str, Any], parts: Iterable[str]) -> Fitted:
    """Fills the leaves of some parts from a file.

    Args:
        arrays: of the file.
        family: whose names it has.
        like: shapes of all our variables by path, as in `params/encoder/norm/scale`.
        parts: to fill, as in "encoder"; those that the family knows nothing of are passed over.

    Returns:
        What fits and what does not.

    Raises:
        ConfigError: an array that would be read has a NaN, an infinity, or more than float32 holds.
    """
    root, asked = root_of(arrays, family) or "", set(parts) & {_part(rule.leaf) for rule in family.rules}
    wanted = {path: leaf for path, leaf in like.items() if _part(path) in asked}
    leaves: dict[str, np.ndarray] = {}
    used, outside, problems = set(), [], []
    for rule in family.rules:
        if _part(rule.leaf) not in asked:
            outside += [root + name for name in rule.names if root + name in arrays]
        elif rule.leaf in wanted:
            layers = _layers(rule, root, wanted[rule.leaf].shape)
            used |= {name for names in layers for name in names}
            leaf, wrong = _leaf(arrays, rule, layers, wanted[rule.leaf])
            problems += wrong
            if leaf is not None:
                leaves[rule.leaf] = leaf
    ruled = {rule.leaf for rule in family.rules}
    problems += [f"{path} is missing" for path in wanted if path not in ruled]
    left_out = [
        name
        for name in arrays
        if not name.startswith(root) or name[len(root) :].startswith(family.ignored) or name.endswith(COUNTERS)
    ]
    known = {*used, *left_out, *outside}
    problems += [f"{name} is not expected" for name in arrays if name not in known]
    share = sum(leaf.size for leaf in leaves.values()) / max(sum(leaf.size for leaf in wanted.values()), 1)
    outside = [name for name in left_out + outside if not name.endswith(COUNTERS)]
    return Fitted(leaves, first_of(problems, _NAMED, "; "), share, outside)


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


def _layers(rule: Rule, root: str, shape: tuple[int, ...]) -> list[list[str]]:
    """The arrays that a leaf is made of, for each layer; as many layers as our network has."""
    count = shape[0] if STACKED in rule.leaf else 1
    return [[root + name.format(number) for name in rule.names] for number in range(count)]


def _leaf(
    arrays: Mapping[str, np.ndarray], rule: Rule, layers: list[list[str]], like: Any
) -> tuple[np.ndarray | None, list[str]]:
    """The leaf as float32, and what is wrong with its arrays; None where anything is."""
    stacked = STACKED in rule.leaf
    shape = like.shape[1:] if stacked else like.shape
    made, wrong, wanted = [], [], _kind(like.dtype, shape)
    for number, names in enumerate(layers):
        missing = [f"{name} is missing ({rule.leaf})" for name in names if name not in arrays]
        wrong += missing
        if missing:
            continue
        made.append(_made(rule, [_read(arrays, name) for name in names], shape))
        kind = _kind(made[-1].dtype, made[-1].shape)
        if kind != wanted:
            layer = f" of layer {number}" if stacked else ""
            wrong.append(f"{rule.leaf}{layer} is {kind}, not {wanted} (from {first_of(names, 1)})")
    return (None if wrong else np.stack(made) if stacked else made[0]), wrong


def _made(rule: Rule, arrays: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """The leaf, of one layer; the first array itself where they are of other shapes than the rule is for."""
    try:
        return rule.change(arrays, shape)
    except (ValueError, IndexError):  # of numpy: axes that are not there, shapes that do not go together
        return arrays[0]


def _kind(dtype: Any, shape: tuple[int, ...]) -> str:
    """Type and shape in words."""
    return f"{dtype}{list(shape)}"


def _read(arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """An array as float32 where it is any kind of float, each number of which has to be finite."""
    array = arrays[name]
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array
    with np.errstate(over="ignore"):
        single = np.asarray(array, np.float32)
    if not np.isfinite(single).all():
        held = np.isfinite(np.asarray(array, np.float64)).all()
        raise ConfigError(f"{name} has {'numbers too large for float32' if held else 'a NaN or an infinity'}")
    return single
