"""Weighted k-nearest-neighbour classification of frozen features (Wu et al. 2018), in chunks of test rows."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcl.config import ConfigError
from jaxcl.probes.features import unit_rows

# Elements of the cosine matrix of one chunk: 64 MiB in float32.
CHUNK_ELEMENTS = 2**24


def knn_predict(
    train_features: Float[np.ndarray, "n features"],
    train_labels: Int[np.ndarray, " n"],
    test_features: Float[np.ndarray, "m features"],
    *,
    k: int,
    temperature: float,
    chunk: int | None = None,
) -> Int[np.ndarray, " m"]:
    """Class of each test row, voted by the k most similar training rows.

    A neighbour votes for its class with exp(cos / temperature). Ties go to the lower training row, then to the
    lower class.

    Args:
        train_features: [n, F].
        train_labels: [n], classes from 0.
        test_features: [m, F].
        k: neighbours that vote; clipped to n.
        temperature: above 0.
        chunk: test rows compared at once; None: as many as fit in 64 MiB of cosines.

    Returns:
        [m] int32.

    Raises:
        ConfigError: if k or temperature cannot work.

    >>> train, labels = np.eye(2, dtype=np.float32), np.array([7, 3], np.int32)
    >>> knn_predict(train, labels, train, k=1, temperature=0.1).tolist()
    [7, 3]

    Source: Wu et al., "Unsupervised feature learning via non-parametric instance discrimination", CVPR 2018.
    """
    if k < 1:
        raise ConfigError(f"eval.knn_k is {k}; it must be at least 1")
    if not temperature > 0:
        raise ConfigError(f"eval.knn_temperature is {temperature}; it must be above 0")
    count = len(test_features)
    chunk = min(count, chunk or max(1, CHUNK_ELEMENTS // len(train_features)))
    vote = functools.partial(_vote, k=min(k, len(train_features)), classes=int(train_labels.max()) + 1)
    train, labels = unit_rows(jnp.asarray(train_features)), jnp.asarray(train_labels)
    test = np.pad(test_features, [(0, -count % chunk), (0, 0)])
    found = [vote(test[start : start + chunk], train, labels, temperature) for start in range(0, count, chunk)]
    return np.concatenate([np.asarray(piece) for piece in found])[:count]


def knn_top1(
    train_features: Float[np.ndarray, "n features"],
    train_labels: Int[np.ndarray, " n"],
    test_features: Float[np.ndarray, "m features"],
    test_labels: Int[np.ndarray, " m"],
    *,
    k: int,
    temperature: float,
) -> float:
    """Share of test rows whose class the neighbours vote for.

    Args:
        train_features: [n, F].
        train_labels: [n], classes from 0.
        test_features: [m, F].
        test_labels: [m], classes from 0.
        k: neighbours that vote; clipped to n.
        temperature: above 0; a vote weighs exp(cos / temperature).

    Returns:
        Accuracy in [0, 1].

    >>> rows, labels = np.eye(2, dtype=np.float32), np.array([1, 0], np.int32)
    >>> knn_top1(rows, labels, rows, labels, k=1, temperature=0.1)
    1.0
    """
    predicted = knn_predict(train_features, train_labels, test_features, k=k, temperature=temperature)
    return float(np.mean(predicted == test_labels))


@functools.partial(jax.jit, static_argnames=("k", "classes"))
def _vote(
    test: Float[Array, "b features"],
    train: Float[Array, "n features"],
    labels: Int[Array, " n"],
    temperature: Float[Array, ""],
    *,
    k: int,
    classes: int,
) -> Int[Array, " b"]:
    """Predict one chunk."""
    cosines = jnp.einsum("bf,nf->bn", unit_rows(test), train, precision=jax.lax.Precision.HIGHEST)
    nearest, rows = jax.lax.top_k(cosines, k)
    # Relative to the nearest neighbour: the same winner, and no overflow at a small temperature.
    weights = jnp.exp((nearest - jnp.max(nearest, axis=1, keepdims=True)) / temperature)

    def add(votes: jax.Array, neighbour: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        """Add the votes of every test row's next neighbour."""
        weight, label = neighbour
        return votes + jnp.where(label[:, None] == jnp.arange(classes), weight[:, None], 0.0), None

    # One neighbour after the other: a one-hot array would be b x k x classes, a scatter has no fixed order on GPUs.
    votes, _ = jax.lax.scan(add, jnp.zeros((len(test), classes)), (weights.T, labels[rows].T))
    return jnp.argmax(votes, axis=1).astype(jnp.int32)
