"""What anchors have met before they meet the columns that are here: scores, with a gradient of their own."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcl.losses.columns import NOTHING
from jaxcl.losses.partial import Partial
from jaxcl.losses.plan import Plan

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Float, Int


_NOTHING: Any = (None,) * len(Partial._fields)


class Met(NamedTuple):
    """What the queries of this device have found among columns that are elsewhere.

    Attributes:
        part: of each query; of its leaves `values` and, without `top_k`, `repulsion` have a gradient.
        nonfinite: how many of these columns hold a NaN or an infinity, over all devices.
    """

    part: Partial
    nonfinite: Int[Array, ""]


def of_met(plan: Plan, met: Partial, kth: Array, last: Array, log_sum: Array, given: Float[Array, " n"]) -> Partial:
    """The gradient of scores that were met before: the softmax weight of those that count in the end.

      ∂/∂s = g e^{s − lse} of a selected score, and of the log-sum of all where there is no selection

    Args:
        plan: static choices.
        met: of all anchors.
        kth: [N] score of the last selected column.
        last: [N] its number.
        log_sum: [N] lse.
        given: [N] g, the cotangent of the loss.

    Returns:
        A tree like `met`; None for what has no gradient.
    """

    def weight(scores: Array) -> Array:
        own = (...,) + (None,) * (scores.ndim - 1)
        return given[own] * jnp.exp(jnp.where(given[own] == 0, -jnp.inf, scores - log_sum[own]))

    nothing = Partial(*_NOTHING)
    if plan.top_k is None:
        return nothing._replace(repulsion=weight(met.repulsion))
    kth, last = kth[:, None], last[:, None]
    kept = (met.values > kth) | ((met.values == kth) & (met.chosen <= last))
    return nothing._replace(values=jnp.where(kept & (met.chosen != NOTHING), weight(met.values), 0.0))


def padded_rows(part: Any, extra: int) -> Any:
    """More rows of a tree, which belong to nobody, and whose values nobody reads."""
    return jax.tree.map(lambda x: jnp.pad(x, ((0, extra),) + ((0, 0),) * (x.ndim - 1)), part) if extra else part
