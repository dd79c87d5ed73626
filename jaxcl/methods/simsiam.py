"""SimSiam: a predictor says of one view what the same network says of the other, without gradient to the latter.

  loss = 2 − cos(prediction_1, projection_2) − cos(prediction_2, projection_1), mean over images

The paper's loss is −½ of both cosines: the same up to a factor 2 and a constant. The stopped gradient keeps it from
collapse; there are neither negatives nor a momentum encoder.

Source: Chen and He, "Exploring Simple Siamese Representation Learning" (2020), equation 4.
"""

from __future__ import annotations

from collections.abc import Mapping

import flax.linen as nn
from jax.sharding import Mesh

from jaxcl.config import Config
from jaxcl.methods.base import Method, Traits
from jaxcl.methods.parts.agreement import make_agreement

TRAITS = Traits(predictor=True)


def make_method(*, networks: Mapping[str, nn.Module], config: Config, mesh: Mesh | None = None) -> Method:
    """SimSiam over an encoder, a projection head and a predictor.

    Args:
        networks: encoder, head and predictor by these names.
        config: not read.
        mesh: not needed, each image is a problem of its own.

    Returns:
        The method; its variables are `{"encoder": …, "head": …, "predictor": …}` in each collection.
    """
    del config, mesh
    return make_agreement(networks, teacher="self")
