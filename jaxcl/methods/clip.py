"""CLIP: an image finds its caption among those of the batch, and a caption its image; the temperature is learned.

  loss = ½ InfoNCE(images → captions) + ½ InfoNCE(captions → images),  scores = e^log_scale · cosine

with one view of each image. An image and its own caption attract each other; other images of the same caption neither
attract nor repel it: as negatives, copies would put a floor of log 2 under the loss. `loss.top_k` keeps the hardest
negatives of each anchor, or all of them. log_scale starts at −log `loss.temperature`, has no weight decay, and is held
where 1/temperature ≤ 100 by the optimizer. The heads are those of the config: `model.head_layers = 1` is the linear
projection of the paper.

Source: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision" (2021), figure 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from jaxcl.config import Config
from jaxcl.losses import mean_infonce
from jaxcl.methods.base import Captioned, Method, Objective, Towers, Traits
from jaxcl.methods.parts.contrast import contrast_metrics, loss_options
from jaxcl.methods.parts.networks import flat, init_chain, make_features, run

TRAITS = Traits(captions=True, learns_temperature=True, views=1, negatives=lambda images, _: images - 1)
HASH_BITS = 24  # what a float32 holds exactly


class Matches(NamedTuple):
    """Images beside their captions, all of it floats, so that a step may cache it and replay its gradient.

    Attributes:
        image: [B, D].
        text: [B, D].
        log_scale: logarithm of the inverse temperature, the same in each row.
        caption: number of the caption, a hash.
    """

    image: Float[Array, "b d"]
    text: Float[Array, "b d"]
    log_scale: Float[Array, " b"]
    caption: Float[Array, " b"]


def make_method(*, networks: Mapping[str, nn.Module], config: Config, mesh: Mesh | None = None) -> Method:
    """CLIP over an image encoder and a text tower, each with its projection.

    Args:
        networks: encoder, head, text and text_head by these names.
        config: first temperature, number of negatives and engine in `loss`.
        mesh: whose `data` axis shares the batch; None: one device.

    Returns:
        The method; its parameters are `{"encoder": …, "head": …, "text": …, "text_head": …, "log_scale": …}`.
    """
    loss = config.loss
    images, texts = ({name: networks[name] for name in names} for names in (("encoder", "head"), ("text", "text_head")))

    def init(key: Any, inputs: Captioned) -> dict[str, Any]:
        keys = jax.random.split(key)
        parts = init_chain(images, keys[0], flat(inputs.views)), init_chain(texts, keys[1], inputs.tokens)
        variables = {kind: {**parts[0][kind], **parts[1][kind]} for kind in ("params", "batch_stats")}
        variables["params"]["log_scale"] = jnp.float32(-math.log(loss.temperature))
        return variables

    def embed(key: Any, params: Any, batch_stats: Any, target: Any, inputs: Captioned, *, train: bool) -> Any:
        del key, target
        image, stats = run(images, params, batch_stats, flat(inputs.views), train=train)
        text, stats = run(texts, params, stats, inputs.tokens, train=train)
        scale = jnp.broadcast_to(params["log_scale"], inputs.tokens.shape[:1])
        return Matches(image["head"], text["text_head"], scale, hash_of(inputs.tokens).astype(jnp.float32)), stats

    def objective(key: Any, embeddings: Matches, ids: Any, labels: Any, *, queue: Any, temperature: Any) -> Objective:
        del labels, queue, temperature
        return match(key, embeddings, ids, config=config, mesh=mesh)

    def image(params: Any, batch_stats: Any, x: Any) -> Any:
        return run(images, params, batch_stats, x, train=False)[0]["head"]

    def text(params: Any, batch_stats: Any, tokens: Any) -> Any:
        return run(texts, params, batch_stats, tokens, train=False)[0]["text_head"]

    return Method(init, embed, objective, make_features(images), towers=Towers(image, text))


def match(key: Any, embeddings: Matches, ids: Any, *, config: Config, mesh: Mesh | None) -> Objective:
    """Both directions, half each.

    Args:
        key: of the sampled tail.
        embeddings: of the batch.
        ids: [B]; an image that is twice in a batch has the same caption there.
        config: `loss`.
        mesh: whose `data` axis shares the batch; None: one device.

    Returns:
        The objective; there is no queue that could receive anything.
    """
    loss, temperature = config.loss, jnp.exp(-jnp.mean(embeddings.log_scale))
    same, own = embeddings.caption.astype(jnp.int32), jnp.arange(len(ids), dtype=jnp.int32)

    def direction(queries: Any, keys: Any, key: Any) -> tuple[Any, dict[str, Any]]:
        options = loss_options(loss, temperature, key)
        value, out = mean_infonce(queries, keys, same, same, mesh=mesh, positive_index=own, **options)
        hardest = out.stats.hardest[:, None]
        return value, contrast_metrics(queries, keys, hardest, out, top_k=loss.top_k, temperature=temperature)

    keys = jax.random.split(key)
    pair = embeddings.image, embeddings.text
    values, metrics = zip(direction(*pair, keys[0]), direction(*pair[::-1], keys[1]), strict=True)
    both = jax.tree.map(lambda a, b: (a + b) / 2, *metrics)
    return Objective((values[0] + values[1]) / 2, both, embeddings.image, ids)


def hash_of(tokens: Int[Array, "b l"]) -> Int[Array, " b"]:
    """A number of each caption in [0, 2^24): equal for equal captions; two others share one with a chance of 2^-24.

    A polynomial of the tokens modulo 2^32, its bits mixed as in MurmurHash3 (Appleby, 2011). Two captions that share a
    number are no negatives of each other, and that is all.

    >>> bool(hash_of(jnp.array([[1, 7, 2]]))[0] == hash_of(jnp.array([[1, 2, 7]]))[0])
    False
    """
    weights = [pow(0x9E3779B1, number, 1 << 32) for number in range(1, tokens.shape[1] + 1)]
    mixed = jnp.sum(tokens.astype(jnp.uint32) * jnp.array(weights, jnp.uint32), axis=1)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
    return (mixed >> (32 - HASH_BITS)).astype(jnp.int32)
