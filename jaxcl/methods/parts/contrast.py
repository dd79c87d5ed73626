"""The views of a batch against each other and a queue: the objective that SimCLR and SupCon share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from jaxcl.config import LossConfig
from jaxcl.hostqueue import Resident
from jaxcl.losses import InfoNCEOutput, mean_infonce, normalise
from jaxcl.methods.base import Method, Objective
from jaxcl.methods.parts.networks import make_embed, make_features, make_init
from jaxcl.queue import Queue

Groups = Int[Array, " b"]


def make_contrast(
    networks: Mapping[str, nn.Module],
    *,
    groups_of: Callable[[Groups, Groups], Groups],
    loss: LossConfig,
    mesh: Mesh | None,
) -> Method:
    """A method whose views repel those of other groups, over an encoder and a projection head.

    Args:
        networks: encoder and head by these names.
        groups_of: `(ids [B], labels [B]) -> [B]`, who belongs together.
        loss: number of negatives, engine.
        mesh: whose `data` axis shares batch and queue; None: one device.

    Returns:
        The method; its variables are `{"encoder": …, "head": …}` in each collection.
    """
    chain = {name: networks[name] for name in ("encoder", "head")}

    def objective(key: Any, embeddings: Any, ids: Any, labels: Any, *, queue: Any, temperature: Any) -> Objective:
        groups = groups_of(ids, labels)
        return contrast_views(key, embeddings, groups, queue=queue, temperature=temperature, loss=loss, mesh=mesh)

    def anchors(embeddings: Any, ids: Any, labels: Any) -> tuple[Any, Any]:
        return views_of(embeddings, groups_of(ids, labels))

    return Method(make_init(chain), make_embed(chain), objective, make_features(chain), anchors=anchors)


def contrast_views(
    key: Any, embeddings: Any, groups: Any, *, queue: Any, temperature: Any, loss: LossConfig, mesh: Mesh | None
) -> Objective:
    """Each view attracts the others of its group, and repels the rest and the queue.

    Args:
        key: of the sampled tail.
        embeddings: [B, 2, D].
        groups: [B] int32, who belongs together.
        queue: of earlier embeddings, or None.
        temperature: of this step.
        loss: settings.
        mesh: whose `data` axis shares batch and queue; None: one device.

    Returns:
        The objective; the queue receives one view of each image: the second would repeat it at the price of another.
    """
    views, both = views_of(embeddings, groups)
    options = dict(loss_options(loss, temperature, key), **queue_options(queue))
    value, out = mean_infonce(views, views, both, both, mesh=mesh, exclude_diagonal=True, **options)
    hardest = out.stats.hardest.reshape(embeddings.shape[:2])
    metrics = contrast_metrics(
        embeddings[:, 0], embeddings[:, 1], hardest, out, top_k=loss.top_k, temperature=temperature
    )
    return Objective(value, metrics, embeddings[:, 0], groups)


def views_of(embeddings: Float[Array, "b v d"], groups: Int[Array, " b"]) -> tuple[Any, Any]:
    """Views side by side, and the group of each."""
    return embeddings.reshape(-1, embeddings.shape[-1]), jnp.repeat(groups, embeddings.shape[1])


def queue_options(queue: Queue | Resident | None) -> dict[str, Any]:
    """Arguments of `mean_infonce` that are a queue, or a block of one and what was found in the others."""
    if queue is None:
        return {}
    more = dict(met=queue.met, met_size=queue.others) if isinstance(queue, Resident) else {}
    return dict(queue=queue.values, queue_groups=queue.groups, queue_filled=queue.filled, **more)


def loss_options(loss: LossConfig, temperature: Any, key: Any) -> dict[str, Any]:
    """Arguments of `mean_infonce` that are settings, at the temperature of a step."""
    tail = {} if loss.tail == "drop" else dict(tail_samples=loss.tail_samples, tail_key=key)
    return dict(
        impl=loss.impl,
        temperature=temperature,
        top_k=loss.top_k,
        skip_hardest=loss.skip_hardest,
        block_size=loss.block_size,
        tail=loss.tail,
        **tail,
    )


def contrast_metrics(
    anchor: Any,
    positive: Any,
    hardest: Float[Array, "b v"],
    out: InfoNCEOutput,
    *,
    top_k: int | None,
    temperature: Any,
) -> dict[str, Any]:
    """What to log: how similar partners are, and what they compete with.

    Args:
        anchor: [B, D].
        positive: [B, D].
        hardest: largest score of a negative, of the anchors of each image.
        out: of the loss.
        top_k: negatives of an anchor that count; None: all.
        temperature: of this step.

    Returns:
        Scalars without gradient.
    """
    together = cosine(anchor, positive)
    hardest = jnp.maximum(temperature * hardest, -1.0)  # without any negative, as of the least similar there can be
    used = out.stats.negatives if top_k is None else jnp.minimum(out.stats.negatives, top_k)
    values = dict(
        temperature=jnp.asarray(temperature),
        contrastive_accuracy=jnp.mean(together[:, None] > hardest),
        positive_cosine=jnp.mean(together),
        alignment=2 - 2 * jnp.mean(together),  # mean squared distance of partners, Wang and Isola 2020
        hardest_cosine=jnp.mean(hardest),
        negatives_per_anchor=jnp.mean(used),
        tail_mass=jnp.mean(out.stats.tail_mass),
        nonfinite_keys=out.stats.nonfinite,
    )
    return jax.tree.map(lambda x: jax.lax.stop_gradient(x).astype(jnp.float32), values)


def cosine(a: Float[Array, "*n d"], b: Float[Array, "*n d"]) -> Float[Array, "*n"]:
    """Cosines along the last axis; finite at 0."""
    return jnp.sum(normalise(a) * normalise(b), axis=-1)
