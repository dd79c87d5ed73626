"""Attention whose backward pass needs its probabilities once, in the compute dtype, and no other array of their size.

`jax.nn.dot_product_attention` leaves them to the backward pass twice, in float32 and in the compute dtype.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float

PROBABILITIES = "probabilities"  # their name for policies of `jax.checkpoint`


@jax.custom_vjp
def attend(
    query: Float[Array, "n t h f"],
    key: Float[Array, "n s h f"],
    value: Float[Array, "n s h f"],
    mask: Bool[Array, "n 1 #t s"] | None = None,
) -> Float[Array, "n t h f"]:
    """Each query's mean of the values, weighted by the softmax of its products with the keys.

      out = P value,  P = softmax(query keyᵀ / √f)

    Products are summed, and the softmax is taken, in float32; P is rounded to the dtype of the arguments.

    Args:
        query: of n sequences of t tokens, in h heads of f numbers.
        key: like it, of s tokens.
        value: like the keys.
        mask: False where a query does not see a key; None: all see all.

    Returns:
        In the dtype of the arguments.

    >>> attend(*jnp.ones((3, 2, 5, 4, 8))).shape
    (2, 5, 4, 8)
    """
    return _forward(query, key, value, mask)[0]


def _forward(query: Array, key: Array, value: Array, mask: Array | None) -> tuple[Array, Any]:
    """The result, and what the backward pass needs."""
    scores = _product("nthf,nshf->nhts", query, key) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = jnp.where(mask, scores, 0.7 * jnp.finfo(scores.dtype).min)  # finite: a row may see nothing
    probabilities = checkpoint_name(jax.nn.softmax(scores).astype(query.dtype), PROBABILITIES)
    return jnp.einsum("nhts,nshf->nthf", probabilities, value), (query, key, value, mask, probabilities)


def _backward(residuals: Any, g: Array) -> tuple[Array, Array, Array, None]:
    """DS = P ∘ (dP − rowsum(dP ∘ P)), dP = g valueᵀ, as of any softmax."""
    query, key, value, mask, probabilities = residuals
    change, p = _product("nthf,nshf->nhts", g, value), probabilities.astype(jnp.float32)
    change = p * (change - jnp.sum(change * p, axis=-1, keepdims=True)) / math.sqrt(query.shape[-1])
    if mask is not None:  # of a row that sees nothing, P is no zero
        change = jnp.where(mask, change, 0.0)
    change = change.astype(query.dtype)
    return (
        jnp.einsum("nhts,nshf->nthf", change, key),
        jnp.einsum("nhts,nthf->nshf", change, query),
        jnp.einsum("nhts,nthf->nshf", probabilities, g),
        None,
    )


def _product(axes: str, x: Array, y: Array) -> Array:
    """A product summed, and left, in float32."""
    return jnp.einsum(axes, x, y, preferred_element_type=jnp.float32)


attend.defvjp(_forward, _backward)
