"""SupCon: all images of a label attract each other; an image without a label attracts its own other view alone.

  loss = mean over the 2B views of −(1/|P(i)|) Σ_{p ∈ P(i)} log( e^{s(i, p)} / (Σ_{a ∈ P(i) ∪ T(i)} e^{s(i, a)}) )

the form with the sum outside of the logarithm, which the paper finds better than the one with the sum inside. P(i) are
the other views of the same label, T(i) the `loss.top_k` hardest of the rest of batch and queue, or all of it.

Source: Khosla et al., "Supervised Contrastive Learning" (2020), equation 2.
"""

from __future__ import annotations

from collections.abc import Mapping

import flax.linen as nn
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Int

from jaxcl.config import Config
from jaxcl.methods.base import Method, Traits
from jaxcl.methods.parts.contrast import make_contrast

TRAITS = Traits(queue=True, labels=True, negatives=lambda images, queue: 2 * images - 2 + queue)
UNLABELLED = 1 << 30  # the group of image i without a label is this and i: labels are smaller numbers


def make_method(*, networks: Mapping[str, nn.Module], config: Config, mesh: Mesh | None = None) -> Method:
    """SupCon over an encoder and a projection head.

    Args:
        networks: encoder and head by these names.
        config: number of negatives and engine in `loss`.
        mesh: whose `data` axis shares batch and queue; None: one device.

    Returns:
        The method; its variables are `{"encoder": …, "head": …}` in each collection.
    """
    return make_contrast(networks, groups_of=groups_of, loss=config.loss, mesh=mesh)


def groups_of(ids: Int[Array, " b"], labels: Int[Array, " b"]) -> Int[Array, " b"]:
    """Who belongs together: images of a label, and each image without one alone.

    >>> groups_of(jnp.array([7, 8, 9]), jnp.array([2, -1, 2])).tolist() == [2, UNLABELLED + 8, 2]
    True
    """
    return jnp.where(labels >= 0, labels, UNLABELLED + ids % UNLABELLED)
