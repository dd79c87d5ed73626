"""What distinguishes transformers of the same shape from one another, by name: ours, and those of published weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
from jaxtyping import Array, Float


class Flavour(NamedTuple):
    """How a transformer differs from the one without a name of its own.

    Attributes:
        epsilon: added to the variance in layer norms.
        quick_gelu: x · sigmoid(1.702 x) in the MLPs, not the exact GELU.
        post_norm: norms after the sums of a layer, and none after the last.
        norm_in: a norm before the first layer.
        layer_scale: a factor for each channel of what a layer adds (Touvron et al. 2021).
        patch_bias: patches are projected with a bias.
        causal: no token sees a later one, and the feature is the end token; else the mean.
    """

    epsilon: float = 1e-6
    quick_gelu: bool = False
    post_norm: bool = False
    norm_in: bool = False
    layer_scale: bool = False
    patch_bias: bool = True
    causal: bool = False


FLAVOURS = {
    "plain": Flavour(),
    "hf": Flavour(epsilon=1e-12),
    "clip": Flavour(epsilon=1e-5, quick_gelu=True, norm_in=True, patch_bias=False),
    "dinov2": Flavour(layer_scale=True),
    "clip_text": Flavour(epsilon=1e-5, quick_gelu=True, causal=True),
    "bert": Flavour(epsilon=1e-12, post_norm=True, norm_in=True),
}


def activation_of(flavour: Flavour) -> Callable[[Float[Array, "*n"]], Float[Array, "*n"]]:
    """The activation of the MLPs.

    Args:
        flavour: of the transformer.

    Returns:
        A function of any shape.

    >>> activation_of(FLAVOURS["clip"])(jnp.zeros(2)).tolist()
    [0.0, 0.0]
    """
    if flavour.quick_gelu:
        return lambda x: x * jax.nn.sigmoid(1.702 * x)
    return lambda x: nn.gelu(x, approximate=False)
