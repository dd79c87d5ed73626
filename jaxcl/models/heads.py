"""The projection head between the encoder's features and the embeddings of the loss (Chen et al. 2020)."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from jaxcl.models.norms import Norm


class ProjectionHead(nn.Module):
    """Linear layers with norm and ReLU between them; the last one is bare unless `norm_out` says otherwise.

    SimCLR: https://arxiv.org/abs/2002.05709.

    Attributes:
        layers: linear layers, 1 to 3.
        hidden: width of all but the last.
        dim: dimensions of an embedding.
        norm: batch norm after the hidden layers.
        norm_out: batch norm after the last layer.
        norm_momentum: share of the running batch statistics kept at each step.
        dtype: compute dtype; parameters, statistics and embeddings are float32.
    """

    layers: int = 2
    hidden: int = 512
    dim: int = 128
    norm: bool = True
    norm_out: bool = False
    norm_momentum: float = 0.9
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "n f"], train: bool = False) -> Float32[Array, "n d"]:
        """Project features to embeddings; `train` selects batch statistics.

        >>> import jax
        >>> head = ProjectionHead(hidden=8, dim=4)
        >>> head.init_with_output(jax.random.key(0), jnp.ones((3, 5)))[0].shape
        (3, 4)
        """
        for number in range(1, self.layers):
            # The norm's bias does the work of the layer's own.
            x = nn.Dense(self.hidden, use_bias=not self.norm, dtype=self.dtype, name=f"dense{number}")(x)
            if self.norm:
                x = Norm("batch", self.norm_momentum, self.dtype, name=f"norm{number}")(x, train)
            x = nn.relu(x)
        x = nn.Dense(self.dim, use_bias=not self.norm_out, dtype=self.dtype, name=f"dense{self.layers}")(x)
        if self.norm_out:
            x = Norm("batch", self.norm_momentum, self.dtype, name=f"norm{self.layers}")(x, train)
        return x.astype(jnp.float32)
