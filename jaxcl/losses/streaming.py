"""InfoNCE streamed: the numbers of `infonce` without ever holding N × M scores, forward or backward.

By default in strips of anchors: memory is O(N · D) plus one strip of b × (M + K) scores, as for the column blocks of Xu
2026, but every row sees all its columns at once: one exact top-k a row, no running buffer and no merges. The backward
pass keeps the selected column numbers [N, k], their scores where k ≤ D, and a few vectors, and recomputes the rest.
"""

from __future__ import annotations

import contextlib
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxcl.losses.arguments import Problem, check_count, check_problem, check_tail, check_top_k
from jaxcl.losses.engine import stream
from jaxcl.losses.met import Met
from jaxcl.losses.outputs import InfoNCEOutput
from jaxcl.losses.plan import Plan, draws_for, strip_size, transport_for
from jaxcl.losses.pruning import column_blocks, subblocks_for
from jaxcl.losses.varying import axes_of

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
    skip_hardest: float = 0.0,
    queue: ArrayLike | None = None,
    queue_groups: ArrayLike | None = None,
    queue_filled: ArrayLike | None = None,
    exclude_diagonal: bool = False,
    use_key_negatives: bool = True,
    block_size: int | None = None,
    impl: str = "strip",
    axis_name: str | None = None,
    met: Met | None = None,
    met_size: int = 0,
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
        tail: "drop" or "sampled".
        tail_samples: int, at least 1, read with tail="sampled".
        tail_key: random key, read with tail="sampled"; the same on every device.
        skip_hardest: share of the negatives of each query that are left out as its hardest.
        queue: [K, D] negatives without gradient, any float dtype.
        queue_groups: [K] int32.
        queue_filled: valid rows of the queue, the first ones; may be traced.
        exclude_diagonal: query i and key i are the same thing.
        use_key_negatives: False: only the queue is negative.
        block_size: anchors a strip, or columns a block; None: chosen from the sizes.
        impl: "strip": a strip of anchors against all columns, one selection a row. "column": blocks of columns with a
            running selection and pruning, as in the paper; slower, and the same numbers.
        axis_name: inside `jax.shard_map` with check_vma=True: queries, keys and queue are this device's shard, row i of
            device d has number d · N + i, `positive_index` and `queue_filled` count over all devices, and so do
            `rows_tested` and the other scalars of the stats. The mean is psum(Σ loss) / psum(Σ valid), see
            `mean_infonce`. Small problems gather the anchors of all devices, large ones pass the shorter side around a
            ring; no device ever holds more than its share of the queue and one share that travels.
        met: what each query has found among more queue rows that are not here, from `jaxcl.losses.blocks`; it has a
            gradient, with which `pull_block` goes on.
        met_size: how many rows these are.

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
    if impl not in ("strip", "column"):
        raise ValueError(f"impl={impl!r} must be 'strip' or 'column'")
    devices = 1 if axis_name is None else _devices(axis_name, queries=queries, keys=keys, queue=queue)
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
        devices=devices,
        axis=axis_name,
    )
    q = 0 if problem.bank is None else problem.bank.values.shape[0]
    skip = check_top_k(
        top_k,
        keys=devices * problem.keys.shape[0],
        queue=devices * q + met_size,
        use_key_negatives=use_key_negatives,
        exclude_diagonal=exclude_diagonal,
        skip_hardest=skip_hardest,
    )
    samples = check_tail(tail, tail_samples, tail_key, top_k, skip)
    if met is not None:
        _check_met(met, problem.queries.shape[0], top_k, skip_hardest, tail)
    plan = _make_plan(
        problem,
        top_k=None if top_k is None else top_k + skip,
        skip=skip,
        skip_share=float(skip_hardest),
        samples=samples,
        exclude_diagonal=exclude_diagonal,
        use_key_negatives=use_key_negatives,
        same=queries is keys,
        same_groups=query_groups is key_groups,
        devices=devices,
        axis=axis_name,
        impl=impl,
        block=None if block_size is None else check_count("block_size", block_size),
        met_size=met_size,
        met=met is not None,
    )
    return stream(problem, plan, tail_key=tail_key, met=met)


def _check_met(met: Met, rows: int, top_k: int | None, skip_hardest: float, tail: str) -> None:
    """What was met is of these queries, and nothing that is elsewhere need be looked at again."""
    if met.part.values.shape != (rows, top_k or 0):
        raise ValueError(f"met has selected {met.part.values.shape}, must be {(rows, top_k or 0)}: [queries, top_k]")
    if skip_hardest or tail != "drop":
        raise ValueError(f"met works with skip_hardest=0 and tail='drop', got {skip_hardest} and {tail!r}")


def _make_plan(
    problem: Problem,
    *,
    top_k: int | None,
    samples: int,
    use_key_negatives: bool,
    devices: int,
    axis: str | None,
    impl: str,
    block: int | None,
    met_size: int,
    **flags: Any,
) -> Plan:
    """The static choices: what was asked for, and what follows from the sizes."""
    (rows, dimensions), m = problem.queries.shape, problem.keys.shape[0]
    q, queue_bytes = 0, 0
    if problem.bank is not None:
        q, queue_bytes = problem.bank.values.shape[0], problem.bank.values.dtype.itemsize
    columns = devices * (m * use_key_negatives + q) + met_size
    strip = strip_size(rows, m + q, dimensions, block if impl == "strip" else None)
    blocks: dict[str, Any] = {"strip": strip, "tile": strip}
    if impl == "strip" and top_k is not None:
        blocks["sub"] = subblocks_for(m * use_key_negatives + q, top_k)
    if impl == "column":
        blocks = column_blocks(
            rows=rows, strip=strip, keys=m * use_key_negatives, queue=q, top_k=top_k, block_size=block
        )._asdict()
    transport = None
    if axis is not None:
        selected = (top_k or 0) + samples
        sizes = dict(rows=rows, keys=m, queue=q, dimensions=dimensions, queue_bytes=queue_bytes)
        transport = transport_for(devices=devices, selected=selected, **sizes)
    return Plan(
        rows=rows,
        top_k=top_k,
        samples=samples,
        draws=draws_for(samples, top_k, columns) if samples and top_k else 0,
        use_key_negatives=use_key_negatives,
        single=problem.partner is not None,
        dimensions=dimensions,
        columns=columns,
        devices=devices,
        axis=axis,
        transport=transport,
        impl=impl,
        **flags,
        **blocks,
    )


def _devices(axis_name: str, **arrays: Any) -> int:
    """How many devices share the rows, where `axis_name` is an axis of `jax.shard_map` and the arrays vary over it."""
    try:
        devices = int(lax.axis_size(axis_name))
    except NameError as error:
        raise ValueError(f"axis_name={axis_name!r} is not an axis of an enclosing jax.shard_map") from error
    for name, array in arrays.items():
        if array is not None and axis_name not in axes_of(jnp.asarray(array)):
            raise ValueError(
                f"{name} does not vary over axis_name={axis_name!r}: "
                "shard it over that axis, in jax.shard_map with check_vma=True"
            )
    return devices
