"""InfoNCE in strips of anchors: the numbers of `infonce` without ever holding N × M scores, forward or backward.

Memory is O(N · D) plus one strip of b × (M + K) scores, as for the column blocks of Xu 2026, but every row sees all its
columns at once: one exact top-k a row, no running buffer and no merges. The backward pass keeps the selected column
numbers [N, k] and a few vectors, and recomputes the rest.
"""

from __future__ import annotations

import contextlib

from jaxcl.losses.arguments import check_count, check_problem, check_tail, check_top_k
from jaxcl.losses.outputs import InfoNCEOutput, without_gradient
from jaxcl.losses.plan import Plan, strip_size
from jaxcl.losses.strip import strip_infonce

with contextlib.suppress(ImportError):
    from jaxtyping import Array, ArrayLike


# Arguments are ArrayLike so that a wrong rank or dtype is the ValueError below, with or without a type checker.
def streaming_infonce(
    queries: ArrayLike,
    keys: ArrayLike,
    query_groups: ArrayLike,
    key_groups: ArrayLike,
    *,
    temperature: ArrayLike,
    positive_index: ArrayLike | None = None,
    top_k: int | None = None,
    tail: str = "drop",
    tail_samples: int | None = None,
    tail_key: Array | None = None,
    queue: ArrayLike | None = None,
    queue_groups: ArrayLike | None = None,
    queue_filled: ArrayLike | None = None,
    exclude_diagonal: bool = False,
    use_key_negatives: bool = True,
    block_size: int | None = None,
    impl: str = "strip",
    axis_name: str | None = None,
) -> InfoNCEOutput:
    """`infonce`, value and gradient, in memory that grows linearly with the batch.

    Pass the same array as queries and keys where they are the same: one gradient accumulator then serves both.

    Args:
        queries: [N, D], any float dtype; L2-normalised here, in float32. This and what follows as in `infonce`.
        keys: [M, D].
        query_groups: [N] int32.
        key_groups: [M] int32.
        temperature: scalar above 0, may be traced and learned.
        positive_index: [N] int32, key number of the only positive of each query.
        top_k: the k most similar negatives of each query; None: all of them.
        tail: "drop": negatives outside the top k do not count.
        tail_samples: int, read with tail="sampled".
        tail_key: random key, read with tail="sampled".
        queue: [K, D] negatives without gradient, any float dtype.
        queue_groups: [K] int32.
        queue_filled: valid rows of the queue, the first ones; may be traced.
        exclude_diagonal: query i and key i are the same thing.
        use_key_negatives: False: only the queue is negative.
        block_size: anchors a strip; None: chosen from the sizes.
        impl: "strip".
        axis_name: not available in this version: one device, or jit with sharded inputs.

    Returns:
        Loss, validity and stats of each query.

    Raises:
        ValueError: an argument that does not fit, with its value and what is allowed.

    Example:
        >>> import jax.numpy as jnp
        >>> out = streaming_infonce(jnp.eye(4), jnp.eye(4), jnp.arange(4), jnp.arange(4), temperature=0.1, top_k=2)
        >>> out.loss.shape
        (4,)
    """
    _check_engine(impl, axis_name)
    same = queries is keys
    problem = check_problem(
        queries,
        keys,
        query_groups,
        key_groups,
        temperature=temperature,
        positive_index=positive_index,
        queue=queue,
        queue_groups=queue_groups,
        queue_filled=queue_filled,
        exclude_diagonal=exclude_diagonal,
    )
    rows, m = problem.queries.shape[0], problem.keys.shape[0]
    q = 0 if problem.bank is None else problem.bank.values.shape[0]
    check_top_k(top_k, keys=m, queue=q, use_key_negatives=use_key_negatives, exclude_diagonal=exclude_diagonal)
    check_tail(tail, tail_samples, tail_key, top_k)
    strip = strip_size(rows, m + q, None if block_size is None else check_count("block_size", block_size))
    single = positive_index is not None
    plan = Plan(rows, strip, top_k, exclude_diagonal, use_key_negatives, same, single)
    loss, valid, stats = strip_infonce(problem, plan)
    return InfoNCEOutput(loss, valid, without_gradient(stats))


def _check_engine(impl: str, axis_name: str | None) -> None:
    """ValueError for an engine that is not known, NotImplementedError for one that is not there yet."""
    if impl not in ("strip", "column"):
        raise ValueError(f"impl={impl!r} must be 'strip' or 'column'")
    if impl == "column":
        raise NotImplementedError("impl='column' is not available in this version")
    if axis_name is not None:
        raise NotImplementedError(f"axis_name={axis_name!r} is not available in this version")
