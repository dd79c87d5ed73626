"""Frozen features of many images: fixed-size chunks through one compiled function, every image exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float


def extract(
    apply: Callable[[jax.Array], jax.Array],
    images: np.ndarray | Iterable[np.ndarray],
    *,
    batch: int,
    mesh: Mesh | None = None,
) -> Float[np.ndarray, "n features"]:
    """Features of every image, in order.

    Give `apply` as a partial of one jitted function, so that the trained and the random encoder share a compilation
    and the variables are only read:
    `extract(functools.partial(encode, variables), images, batch=512)` with `encode = jax.jit(...)`.

    Args:
        apply: pure and already jitted, uint8 [b, H, W, C] to [b, F] of any float dtype; always called with the same b.
        images: uint8 [n, H, W, C], or pieces [m, H, W, C] of any lengths m.
        batch: images in one call, over all devices; rounded up to a multiple of the devices along `data`.
        mesh: its `data` axis shares each chunk; None: the default device.

    Returns:
        Features [n, F] in float32 on the host.

    Raises:
        ValueError: if there is no image, or batch is below 1.

    >>> double = jax.jit(lambda images: images.reshape(len(images), -1) * 2.0)
    >>> extract(double, np.ones((3, 1, 2, 1), np.uint8), batch=2).tolist()
    [[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]]
    """
    if batch < 1:
        raise ValueError(f"batch is {batch}; it must be at least 1")
    shards = 1 if mesh is None else mesh.shape["data"]
    sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec("data"))
    size = -(-batch // shards) * shards
    pieces: list[np.ndarray] = []
    running: tuple[jax.Array, int] | None = None
    for chunk in _chunks(images, size):
        padding = [(0, size - len(chunk))] + [(0, 0)] * (chunk.ndim - 1)
        started = apply(jax.device_put(np.pad(chunk, padding), sharding)), len(chunk)
        if running:  # copied back only now, so that the device already has the next chunk
            pieces.append(_to_host(*running))
        running = started
    if not running:
        raise ValueError("images is empty; there is nothing to extract features from")
    return np.concatenate([*pieces, _to_host(*running)])


def unit_rows(features: Float[Array, "n features"]) -> Float[Array, "n features"]:
    """Each row divided by its Euclidean norm, in float32; a zero row stays zero.

    Args:
        features: [n, F], finite.

    Returns:
        [n, F] in float32.

    >>> unit_rows(jnp.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    features = features.astype(jnp.float32)
    largest = jnp.max(jnp.abs(features), axis=1, keepdims=True)
    scaled = features / jnp.where(largest > 0, largest, 1.0)  # squares of 1e20 would overflow
    norm = jnp.sqrt(jnp.sum(scaled**2, axis=1, keepdims=True))
    return scaled / jnp.where(norm > 0, norm, 1.0)


def _chunks(images: np.ndarray | Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Yield runs of exactly `size` images; the last one may be shorter."""
    waiting: list[np.ndarray] = []
    for piece in [images] if isinstance(images, np.ndarray) else images:
        position = 0
        while position < len(piece):
            taken = piece[position : position + size - sum(map(len, waiting))]
            waiting.append(taken)
            position += len(taken)
            if sum(map(len, waiting)) == size:
                yield np.concatenate(waiting)
                waiting = []
    if waiting:
        yield np.concatenate(waiting)


def _to_host(features: jax.Array, count: int) -> np.ndarray:
    """Copy the first `count` rows to the host as float32."""
    return np.asarray(features)[:count].astype(np.float32)
