"""Retrieval of the second view of the same image, in chunks of first views."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcl.probes.features import unit_rows

# Elements of the cosine matrix of one chunk: 64 MiB in float32.
CHUNK_ELEMENTS = 2**24
# Cosines closer than this are a tie: equal rows may differ by rounding in a matrix product.
TIE = 1e-6


def view_retrieval_top1(
    first: Float[np.ndarray, "n features"], second: Float[np.ndarray, "n features"], *, chunk: int | None = None
) -> float:
    """Share of images whose second view is the most similar of all second views to their first view.

    Ties count against, so a collapsed representation scores 0, not 1/n by luck. Chance is 1/n.

    Args:
        first: [n, F], features of one view of each image.
        second: [n, F], features of another view of the same images, in the same order.
        chunk: first views compared at once; None: as many as fit in 64 MiB of cosines.

    Returns:
        Accuracy in [0, 1].

    >>> view_retrieval_top1(np.eye(3, dtype=np.float32), 2 * np.eye(3, dtype=np.float32))
    1.0
    """
    count = len(first)
    chunk = min(count, chunk or max(1, CHUNK_ELEMENTS // count))
    candidates = unit_rows(jnp.asarray(second))
    anchors, partners = np.pad(first, [(0, -count % chunk), (0, 0)]), np.arange(count + -count % chunk) % count
    hits = [
        _hits(anchors[start : start + chunk], partners[start : start + chunk], candidates)
        for start in range(0, count, chunk)
    ]
    return float(np.mean(np.concatenate([np.asarray(piece) for piece in hits])[:count]))


@jax.jit
def _hits(
    anchors: Float[Array, "b features"], partners: Int[Array, " b"], candidates: Float[Array, "n features"]
) -> Array:
    """Say for one chunk of anchors whether the partner beats every other candidate."""
    cosines = jnp.einsum("bf,nf->bn", unit_rows(anchors), candidates, precision=jax.lax.Precision.HIGHEST)
    own = jnp.take_along_axis(cosines, partners[:, None], axis=1)
    others = jnp.where(jnp.arange(cosines.shape[1]) == partners[:, None], -jnp.inf, cosines)
    return own[:, 0] > jnp.max(others, axis=1) + TIE
