"""Which mesh axes a value varies over inside `jax.shard_map`, and constants cast so that loops take them as carries."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

with contextlib.suppress(ImportError):
    from jaxtyping import Array


def axes_of(tree: Any) -> frozenset[str]:
    """The axes over which any leaf varies; none outside shard_map."""
    return frozenset().union(*(_axes(leaf) for leaf in jax.tree.leaves(tree)))


def _axes(leaf: Array) -> frozenset[str]:
    """The axes over which one array varies."""
    kind = jax.typeof(leaf)
    return frozenset(kind.manual_axis_type.varying)


def vary(tree: Any, axes: frozenset[str]) -> Any:
    """The same values, varying at least over some axes; the transposed operation is a psum.

    Args:
        tree: arrays.
        axes: names of mesh axes.

    Returns:
        The tree.
    """

    def cast(leaf: Array) -> Array:
        missing = tuple(sorted(axes - _axes(leaf)))
        return lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(cast, tree)


def full_like(like: Array, shape: tuple[int, ...], value: Any, dtype: Any = jnp.float32) -> Array:
    """A constant that varies over the same axes as another array."""
    return vary(jnp.full(shape, value, dtype), axes_of(like))
