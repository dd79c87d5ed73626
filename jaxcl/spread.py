"""How embeddings lie on their sphere: numbers that show a collapse before an accuracy does."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp

from jaxcl.losses import normalise

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Float

PAIRED = 256  # embeddings compared with each other: their pairs are 32,640
LOOKED_AT = 8192  # of a large batch the first, 16 MiB at 512 dimensions: the covariance needs a normalised copy


def spread(embeddings: Float[Array, "b d"]) -> dict[str, Float[Array, ""]]:
    """Standard deviation, effective rank and uniformity of normalised embeddings, without gradient.

      feature_spread  = √d · mean over dimensions of the standard deviation: 1 where directions are spread evenly, 0
                        where all embeddings are one
      effective_rank  = (Σ λ)² / Σ λ² of the eigenvalues λ of their covariance: the dimensions in use, from 1 to
                        min(b − 1, d)
      uniformity      = log mean over pairs of exp(−2 |z_i − z_j|²): from −4 + O(1/d) where spread evenly to 0

    Args:
        embeddings: [B, D], any float dtype; of different images. Fewer than 2 have no spread; of more than 8,192 the
            first are looked at.

    Returns:
        Scalars by name, float32.

    Source: Chen and He 2020, figure 2; Wang and Isola, "Understanding Contrastive Representation Learning through
    Alignment and Uniformity" (2020), equation 2; participation ratio after Gao et al. 2017.

    >>> round(float(spread(jnp.concatenate([jnp.eye(3), -jnp.eye(3)]))["effective_rank"]), 3)
    3.0
    """
    rows = normalise(jax.lax.stop_gradient(embeddings[:LOOKED_AT]).astype(jnp.float32))
    count, dimensions = rows.shape
    centred = rows - jnp.mean(rows, axis=0)
    deviation = jnp.sqrt(jnp.mean(centred**2, axis=0))
    covariance = centred.T @ centred / count
    # of equal embeddings rounding leaves some 1e-14, whose ratio would be any number
    trace = jnp.where(jnp.trace(covariance) > 1e-9, jnp.trace(covariance), 0.0)
    some = rows[:PAIRED]
    pairs = some.shape[0] * (some.shape[0] - 1) / 2
    near = jnp.triu(jnp.exp(-4 + 4 * jnp.clip(some @ some.T, -1, 1)), k=1)
    return dict(
        feature_spread=dimensions**0.5 * jnp.mean(deviation),
        effective_rank=trace**2 / jnp.maximum(jnp.sum(covariance**2), 1e-30),
        uniformity=jnp.log(jnp.sum(near) / pairs) if pairs else jnp.zeros(()),
    )
