"""MoCo v3: predictions of one view against the momentum encoder's projections of the other, both ways, without a queue.

  loss = 2 τ ( InfoNCE(prediction_1, projection'_2) + InfoNCE(prediction_2, projection'_1) )

where the positive of an image is its own projection and the negatives are those of the other images of the batch; '
is the momentum encoder, τ the temperature, whose factor keeps gradients of one size for all temperatures.

Source: Chen, Xie and He, "An Empirical Study of Training Self-Supervised Vision Transformers" (2021), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import Mesh

from jaxcl.config import Config
from jaxcl.losses import mean_infonce
from jaxcl.methods.base import Method, Objective, Traits
from jaxcl.methods.parts.contrast import contrast_metrics, loss_options
from jaxcl.methods.parts.networks import Pair, make_embed, make_features, make_init, teacher_of

TRAITS = Traits(target=True, predictor=True, negatives=lambda images, _: images - 1)


def make_method(*, networks: Mapping[str, nn.Module], config: Config, mesh: Mesh | None = None) -> Method:
    """MoCo v3 over an encoder, a projection head and a predictor.

    Args:
        networks: encoder, head and predictor by these names.
        config: number of negatives and engine in `loss`.
        mesh: whose `data` axis shares the batch; None: one device.

    Returns:
        The method; its variables are `{"encoder": …, "head": …, "predictor": …}` in each collection.
    """
    loss, chain = config.loss, {name: networks[name] for name in ("encoder", "head", "predictor")}

    def objective(key: Any, embeddings: Pair, ids: Any, labels: Any, *, queue: Any, temperature: Any) -> Objective:
        del labels, queue

        def direction(own: int, key: Any) -> tuple[Any, dict[str, Any]]:
            queries, keys = embeddings.student[:, own], embeddings.teacher[:, 1 - own]
            value, out = mean_infonce(queries, keys, ids, ids, mesh=mesh, **loss_options(loss, temperature, key))
            hardest, top_k = out.stats.hardest[:, None], loss.top_k
            return value, contrast_metrics(queries, keys, hardest, out, top_k=top_k, temperature=temperature)

        values, metrics = zip(*(direction(own, key) for own, key in enumerate(jax.random.split(key))), strict=True)
        metrics = jax.tree.map(lambda a, b: (a + b) / 2, *metrics)
        return Objective(2 * temperature * (values[0] + values[1]), metrics, embeddings.teacher[:, 0], ids)

    embed = make_embed(chain, teacher="target")
    return Method(make_init(chain), embed, objective, make_features(chain), teacher_of)
