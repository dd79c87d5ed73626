"""A small encoder for images of 28 to 64 pixels that two CPU cores can train in minutes.

Three convolutions, four times fewer pixels after the first. Its shapes follow what XLA's CPU code does fast: the
gradient of a kernel is the dear part (three times the forward pass), and it is cheap where windows overlap little
or channels are few. Features keep a 2x2 grid; averaged over the whole image they were worse than raw pixels.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32

from jaxcl.models.convolve import convolve_in_loops
from jaxcl.models.norms import make_norm

LAYERS = ((32, 4, 4), (32, 3, 1), (128, 2, 2))  # channels, kernel side, stride
GRID = 2  # cells a side of the pooled features
GROUPS = 8  # of a group norm: 4 channels or more each


class ConvEncoder(nn.Module):
    """Images to 512 features: 4x4/4 to 32 channels, 3x3 to 32, 2x2/2 to 128, averaged over a 2x2 grid.

    Attributes:
        norm: "batch" or "group".
        norm_momentum: share of the running batch statistics kept at each step.
        dtype: compute dtype; parameters, statistics and features are float32.
        looped: whether it is trained within a loop on a CPU, as in `jaxcl.models.convolve`.
    """

    norm: str = "batch"
    norm_momentum: float = 0.9
    dtype: Any = jnp.float32
    looped: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "n h w c"], train: bool = False) -> Float32[Array, "n f"]:
        """Encode normalised images of any size; `train` selects batch statistics."""
        norm = make_norm(self.norm, momentum=self.norm_momentum, dtype=self.dtype, groups=GROUPS)
        for number, (features, size, stride) in enumerate(LAYERS, 1):
            x = nn.Conv(
                features,
                (size, size),
                strides=stride,
                padding="SAME",
                use_bias=False,
                kernel_init=nn.initializers.he_normal(),
                dtype=self.dtype,
                conv_general_dilated=convolve_in_loops if self.looped else None,
                name=f"conv{number}",
            )(x)
            x = nn.relu(norm(name=f"norm{number}")(x, train))
        return grid_mean(x.astype(jnp.float32), GRID).reshape(x.shape[0], -1)


def grid_mean(x: Float[Array, "n h w c"], cells: int) -> Float[Array, "n g g c"]:
    """Mean over each cell of a grid laid over the image; cells share a row where they do not divide it.

    Args:
        x: activations.
        cells: a side.

    Returns:
        Means [n, cells, cells, c].

    >>> grid_mean(jnp.arange(9.0).reshape(1, 3, 3, 1), 2).ravel()
    Array([2., 3., 5., 6.], dtype=float32)
    """
    rows, columns = (_cell_weights(size, cells) for size in x.shape[1:3])
    return jnp.einsum("nhwc,gh,kw->ngkc", x, rows, columns)


def _cell_weights(size: int, cells: int) -> np.ndarray:
    """Row g averages pixels floor(g·size/cells) up to ceil((g + 1)·size/cells)."""
    weights = np.zeros((cells, size), np.float32)
    for cell in range(cells):
        start, stop = cell * size // cells, -(-(cell + 1) * size // cells)
        weights[cell, start:stop] = 1 / (stop - start)
    return weights
