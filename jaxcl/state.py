"""The arrays of a run between two steps, where they come from and on which devices they lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Int

from jaxcl import hostqueue, lora
from jaxcl import queue as queues
from jaxcl.config import LoraConfig
from jaxcl.hostqueue import HostQueue
from jaxcl.mesh import along_data, on_host, parameter_spec, replicated
from jaxcl.methods.base import Captioned, Method
from jaxcl.scaling import LossScale, init_scale


class TrainState(NamedTuple):
    """Everything that a step changes, and what it needs unchanged; random keys are folded from seed and step.

    Attributes:
        step: batches seen, each of `batch.size` images.
        updates: real updates among them; a non-finite step is seen but changes nothing.
        params: that are trained, of encoder and head, float32.
        batch_stats: running statistics of batch norms.
        opt_state: of the optimizer.
        queue: embeddings of earlier steps, on the devices or the host, or None.
        target: parameters of a momentum encoder, variables of a teacher, or None.
        queue_rows: newest rows of the queue that count, where validation decides it, or None.
        loss_scale: factor of the loss with float16, or None.
        frozen: parameters that nothing changes, with low-rank adaptation, or None; no checkpoint holds them.
    """

    step: Int[Array, ""]
    updates: Int[Array, ""]
    params: Any
    batch_stats: Any
    opt_state: Any
    queue: queues.Queue | HostQueue | None
    target: Any
    queue_rows: Int[Array, ""] | None = None
    loss_scale: LossScale | None = None
    frozen: Any = None


def make_init_state(
    method: Method,
    optimizer: optax.GradientTransformation,
    *,
    views_shape: tuple[int, ...],
    tokens_shape: tuple[int, int] | None = None,
    queue_size: int,
    queue_dim: int,
    queue_dtype: str,
    queue_rows: int | None = None,
    adapted: LoraConfig | None = None,
    loss_scale: int | None = None,
) -> Callable[..., TrainState]:
    """The function that makes the first state from a key; run it under `jax.jit` with `state_shardings`.

    Args:
        method: whose variables to make.
        optimizer: whose state to make.
        views_shape: [B, V, H, W, C] of one batch on the device; B may be small, only shapes depend on it.
        tokens_shape: [B, L] of its captions; None: it has none.
        queue_size: rows of the queue; 0: none.
        queue_dim: numbers of a row.
        queue_dtype: storage type of its rows.
        queue_rows: newest rows that count at first, where validation decides it; None: it does not.
        loss_scale: factor of the loss at first; None: it has none.
        adapted: how encoder and text tower are, by low rank; None, or rank 0: all parameters are trained.

    Returns:
        `init_state(key, given={}) -> TrainState`; variables that are given, a part of the tree, take the place of
        random ones, also in what is copied from them.
    """

    def init_state(key: jax.Array, given: Mapping[str, Any] | None = None) -> TrainState:
        views = jnp.zeros(views_shape, jnp.float32)
        captioned = tokens_shape and Captioned(views, jnp.zeros(tokens_shape, jnp.int32))
        variables = with_given(method.init(key, captioned or views), given or {})
        params, batch_stats, frozen = variables["params"], variables["batch_stats"], None
        if adapted is not None and adapted.rank:
            params, frozen = lora.split(key, params, adapted)
        queue = queues.init(queue_size, queue_dim, dtype=jnp.dtype(queue_dtype)) if queue_size else None
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            updates=jnp.zeros((), jnp.int32),
            params=params,
            batch_stats=batch_stats,
            opt_state=optimizer.init(params),
            queue=queue,
            target=method.target and jax.tree.map(jnp.copy, method.target(params)),
            queue_rows=None if queue_rows is None else jnp.int32(queue_rows),
            loss_scale=None if loss_scale is None else init_scale(loss_scale),
            frozen=frozen,
        )

    return init_state


def state_shardings(state: TrainState, mesh: Mesh, *, offload: bool = False) -> Any:
    """Where each array of a state lies: queue rows over `data`, large parameters over `model`, the rest everywhere.

    Args:
        state: of arrays or of shapes (`jax.eval_shape`).
        mesh: with axes `data` and `model`.
        offload: whether the arrays of the optimizer wait on the host; its counters do not.

    Returns:
        The same tree with a `NamedSharding` for each array.
    """
    model = mesh.shape["model"]

    def by_shape(leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, parameter_spec(leaf.shape, model))

    def waiting(leaf: Any) -> NamedSharding:
        return on_host(by_shape(leaf)) if offload and leaf.ndim else by_shape(leaf)

    everywhere = replicated(mesh)
    placed: Any = jax.tree.map(lambda _: everywhere, state)
    return placed._replace(
        params=jax.tree.map(by_shape, state.params),
        opt_state=jax.tree.map(waiting, state.opt_state),
        target=jax.tree.map(by_shape, state.target),
        frozen=jax.tree.map(by_shape, state.frozen),
        queue=where_queue(state.queue, mesh),
    )


def where_queue(queue: Any, mesh: Mesh) -> Any:
    """The same for a queue: rows over `data`, on the devices or, in blocks, on the host.

    Args:
        queue: of arrays or of shapes, or None.
        mesh: with axis `data`.

    Returns:
        The same tree of shardings.
    """
    if isinstance(queue, HostQueue):
        return hostqueue.placed(queue, mesh)
    rows, everywhere = along_data(mesh), replicated(mesh)
    return queue and queue._replace(values=rows, groups=rows, cursor=everywhere, filled=everywhere)


def with_given(variables: Any, given: Mapping[str, Any]) -> Any:
    """Nested dictionaries with some of their leaves replaced.

    >>> with_given({"head": {"bias": 1, "kernel": 2}}, {"head": {"bias": 3}})
    {'head': {'bias': 3, 'kernel': 2}}
    """
    return {
        key: with_given(value, given.get(key, {})) if isinstance(value, Mapping) else given.get(key, value)
        for key, value in variables.items()
    }


def parameter_count(params: Any) -> int:
    """Numbers in a tree of parameters.

    >>> parameter_count({"kernel": jnp.zeros((3, 4)), "bias": jnp.zeros(4)})
    16
    """
    return sum(leaf.size for leaf in jax.tree.leaves(params))
