"""SimCLR: the two views of an image attract each other, all other images of the batch and the queue repel.

  loss = mean over the 2B views of −s(i, partner) + log( e^{s(i, partner)} + Σ_{n ∈ T(i)} e^{s(i, n)} )

with s = cosine / temperature and T(i) the `loss.top_k` hardest negatives of view i, or all of them. The queue receives
one view of each image: the second would repeat the same image at the price of another one.

Source: Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations" (2020), equation 1; hardest
negatives after Xu, "Memory-Efficient Contrastive Learning via Budgeted Hard Negative Selection" (2026).
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxcl.config import LossConfig
from jaxcl.losses import InfoNCEOutput, mean_infonce
from jaxcl.methods.base import Method, Objective


def make_method(*, encoder: nn.Module, head: nn.Module, loss: LossConfig, mesh: Mesh | None = None) -> Method:
    """SimCLR over an encoder and a projection head.

    Args:
        encoder: images [N, H, W, C] to features [N, F].
        head: features to embeddings [N, D].
        loss: temperature, number of negatives, engine.
        mesh: whose `data` axis shares batch and queue; None: one device.

    Returns:
        The method; its variables are `{"encoder": …, "head": …}` in each collection.
    """

    def init(key: Any, views: Any) -> dict[str, Any]:
        images = views.reshape(-1, *views.shape[2:])
        features, encoder_variables = encoder.init_with_output(key, images, train=False)
        head_variables = head.init(key, features, train=False)
        parts = {"encoder": encoder_variables, "head": head_variables}
        return {
            collection: {name: part.get(collection, {}) for name, part in parts.items()}
            for collection in ("params", "batch_stats")
        }

    def embed(params: Any, batch_stats: Any, views: Any, *, train: bool) -> tuple[Any, Any]:
        images = views.reshape(-1, *views.shape[2:])
        features, encoder_stats = _apply(encoder, "encoder", params, batch_stats, images, train)
        embeddings, head_stats = _apply(head, "head", params, batch_stats, features, train)
        return embeddings.reshape(*views.shape[:2], -1), {"encoder": encoder_stats, "head": head_stats}

    def objective(key: Any, embeddings: Any, ids: Any, labels: Any, queue: Any) -> Objective:
        del labels
        tail = {} if loss.tail == "drop" else dict(tail_samples=loss.tail_samples, tail_key=key)
        views = embeddings.reshape(-1, embeddings.shape[-1])
        groups = jnp.repeat(ids, embeddings.shape[1])
        bank = {} if queue is None else dict(queue=queue.values, queue_groups=queue.groups, queue_filled=queue.filled)
        value, out = mean_infonce(
            views,
            views,
            groups,
            groups,
            impl=loss.impl,
            mesh=mesh,
            temperature=loss.temperature,
            top_k=loss.top_k,
            block_size=loss.block_size,
            exclude_diagonal=True,
            tail=loss.tail,
            **tail,
            **bank,
        )
        return Objective(value, _metrics(embeddings, out, loss), embeddings[:, 0], ids)

    def features(params: Any, batch_stats: Any, images: Any) -> Any:
        return _apply(encoder, "encoder", params, batch_stats, images, train=False)[0]

    return Method(init, embed, objective, features)


def _metrics(embeddings: Any, out: InfoNCEOutput, loss: LossConfig) -> dict[str, Any]:
    """What to log: how similar partners are, and what they compete with."""
    unit = embeddings * jax.lax.rsqrt(jnp.sum(jnp.square(embeddings), axis=-1, keepdims=True) + 1e-12)
    positive = jnp.sum(unit[:, 0] * unit[:, 1], axis=-1)
    hardest = loss.temperature * out.stats.hardest.reshape(embeddings.shape[:2])
    used = out.stats.negatives if loss.top_k is None else jnp.minimum(out.stats.negatives, loss.top_k)
    values = dict(
        contrastive_accuracy=jnp.mean(positive[:, None] > hardest),
        positive_cosine=jnp.mean(positive),
        hardest_cosine=jnp.mean(hardest),
        negatives_per_anchor=jnp.mean(used),
        tail_mass=jnp.mean(out.stats.tail_mass),
        nonfinite_keys=out.stats.nonfinite,
    )
    return jax.tree.map(lambda x: jax.lax.stop_gradient(x).astype(jnp.float32), values)


def _apply(module: nn.Module, name: str, params: Any, batch_stats: Any, x: Any, train: bool) -> tuple[Any, Any]:
    """One part of the network, and its running statistics after it."""
    variables = {"params": params[name], "batch_stats": batch_stats[name]}
    y, changed = module.apply(variables, x, train=train, mutable=["batch_stats"])
    return y, changed.get("batch_stats", {})
