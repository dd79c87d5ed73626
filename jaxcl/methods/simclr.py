"""SimCLR: the two views of an image attract each other, all other images of the batch and the queue repel.

  loss = mean over the 2B views of −s(i, partner) + log( e^{s(i, partner)} + Σ_{n ∈ T(i)} e^{s(i, n)} )

with s = cosine / temperature and T(i) the `loss.top_k` hardest negatives of view i, or all of them.

Source: Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations" (2020), equation 1; hardest
negatives after Xu, "Memory-Efficient Contrastive Learning via Budgeted Hard Negative Selection" (2026).
"""

from __future__ import annotations

from collections.abc import Mapping

import flax.linen as nn
from jax.sharding import Mesh

from jaxcl.config import Config
from jaxcl.methods.base import Method, Traits
from jaxcl.methods.parts.contrast import make_contrast

TRAITS = Traits(queue=True, negatives=lambda images, queue: 2 * images - 2 + queue)


def make_method(*, networks: Mapping[str, nn.Module], config: Config, mesh: Mesh | None = None) -> Method:
    """SimCLR over an encoder and a projection head.

    Args:
        networks: encoder and head by these names.
        config: number of negatives and engine in `loss`.
        mesh: whose `data` axis shares batch and queue; None: one device.

    Returns:
        The method; its variables are `{"encoder": …, "head": …}` in each collection.
    """
    return make_contrast(networks, groups_of=lambda ids, _: ids, loss=config.loss, mesh=mesh)
