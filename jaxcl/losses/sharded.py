"""The one place where a training step meets a loss: the mean over valid rows, on one device or many."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, reshard

from jaxcl.losses.infonce import infonce
from jaxcl.losses.met import Met
from jaxcl.losses.outputs import PER_ROW, InfoNCEOutput, Stats
from jaxcl.losses.streaming import streaming_infonce

with contextlib.suppress(ImportError):
    from jaxtyping import Array, ArrayLike, Float

# arguments with a row for each query, key or queue row; the others are the same on every device
_SHARDED = {"positive_index", "queue", "queue_groups"}
_ARRAYS = {*_SHARDED, "temperature", "queue_filled", "tail_key", "met"}


def mean_infonce(
    queries: ArrayLike,
    keys: ArrayLike,
    query_groups: ArrayLike,
    key_groups: ArrayLike,
    *,
    impl: str = "strip",
    mesh: Mesh | None = None,
    axis_name: str = "data",
    **settings: Any,
) -> tuple[Float[Array, ""], InfoNCEOutput]:
    """Mean loss of the queries that have a positive: Σ loss / max(Σ valid, 1), over all devices.

    Args:
        queries: [N, D], any float dtype.
        keys: [M, D]; the same array as queries where they are the same.
        query_groups: [N] int32.
        key_groups: [M] int32.
        impl: "dense": `infonce`, which under jit is partitioned by XLA; otherwise `streaming_infonce`, which reads it.
        mesh: devices that share rows and columns, `jax.make_mesh((8,), ("data",))` say; None: one device, or a jit
            that shards as it likes.
        axis_name: the axis of the mesh along which they do; its size divides N, M and the rows of a queue.
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
    dense = impl == "dense"
    if mesh is not None and axis_name not in mesh.shape:
        raise ValueError(f"axis_name={axis_name!r} is no axis of mesh; it has {', '.join(map(repr, mesh.axis_names))}")
    if dense or mesh is None or mesh.shape[axis_name] == 1:
        if dense:
            settings.pop("block_size", None)
        loss = infonce if dense else partial(streaming_infonce, impl=impl)
        out = loss(queries, keys, query_groups, key_groups, **settings)
        return jnp.sum(out.loss) / jnp.maximum(jnp.sum(out.valid), 1), out
    arrays = {name: settings.pop(name) for name in _ARRAYS & settings.keys() if settings[name] is not None}
    same = queries is keys
    shared = partial(_shared, mesh=mesh, axis_name=axis_name)
    arrays = {name: shared(name, value) if name in _SHARDED else value for name, value in arrays.items()}

    def local(queries: Any, keys: Any, query_groups: Any, key_groups: Any, arrays: Any) -> Any:
        out = streaming_infonce(
            queries,
            queries if same else keys,
            query_groups,
            key_groups,
            impl=impl,
            axis_name=axis_name,
            **arrays,
            **settings,
        )
        total, count = lax.psum((jnp.sum(out.loss), jnp.sum(out.valid)), axis_name)
        return total / jnp.maximum(count, 1), out

    rows: Any = PartitionSpec(axis_name)
    whole: Any = PartitionSpec()
    specs: dict[str, Any] = {n: rows if n in _SHARDED else whole for n in arrays}
    if "met" in arrays:
        specs["met"] = Met(rows, whole)
    stats: Any = [rows if name in PER_ROW else whole for name in Stats._fields]
    outputs: Any = (rows, rows, Stats(*stats))
    spread = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(rows, None if same else rows, rows, rows, specs),
        out_specs=(whole, InfoNCEOutput(*outputs)),
    )
    return spread(
        shared("queries", queries),
        None if same else shared("keys", keys),
        shared("query_groups", query_groups),
        shared("key_groups", key_groups),
        arrays,
    )


def _shared(name: str, rows: ArrayLike, mesh: Mesh, axis_name: str) -> Any:
    """Rows as `jax.shard_map` takes them: a mesh of explicit axes, as `jax.make_mesh` has, moves nothing by itself."""
    count, devices = jnp.shape(rows)[0] if jnp.ndim(rows) else 0, mesh.shape[axis_name]
    if count % devices:
        near = [size for size in (count // devices * devices, -(-count // devices) * devices) if size]
        raise ValueError(
            f"{name} has {count} rows, which the {devices} devices of axis_name={axis_name!r} do not divide; the "
            f"nearest valid numbers are {' and '.join(map(str, near))}"
        )
    if mesh.axis_types[mesh.axis_names.index(axis_name)] is not AxisType.Explicit:
        return rows
    return reshard(jnp.asarray(rows), NamedSharding(mesh, PartitionSpec(axis_name)))
