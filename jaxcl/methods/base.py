"""What a training method gives the step: how to make its variables, its embeddings and its objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, Int

Variables = dict[str, Any]
Embeddings = Any


class Objective(NamedTuple):
    """The loss of one contrastive problem, what to log of it, and what the queue receives."""

    loss: Float[Array, ""]
    metrics: dict[str, Array]
    push_values: Float[Array, "b d"]
    push_groups: Int[Array, " b"]


class Method(NamedTuple):
    """Pure functions; `embed` and `objective` are apart so that a step may cache what lies between them.

    Attributes:
        init: `(key, views [B, V, H, W, C]) -> {"params": …, "batch_stats": …}`.
        embed: `(params, batch_stats, views, train) -> (embeddings, batch_stats)`; embeddings is any tree of [B, …],
            so that a device that holds an image holds all its views.
        objective: `(key, embeddings, ids [B], labels [B], queue) -> Objective`; the key is of this problem alone.
        features: `(params, batch_stats, images [B, H, W, C]) -> [B, F]`: the frozen backbone that probes see.
        target_decay: decay of the momentum encoder in `TrainState.target`, or None where a method has none.
    """

    init: Callable[[jax.Array, Array], Variables]
    embed: Callable[..., tuple[Embeddings, Any]]
    objective: Callable[..., Objective]
    features: Callable[..., Float[Array, "b f"]]
    target_decay: float | None = None
