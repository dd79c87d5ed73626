"""Position embeddings for another number of patches, resized as the library resizes them that the weights come from."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

# Keys 1981, "Cubic convolution interpolation": PyTorch's plain rule has -0.75, and with antialias that of Pillow, -0.5
PLAIN, ANTIALIASED = -0.75, -0.5


def resize_positions(
    position: Float[np.ndarray, "1 t d"], tokens: int, *, antialias: bool
) -> Float[np.ndarray, "1 n d"]:
    """Position embeddings of a square of patches for another square; the class token's stays.

    Args:
        position: of the class token, then of the patches row by row.
        tokens: how many there are to be, class token included.
        antialias: as timm does; else as Hugging Face does.

    Returns:
        [1, tokens, d]; as given where the number is the same, or one of the two is no square and one.

    >>> resize_positions(np.arange(5.0).reshape(1, 5, 1), 2, antialias=False).ravel().tolist()
    [0.0, 2.5]
    """
    old, new = (math.isqrt(max(count - 1, 0)) for count in (position.shape[1], tokens))
    if old == new or old**2 + 1 != position.shape[1] or new**2 + 1 != tokens:
        return position
    grid = position[0, 1:].reshape(old, old, -1).astype(np.float64)
    weights = cubic_weights(old, new, antialias=antialias)
    resized = np.einsum("hi,wj,ijd->hwd", weights, weights, grid, optimize=True).reshape(1, new**2, -1)
    return np.concatenate([position[:, :1], resized.astype(position.dtype)], axis=1)


def cubic_weights(old: int, new: int, *, antialias: bool) -> Float[np.ndarray, "new old"]:
    """The matrix of bicubic interpolation along one axis; pixel centres lie at halves.

    Without antialiasing four old values count, and those outside repeat the edge; with it the kernel is as much wider
    as the new grid is coarser, and those outside do not count.

    Args:
        old: values that there are.
        new: values that there are to be.
        antialias: which of the two rules.

    Returns:
        Rows that sum to 1.

    >>> cubic_weights(2, 1, antialias=False).tolist()
    [[0.5, 0.5]]
    """
    step = old / new
    centres = (np.arange(new) + 0.5) * step - 0.5
    width = max(step, 1.0) if antialias else 1.0
    reach = math.ceil(2 * width) + 1
    taps = np.floor(centres).astype(int)[:, None] + np.arange(-reach, reach + 1)
    values = _keys(np.abs(taps - centres[:, None]) / width, ANTIALIASED if antialias else PLAIN)
    if antialias:
        values = np.where((taps >= 0) & (taps < old), values, 0.0)
        values /= values.sum(axis=1, keepdims=True)
    weights = np.zeros((new, old))
    np.add.at(weights, (np.arange(new)[:, None], np.clip(taps, 0, old - 1)), values)
    return weights


def _keys(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel at distances ≥ 0."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = a * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
