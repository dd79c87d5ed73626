"""A student that predicts what a teacher says of the other view, without negatives: what BYOL and SimSiam share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxcl.methods.base import Objective
from jaxcl.methods.parts.contrast import cosine
from jaxcl.methods.parts.networks import Pair


def agree_across_views(pair: Pair, ids: Any) -> Objective:
    """Both directions of 2 views, half each.

      loss = mean over images of 2 − cos(student_1, teacher_2) − cos(student_2, teacher_1), from 0 to 4

    Args:
        pair: [B, 2, D] each.
        ids: [B].

    Returns:
        The objective; there is nothing that a queue could receive.
    """
    across = cosine(pair.student, jnp.flip(pair.teacher, axis=1))
    unit = pair.teacher * jax.lax.rsqrt(jnp.sum(pair.teacher**2, axis=-1, keepdims=True) + 1e-12)
    metrics = dict(
        positive_cosine=jnp.mean(across),
        # 1 where directions are spread evenly, 0 where all embeddings are one
        feature_spread=jnp.mean(jnp.std(unit, axis=(0, 1))) * unit.shape[-1] ** 0.5,
        negatives_per_anchor=jnp.zeros(()),
    )
    metrics = jax.tree.map(jax.lax.stop_gradient, metrics)
    return Objective(jnp.mean(jnp.sum(1 - across, axis=1)), metrics, pair.teacher[:, 0], ids)
