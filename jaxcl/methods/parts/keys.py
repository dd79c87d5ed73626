"""Keys of a momentum encoder whose batch statistics do not give away which query is theirs.

With batch norm, the embeddings of a batch carry its statistics. Query and key of an image come from one batch, the
negatives of a queue from earlier ones: an encoder can tell the key by the statistics alone, whatever the image shows
(He et al. 2020, section 3.3). MoCo shuffles keys between GPUs, each of which normalises its own part of the batch. On
one device, and under a jit over many, batch norm sees the whole batch in whatever order, so shuffling alone does
nothing. Here it is the keys that are normalised in parts, `splits` of them, each by its own statistics; shuffling
decides which images share a part. Of the batch that normalised a query, a part is one `splits`-th: the means of the two
correlate by 1/√splits instead of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxcl.methods.parts.networks import TEACHER, run


def make_encode_keys(chain: Mapping[str, nn.Module], *, norm: str, splits: int) -> Callable[..., jax.Array]:
    """How images become keys.

    Args:
        chain: networks by name, in order.
        norm: "shuffled": images are permuted at random, normalised in parts and put back; "split": the parts are
            neighbours in the batch; "group": the networks have no batch norm, and nothing is split.
        splits: parts of the batch; must divide it.

    Returns:
        `encode(key, target, batch_stats, images [B, H, W, C], *, train) -> [B, D]`, without gradient; it keeps no
        running statistics.

    Raises:
        ValueError: when called with a batch that `splits` does not divide.
    """

    def encode(key: Any, target: Any, batch_stats: Any, images: Any, *, train: bool) -> jax.Array:
        def project(part: Any) -> jax.Array:
            return run(chain, target, batch_stats, part, train=train)[0][TEACHER]

        if norm == "group":
            return jax.lax.stop_gradient(project(images))
        count = images.shape[0]
        if count % splits:
            raise ValueError(f"splits={splits} must divide {count}, the images of a batch")
        order = jax.random.permutation(key, count) if norm == "shuffled" else jnp.arange(count)
        parts = images[order].reshape(splits, count // splits, *images.shape[1:])
        keys = jax.vmap(project)(parts).reshape(count, -1)
        return jax.lax.stop_gradient(keys[jnp.argsort(order)])

    return encode
