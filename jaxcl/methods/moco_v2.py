"""MoCo v2: one view of an image finds the momentum encoder's key of the other among a queue of earlier keys.

  loss = mean over images of −s(q, k) + log( e^{s(q, k)} + Σ_{n ∈ T} e^{s(q, n)} )

with q the student's embedding of view 1, k the momentum encoder's of view 2, without gradient, and T the queue, or the
`loss.top_k` hardest of it: keys of other images of the batch are no negatives. Then the keys enter the queue. While it
is empty nothing repels, and the loss is 0.

Source: Chen, Fan, Girshick and He, "Improved Baselines with Momentum Contrastive Learning" (2020); algorithm 1 of He et
al., "Momentum Contrast for Unsupervised Visual Representation Learning" (2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxcl.config import Config
from jaxcl.losses import mean_infonce
from jaxcl.methods.base import Method, Objective, Traits
from jaxcl.methods.parts.contrast import contrast_metrics, loss_options, queue_options
from jaxcl.methods.parts.keys import make_encode_keys
from jaxcl.methods.parts.networks import Pair, make_embed, make_features, make_init, teacher_of

TRAITS = Traits(queue=True, target=True, key_norm=True, negatives=lambda _, queue: queue)


def make_method(*, networks: Mapping[str, nn.Module], config: Config, mesh: Mesh | None = None) -> Method:
    """MoCo v2 over an encoder and a projection head.

    Args:
        networks: encoder and head by these names.
        config: number of negatives and engine in `loss`, batch statistics of keys in `target`.
        mesh: whose `data` axis shares batch and queue; None: one device.

    Returns:
        The method; its variables are `{"encoder": …, "head": …}` in each collection.
    """
    loss, chain = config.loss, {name: networks[name] for name in ("encoder", "head")}
    encode_queries = make_embed(chain)
    encode_keys = make_encode_keys(chain, norm=config.target.key_norm, splits=config.target.key_splits)

    def embed(key: Any, params: Any, batch_stats: Any, target: Any, views: Any, *, train: bool) -> tuple[Pair, Any]:
        queries, stats = encode_queries(key, params, batch_stats, None, views[:, :1], train=train)
        keys = encode_keys(key, target, batch_stats, views[:, 1], train=train)
        return Pair(queries, keys[:, None]), stats

    def objective(key: Any, embeddings: Pair, ids: Any, labels: Any, *, queue: Any, temperature: Any) -> Objective:
        del labels
        queries, keys = embeddings.student[:, 0], embeddings.teacher[:, 0]
        options = dict(loss_options(loss, temperature, key), **queue_options(queue), use_key_negatives=False)
        own = jnp.arange(len(ids), dtype=jnp.int32)
        value, out = mean_infonce(queries, keys, ids, ids, mesh=mesh, positive_index=own, **options)
        hardest, top_k = out.stats.hardest[:, None], loss.top_k
        metrics = contrast_metrics(queries, keys, hardest, out, top_k=top_k, temperature=temperature)
        return Objective(value, metrics, jax.lax.stop_gradient(keys), ids)

    def anchors(embeddings: Pair, ids: Any, labels: Any) -> tuple[Any, Any]:
        del labels
        return embeddings.student[:, 0], ids

    return Method(make_init(chain), embed, objective, make_features(chain), teacher_of, anchors=anchors)
