"""A factor of the loss that keeps gradients within float16, and that finds its own size.

  ∇θ L = (1/s) ∇θ (s L),  s a power of two

Below 6e-8 a float16 is zero, and above 65,504 infinite: with a large s few entries of a gradient vanish, with one too
large some overflow. So s is halved, and the step skipped, where a gradient overflows, and doubled after some finite
steps in a row. A power of two rounds nothing, and gradients of parameters are float32 before s is divided out.
`flax.training.dynamic_scale` wraps the function that is differentiated, and with cached gradients there is none: s goes
in with the loss, and out many programs later, behind the last micro-batch.

Source: Micikevicius et al., "Mixed Precision Training" (2018), https://arxiv.org/abs/1710.03740, section 3.2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int

LOWEST, HIGHEST = 1.0, 2.0**24


class LossScale(NamedTuple):
    """The factor, and for how long it has fitted.

    Attributes:
        factor: a power of two from `LOWEST` to `HIGHEST`.
        finite: steps in a row without an overflow since it last changed.
    """

    factor: Float32[Array, ""]
    finite: Int[Array, ""]


def init_scale(first: int) -> LossScale:
    """The factor of the first step.

    Args:
        first: a power of two.

    Returns:
        Two scalars.

    >>> float(init_scale(1024).factor)
    1024.0
    """
    return LossScale(jnp.float32(first), jnp.int32(0))


def scaled(loss: Any, scale: LossScale | None) -> Any:
    """The loss that is differentiated: s L, or L where there is no factor."""
    return loss if scale is None else loss * scale.factor


def unscaled(grads: Any, scale: LossScale | None) -> Any:
    """The gradient of L from that of s L, a tree of float32; the same one where there is no factor."""
    return grads if scale is None else jax.tree.map(lambda g: g / scale.factor, grads)


def overflowed(scale: LossScale | None, loss: Any, gradient: Any) -> Bool[Array, ""]:
    """Whether a smaller factor may help: L is finite, a gradient of s L is not, and s is not the smallest.

    Args:
        scale: of the step.
        loss: L.
        gradient: any number that is not finite where an entry of the gradient is not, such as its norm.

    Returns:
        False without a factor, and for a loss that no factor has touched.

    >>> bool(overflowed(init_scale(2), 3.0, jnp.inf)), bool(overflowed(init_scale(1), 3.0, jnp.inf))
    (True, False)
    """
    if scale is None:
        return jnp.asarray(False)
    return jnp.isfinite(loss) & ~jnp.isfinite(gradient) & (scale.factor > LOWEST)


def next_scale(scale: LossScale, *, finite: Any, overflow: Any, patience: int) -> LossScale:
    """The factor of the step after this one.

    Args:
        scale: of this step.
        finite: whether it was taken.
        overflow: from `overflowed`.
        patience: finite steps in a row after which the factor doubles.

    Returns:
        Half of it after an overflow, twice after `patience` finite steps, else the same.

    >>> [float(x) for x in next_scale(LossScale(jnp.float32(8), 2), finite=True, overflow=False, patience=3)]
    [16.0, 0.0]
    """
    count = jnp.where(finite, scale.finite + 1, 0)
    grows = count >= patience
    factor = jnp.where(overflow, scale.factor / 2, jnp.where(grows, scale.factor * 2, scale.factor))
    return LossScale(jnp.clip(factor, LOWEST, HIGHEST), jnp.where(grows, 0, count).astype(jnp.int32))
