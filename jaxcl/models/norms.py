"""The normalisation layers of the encoders, chosen by name; statistics are float32 whatever the compute dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

MAX_GROUPS = 32  # Wu & He 2018, https://arxiv.org/abs/1803.08494


class Norm(nn.Module):
    """Batch or group normalisation over the last axis, with a learned scale and bias.

    Under `jax.jit` with a batch sharded over devices the batch statistics are those of the whole batch.

    Attributes:
        kind: "batch" or "group".
        momentum: share of the running batch statistics kept at each step, in [0, 1).
        dtype: compute and output dtype; the statistics are float32.
        groups: most groups of a group norm; fewer where they do not divide the channels.
        scale_init: initialiser of the scale.
    """

    kind: str
    momentum: float = 0.9
    dtype: Any = jnp.float32
    groups: int = MAX_GROUPS
    scale_init: nn.initializers.Initializer = nn.initializers.ones

    @nn.compact
    def __call__(self, x: Float[Array, "*batch c"], train: bool) -> Float[Array, "*batch c"]:
        """Normalise `x` by its batch (train), by the running statistics (not train), or by its own groups."""
        shared: dict[str, Any] = dict(epsilon=1e-5, dtype=self.dtype, scale_init=self.scale_init)
        if self.kind == "group":
            groups = math.gcd(self.groups, x.shape[-1])
            return nn.GroupNorm(num_groups=groups, name="group", **shared)(x)
        return nn.BatchNorm(use_running_average=not train, momentum=self.momentum, name="batch", **shared)(x)


def make_norm(kind: str, *, momentum: float, dtype: Any, groups: int = MAX_GROUPS) -> Callable[..., Norm]:
    """`Norm` with everything but its initialiser and name settled.

    Args:
        kind: "batch" or "group".
        momentum: share of the running batch statistics kept at each step, in [0, 1).
        dtype: compute and output dtype.
        groups: most groups of a group norm.

    Returns:
        A function that builds one layer.
    """
    return partial(Norm, kind=kind, momentum=momentum, dtype=dtype, groups=groups)
