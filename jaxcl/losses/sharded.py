"""The one place where a training step meets a loss: the mean over valid rows, on one device or many."""

from __future__ import annotations

import contextlib
from typing import Any

import jax.numpy as jnp

from jaxcl.losses.infonce import infonce
from jaxcl.losses.outputs import InfoNCEOutput
from jaxcl.losses.streaming import streaming_infonce

with contextlib.suppress(ImportError):
    from jaxtyping import Array, ArrayLike, Float


def mean_infonce(
    queries: ArrayLike,
    keys: ArrayLike,
    query_groups: ArrayLike,
    key_groups: ArrayLike,
    *,
    impl: str = "strip",
    **settings: Any,
) -> tuple[Float[Array, ""], InfoNCEOutput]:
    """Mean loss of the queries that have a positive: Σ loss / max(Σ valid, 1).

    Under jit with inputs sharded over a mesh the sums run over all devices, so the mean is that of one device.

    Args:
        queries: [N, D], any float dtype.
        keys: [M, D]; the same array as queries where they are the same.
        query_groups: [N] int32.
        key_groups: [M] int32.
        impl: "dense": `infonce`; otherwise `streaming_infonce`, which reads it.
        **settings: the keyword arguments of `infonce` or `streaming_infonce`; "dense" has no block to size and ignores
            `block_size`.

    Returns:
        The scalar mean, and loss, validity and stats of each query.

    Raises:
        ValueError: an argument that does not fit, with its value and what is allowed.

    Example:
        >>> loss, out = mean_infonce(jnp.eye(4), jnp.eye(4), jnp.arange(4), jnp.arange(4), temperature=0.1)
        >>> loss.shape
        ()
    """
    if impl == "dense":
        settings.pop("block_size", None)
        out = infonce(queries, keys, query_groups, key_groups, **settings)
    else:
        out = streaming_infonce(queries, keys, query_groups, key_groups, impl=impl, **settings)
    return jnp.sum(out.loss) / jnp.maximum(jnp.sum(out.valid), 1), out
