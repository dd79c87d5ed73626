"""A student that predicts what a teacher says of the other view, without negatives: what BYOL and SimSiam share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxcl.methods.base import Method, Objective
from jaxcl.methods.parts.contrast import cosine
from jaxcl.methods.parts.networks import Pair, make_embed, make_features, make_init


def make_agreement(
    networks: Mapping[str, nn.Module], *, teacher: str, target: Callable[[Any], Any] | None = None
) -> Method:
    """A method whose student predicts a teacher, over an encoder, a projection head and a predictor.

    Args:
        networks: encoder, head and predictor by these names.
        teacher: "self" or "target", as in `make_embed`.
        target: `Method.target`, with "target".

    Returns:
        The method; its variables are `{"encoder": …, "head": …, "predictor": …}` in each collection.
    """
    chain = {name: networks[name] for name in ("encoder", "head", "predictor")}

    def objective(key: Any, embeddings: Pair, ids: Any, labels: Any, *, queue: Any, temperature: Any) -> Objective:
        del key, labels, queue, temperature
        return agree_across_views(embeddings, ids)

    return Method(make_init(chain), make_embed(chain, teacher=teacher), objective, make_features(chain), target)


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
    metrics = dict(
        positive_cosine=jnp.mean(across),
        alignment=2 - 2 * jnp.mean(across),
        negatives_per_anchor=jnp.zeros(()),
    )
    metrics = jax.tree.map(jax.lax.stop_gradient, metrics)
    return Objective(jnp.mean(jnp.sum(1 - across, axis=1)), metrics, pair.teacher[:, 0], ids)
