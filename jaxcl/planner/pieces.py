"""The programs of a training step, and which arrays lie on a device while each of them runs, by part."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxcl.blueprint import Blueprint, batch_shapes, make_prepare
from jaxcl.config import loss_size, micro_size
from jaxcl.hosted import HostedStep
from jaxcl.mesh import along_data
from jaxcl.planner.parts import ACTIVATIONS, BATCH, GRADIENTS, OPTIMIZER, OTHER, PARAMETERS, QUEUE, SIMILARITY
from jaxcl.update import networks_of

STEP = "step"
# of the programs of a hosted step: what scratch memory and results in places of their own are used for
USES = {
    "encode": (ACTIVATIONS, PARAMETERS),
    "loss": (SIMILARITY, SIMILARITY),
    **dict.fromkeys(("queue begin", "queue visit", "queue pull", "queue add"), (SIMILARITY, SIMILARITY)),
    "queue write": (QUEUE, QUEUE),
    "replay": (ACTIVATIONS, PARAMETERS),
}
BLOCK_BY_BLOCK = ("queue visit", "queue pull")  # of a queue on the host


class Piece(NamedTuple):
    """One program of a step before it is compiled.

    Attributes:
        name: encode, loss, replay or update; step where there is only one.
        function: jitted.
        arguments: their shapes with shardings.
        calls: how often a real update runs it; a short last micro-batch counts as its share.
        live: bytes on a device of all arrays that are alive when it starts, its arguments among them, by part.
        scratch: the part of its scratch memory.
        results: the part of results in places of their own.
    """

    name: str
    function: Any
    arguments: tuple[Any, ...]
    calls: float
    live: Counter[str]
    scratch: str
    results: str


def pieces_of(blueprint: Blueprint) -> list[Piece]:
    """The programs of a step, in the order in which they run.

    Args:
        blueprint: of the run.

    Returns:
        Four where images wait on the host, else one.
    """
    batch = batch_shapes(blueprint.config, blueprint.facts, blueprint.mesh)
    step: Any = blueprint.train_step
    if isinstance(step, HostedStep):
        return _hosted(blueprint, step, batch)
    live = _state_bytes(blueprint) + Counter({BATCH: device_bytes(batch)})
    return [Piece(STEP, step, (blueprint.like, batch), 1, live, ACTIVATIONS, OTHER)]


def _hosted(blueprint: Blueprint, step: HostedStep, batch: dict[str, Any]) -> list[Piece]:
    """The programs of `jaxcl.hosted`, whose loop says what is alive beside the arguments of each."""
    given, config = step.arguments(batch), blueprint.config
    queue: Any = blueprint.like.queue
    count = config.batch.size / micro_size(config)
    micro, statistics = device_bytes(given.encode[5]), device_bytes(blueprint.like.batch_stats)
    rows = device_bytes((batch["id"], batch["label"]))
    embeddings, problem = device_bytes(given.encode[6]), device_bytes(given.update[3])
    gradients = device_bytes(given.update[1])
    # two micro-batches, the one that is worked on and the next on its way; statistics before and after the first pass
    beside = {
        "encode": {BATCH: 2 * micro + rows, SIMILARITY: embeddings, PARAMETERS: statistics},
        "loss": {BATCH: rows, SIMILARITY: embeddings, PARAMETERS: statistics},
        "replay": {
            BATCH: 2 * micro + rows,
            SIMILARITY: embeddings + problem,
            GRADIENTS: gradients,
            PARAMETERS: 2 * statistics,
        },
        "update": {
            BATCH: rows,
            SIMILARITY: embeddings + problem,
            GRADIENTS: gradients,
            PARAMETERS: statistics,
            OPTIMIZER: waiting_in(blueprint)[OPTIMIZER],  # it comes for this program alone
        },
    }
    pieces = []
    for name, (function, arguments) in step.lowerable(batch).items():
        more = beside.get(name, beside["loss"])
        live = _state_bytes(blueprint) + Counter(more)
        if config.queue.offload and (name == "loss" or name not in beside):
            live += _of_blocks(queue, name, arguments)
        calls = count if name in ("encode", "replay") else 1.0
        if name in BLOCK_BY_BLOCK:
            calls = float(len(queue.values) - 1)  # the first block goes with the loss
        pieces.append(Piece(name, function, arguments, calls, live, *USES.get(name, (OTHER, OTHER))))
    return pieces


def _of_blocks(queue: Any, name: str, arguments: tuple[Any, ...]) -> Counter[str]:
    """What a program of a queue on the host needs besides state and batch: two blocks, and what they were met with."""
    own = 1 if name in ("queue write", "queue push") else 4  # the queue; or state, embeddings, ids and labels
    handed, block = jax.tree.leaves(arguments[own:]), queue.values[0]
    blocks = [leaf for leaf in handed if leaf.shape == block.shape]
    rest = device_bytes(handed) - device_bytes(blocks)
    return Counter({QUEUE: 2 * _bytes(block) if blocks else 0, SIMILARITY: rest})


def loss_piece(blueprint: Blueprint) -> Piece:
    """The loss and its gradient alone, for a step that is one program.

    Args:
        blueprint: of the run.

    Returns:
        A program of embeddings, ids, labels and queue; its embeddings are what is alive.
    """
    config, method, state = blueprint.config, blueprint.method, blueprint.like
    batch, rows = batch_shapes(config, blueprint.facts, blueprint.mesh), along_data(blueprint.mesh)
    prepare, key = make_prepare(config), jax.random.key(0)
    images = loss_size(config)

    def resized(x: Any) -> Any:
        return jax.ShapeDtypeStruct((images, *x.shape[1:]), x.dtype, sharding=rows)

    def embed(state: Any, batch: Any) -> Any:
        params, target = networks_of(method, state.params, state.frozen, state.target)
        return method.embed(key, params, state.batch_stats, target, prepare(batch), train=True)[0]

    batch = jax.tree.map(resized, batch)
    embeddings = jax.tree.map(resized, jax.eval_shape(embed, state, batch))

    def loss(embeddings: Any, ids: Any, labels: Any, queue: Any) -> Any:
        return method.objective(key, embeddings, ids, labels, queue=queue, temperature=config.loss.temperature).loss

    function = jax.jit(jax.grad(loss), out_shardings=rows, donate_argnums=0)
    arguments = embeddings, batch["id"], batch["label"], state.queue
    live = Counter({SIMILARITY: device_bytes(embeddings)})
    return Piece("loss", function, arguments, 1.0, live, SIMILARITY, SIMILARITY)


def device_bytes(tree: Any) -> int:
    """Bytes of one device that some arrays take, those that wait on the host left out.

    Args:
        tree: of shapes with shardings.

    Returns:
        Bytes of the first device.
    """
    return sum(_bytes(leaf) for leaf in jax.tree.leaves(tree) if not _waits(leaf))


def waiting_in(blueprint: Blueprint) -> Counter[str]:
    """What of a state waits on the host, for one device.

    By the settings: shardings for a device that is not there have no kind of memory.

    Args:
        blueprint: of the run.

    Returns:
        Bytes, by part.
    """
    config, state, found = blueprint.config, blueprint.like, Counter[str]()
    if config.optim.offload:
        found[OPTIMIZER] = sum(_bytes(leaf) for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim)
    if config.queue.offload:
        queue: Any = state.queue
        found[QUEUE] = sum(map(_bytes, queue.values))
    return found


def _bytes(leaf: Any) -> int:
    """Of one device."""
    shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
    return int(np.prod(shape, dtype=np.int64)) * leaf.dtype.itemsize


def _waits(leaf: Any) -> bool:
    """Whether an array is on the host."""
    return getattr(leaf.sharding, "memory_kind", None) in ("pinned_host", "unpinned_host")


def _state_bytes(blueprint: Blueprint) -> Counter[str]:
    """Bytes of a state on one device, by part."""
    state, waiting = blueprint.like, waiting_in(blueprint)
    parts = {
        PARAMETERS: (state.params, state.batch_stats, state.target, state.frozen),
        OPTIMIZER: state.opt_state,
        QUEUE: state.queue,
        OTHER: (state.step, state.updates, state.queue_rows, state.loss_scale),
    }
    return Counter({part: sum(map(_bytes, jax.tree.leaves(tree))) - waiting[part] for part, tree in parts.items()})
