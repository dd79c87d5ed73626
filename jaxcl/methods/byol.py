"""BYOL: a predictor says of one view what a momentum encoder says of the other; there are no negatives.

  loss = 2 − cos(prediction_1, projection'_2) − cos(prediction_2, projection'_1), mean over images; ' is the momentum
  encoder, ξ ← decay · ξ + (1 − decay) · θ after each real update

Half of the paper's sum of squared distances of unit vectors, 2 − 2 cos a direction. What keeps it from collapse is the
predictor together with the moving target, and batch norm in head and predictor helps.

Source: Grill et al., "Bootstrap Your Own Latent" (2020), equation 2.
"""

from __future__ import annotations

from collections.abc import Mapping

import flax.linen as nn
from jax.sharding import Mesh

from jaxcl.config import Config
from jaxcl.methods.base import Method, Traits
from jaxcl.methods.parts.agreement import make_agreement
from jaxcl.methods.parts.networks import teacher_of

TRAITS = Traits(target=True, predictor=True)


def make_method(*, networks: Mapping[str, nn.Module], config: Config, mesh: Mesh | None = None) -> Method:
    """BYOL over an encoder, a projection head and a predictor.

    Args:
        networks: encoder, head and predictor by these names.
        config: not read.
        mesh: not needed, each image is a problem of its own.

    Returns:
        The method; its variables are `{"encoder": …, "head": …, "predictor": …}` in each collection.
    """
    del config, mesh
    return make_agreement(networks, teacher="target", target=teacher_of)
