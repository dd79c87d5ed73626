"""The loss against a queue that waits on the host: block after block passes by the device, twice.

  met ← visit(met, block)                   every block but the first; the next one is on its way
  gradient, ∂/∂met ← loss(met, block 0)     the objective of the method, unchanged
  pull ← pull + pull(∂/∂met, block)         those blocks again
  gradient ← gradient + add(pull)           to the embeddings

and after the update block ← write(block, new rows) for those that a push writes to. Each is a program of its own, whose
arguments hold one block at most: what the others hold is on the host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxcl import hostqueue
from jaxcl.cached import Problem
from jaxcl.config import Config, ConfigError
from jaxcl.hostqueue import HostQueue, Resident
from jaxcl.losses.blocks import Block, meet_block, nothing_met, pull_block
from jaxcl.losses.met import Met
from jaxcl.losses.normalise import through_norm
from jaxcl.mesh import DATA, along_data, on_device, replicated
from jaxcl.methods.base import Method
from jaxcl.schedules import make_temperature
from jaxcl.update import metrics_of, problem_keys


class BlockPrograms(NamedTuple):
    """The parts as pure functions, or one thing for each of them, such as a compiled program.

    `asked` are a state without all but counters and queue, embeddings [B, …], ids [B] and labels [B]; of its queue no
    part reads the values.

    Attributes:
        begin: `(*asked) -> (met, sum)`, of no block.
        visit: `(*asked, block, start, met) -> (met, lengths)`.
        loss: `(*asked, block, met) -> (gradient, cotangent, lengths, Problem)`.
        pull: `(*asked, block, start, met, cotangent, sum) -> sum`, [N, D] float32.
        add: `(*asked, gradient, sum) -> gradient`.
        write: `(queue, values [B, D], block, start) -> (block, lengths)`, with the queue as before the push.
        push: `(queue, groups [B]) -> queue`, but for the values.
    """

    begin: Any
    visit: Any
    loss: Any
    pull: Any
    add: Any
    write: Any
    push: Any


def make_blockwise(config: Config, method: Method, *, mesh: Mesh, like: Any) -> BlockwiseLoss:
    """The loss of a run with `queue.offload`.

    Args:
        config: the run.
        method: embeddings and objective.
        mesh: devices.
        like: shapes and shardings of a state.

    Returns:
        The loss.

    Raises:
        ConfigError: a method whose queue must be on the device.
    """
    if method.anchors is None:
        raise ConfigError(
            f"queue.offload = True does not work with method = {config.method!r}; 'simclr', 'supcon' and 'moco_v2' do"
        )
    programs = make_block_programs(
        method,
        seed=config.seed,
        temperature=make_temperature(config.loss, total_steps=config.steps),
        top_k=config.loss.top_k,
        mesh=mesh,
        size=config.queue.size,
        each=like.queue.values[0].shape[0],
    )
    return BlockwiseLoss(programs, mesh=mesh, like=like)


def make_block_programs(
    method: Method,
    *,
    seed: int,
    temperature: Callable[[Any, Any], Any],
    top_k: int | None,
    mesh: Mesh,
    size: int,
    each: int,
) -> BlockPrograms:
    """The parts as pure functions.

    Args:
        method: with `anchors`.
        seed: of the run.
        temperature: of the loss, by real update and queue.
        top_k: negatives kept for each anchor; None: all.
        mesh: devices that share anchors and blocks.
        size: rows of the queue.
        each: rows of a block.

    Returns:
        The programs.
    """
    spread = mesh.shape[DATA] > 1
    rows: Any = PartitionSpec(DATA)
    whole: Any = PartitionSpec()
    of_met, of_block = Met(rows, whole), Block(rows, whole, whole, whole)

    def on_devices(function: Any, given: Any, out: Any) -> Any:
        if not spread:
            return function
        return jax.shard_map(functools.partial(function, axis_name=DATA), mesh=mesh, in_specs=given, out_specs=out)

    def compared(state: Any, embeddings: Any, ids: Any, labels: Any, block: Any, start: Any) -> tuple[Any, ...]:
        queries, groups = method.anchors(embeddings, ids, labels)  # type: ignore[misc]
        queue = state.queue
        padded = jnp.pad(queue.groups, (0, -size % each), constant_values=-1)
        own = jax.lax.dynamic_slice_in_dim(padded, start, each)
        heat = jnp.asarray(temperature(state.updates, queue), jnp.float32)
        return queries, groups, Block(block, own, jnp.asarray(start, jnp.int32), queue.filled), heat

    def begin(*asked: Any) -> tuple[Met, jax.Array]:
        queries, _ = method.anchors(*asked[1:])  # type: ignore[misc]
        return nothing_met(queries.shape[0], top_k), jnp.zeros(queries.shape, jnp.float32)

    def visit(
        state: Any, embeddings: Any, ids: Any, labels: Any, block: Any, start: Any, met: Met
    ) -> tuple[Met, jax.Array]:
        queries, groups, part, heat = compared(state, embeddings, ids, labels, block, start)
        settings: dict[str, Any] = dict(top_k=top_k, keys=queries.shape[0])

        def meet(met: Met, queries: Any, groups: Any, part: Block, heat: Any, axis_name: str | None = None) -> Met:
            return meet_block(met, queries, groups, part, temperature=heat, axis_name=axis_name, **settings)

        met = on_devices(meet, (of_met, rows, rows, of_block, whole), of_met)(met, queries, groups, part, heat)
        return met, hostqueue.lengths(block, state.queue.filled - start)

    def pull(
        state: Any,
        embeddings: Any,
        ids: Any,
        labels: Any,
        block: Any,
        start: Any,
        met: Met,
        cotangent: Any,
        so_far: Any,
    ) -> jax.Array:
        queries, groups, part, heat = compared(state, embeddings, ids, labels, block, start)
        settings: dict[str, Any] = dict(top_k=top_k, keys=queries.shape[0])

        def more(given: Any, met: Met, queries: Any, groups: Any, part: Block, heat: Any, axis_name: Any = None) -> Any:
            return pull_block(given, met, queries, groups, part, temperature=heat, axis_name=axis_name, **settings)

        given = cotangent["values"], cotangent["repulsion"]
        specs = (rows, rows), of_met, rows, rows, of_block, whole
        return so_far + on_devices(more, specs, rows)(given, met, queries, groups, part, heat)

    def add(state: Any, embeddings: Any, ids: Any, labels: Any, gradient: Any, total: Any) -> Any:
        del state
        queries, back = jax.vjp(lambda x: method.anchors(x, ids, labels)[0], embeddings)  # type: ignore[misc]
        (more,) = back(through_norm(queries, total).astype(queries.dtype))
        return jax.tree.map(jnp.add, gradient, more)

    loss = _make_loss(method, seed=seed, temperature=temperature, size=size, each=each)
    write = functools.partial(_write, size=size)
    return BlockPrograms(begin, visit, loss, pull, add, write, hostqueue.pushed)


def _make_loss(
    method: Method, *, seed: int, temperature: Callable[[Any, Any], Any], size: int, each: int
) -> Callable[..., tuple[Any, Any, jax.Array, Problem]]:
    """`BlockPrograms.loss`: the key is that of the loss in `jaxcl.cached`."""

    def loss(state: Any, embeddings: Any, ids: Any, labels: Any, block: Any, met: Met | None) -> tuple[Any, ...]:
        queue, key = state.queue, jax.random.split(problem_keys(seed, state.step, 1)[0])[1]
        groups = jnp.pad(queue.groups, (0, max(each - size, 0)), constant_values=-1)[:each]
        first = jnp.minimum(queue.filled, each)

        def value(embeddings: Any, scores: Any) -> tuple[Any, Any]:
            found = None if met is None else met._replace(part=met.part._replace(**scores))
            bank = Resident(block, groups, first, found, max(size - each, 0))
            against = dict(queue=bank, temperature=temperature(state.updates, queue))
            out = method.objective(key, embeddings, ids, labels, **against)
            return out.loss, out

        scores = {} if met is None else dict(values=met.part.values, repulsion=met.part.repulsion)
        (gradient, cotangent), out = jax.grad(value, argnums=(0, 1), has_aux=True)(embeddings, scores)
        problem = Problem(dict(metrics_of(out), queue_rows=queue.filled), out.push_values, out.push_groups)
        return gradient, cotangent, hostqueue.lengths(block, first), problem

    return loss


def _write(queue: HostQueue, values: Any, block: Any, start: Any, *, size: int) -> tuple[jax.Array, jax.Array]:
    """`BlockPrograms.write`."""
    kept, batch = hostqueue.as_rows(values, size, block.dtype), values.shape[0]
    new = hostqueue.write(block, kept, queue.cursor, start, size=size, batch=batch)
    return new, hostqueue.lengths(new, jnp.minimum(queue.filled + batch, size) - start)


class BlockwiseLoss:
    """What `Programs.loss` computes, and the push to the queue, for a queue that waits on the host.

    Attributes:
        programs: compiled at their first call.
    """

    def __init__(self, programs: BlockPrograms, *, mesh: Mesh, like: Any) -> None:
        """Nothing is compiled yet.

        Args:
            programs: from `make_block_programs`.
            mesh: devices that share anchors and blocks.
            like: shapes and shardings of a state.
        """
        rows: Any = along_data(mesh)
        whole: Any = replicated(mesh)
        self._rows, self._whole = rows, whole
        self._host = like.queue.values[0].sharding
        self._device = on_device(self._host)
        self.blocks = len(like.queue.values)
        self.each, self.size = like.queue.values[0].shape[0], like.queue.groups.shape[0]
        met, problem, light = Met(rows, whole), Problem(whole, rows, rows), HostQueue((), whole, whole, whole)
        self.programs = BlockPrograms(
            begin=jax.jit(programs.begin, out_shardings=(met, rows)),
            visit=jax.jit(programs.visit, out_shardings=(met, whole), donate_argnums=6),
            loss=jax.jit(programs.loss, out_shardings=(rows, rows, whole, problem)),
            pull=jax.jit(programs.pull, out_shardings=rows, donate_argnums=8),
            add=jax.jit(programs.add, out_shardings=rows, donate_argnums=4),
            write=jax.jit(programs.write, out_shardings=(self._device, whole), donate_argnums=2),
            push=jax.jit(programs.push, out_shardings=light),
        )

    def __call__(self, state: Any, embeddings: Any, ids: Any, labels: Any) -> tuple[Any, Problem, dict[int, jax.Array]]:
        """The gradient of the embeddings.

        Args:
            state: what `jaxcl.cached.bare` leaves.
            embeddings: [B, …] each.
            ids: [B].
            labels: [B].

        Returns:
            The gradient, the problem, and for each block the smallest and largest length of its rows.
        """
        waiting = state.queue.values
        asked = state._replace(queue=state.queue._replace(values=())), embeddings, ids, labels
        lengths: dict[int, jax.Array] = {}

        def visit(block: Any, number: int, met: Any) -> Any:
            met, lengths[number] = self.programs.visit(*asked, block, self._start(number), met)
            return met

        met, total = self.programs.begin(*asked) if self.blocks > 1 else (None, None)
        met = self._over_others(waiting, visit, met)
        first = jax.device_put(waiting[0], self._device)
        gradient, cotangent, lengths[0], problem = self.programs.loss(*asked, first, met)
        if met is None:
            return gradient, problem, lengths

        def pull(block: Any, number: int, total: Any) -> Any:
            return self.programs.pull(*asked, block, self._start(number), met, cotangent, total)

        del first
        total = self._over_others(waiting, pull, total)
        return self.programs.add(*asked, gradient, total), problem, lengths

    def _over_others(self, waiting: Any, program: Callable[[Any, int, Any], Any], so_far: Any) -> Any:
        """Calls a program with one block after the other but the first; while it works, the next is on its way."""
        coming = jax.device_put(waiting[1], self._device) if self.blocks > 1 else None
        for number in range(1, self.blocks):
            block = coming
            so_far = program(block, number, so_far)
            if number + 1 < self.blocks:
                coming = jax.device_put(waiting[number + 1], self._device)
            jax.block_until_ready(so_far)  # or the host would run ahead, and send all of them
        return so_far

    def arguments(self, state: Any, embeddings: Any, ids: Any, labels: Any) -> BlockPrograms:
        """The shapes with which each program is called, to compile it for devices that may not be there.

        Args:
            state: of shapes with shardings, as the rest.
            embeddings: [B, …] each.
            ids: [B].
            labels: [B].

        Returns:
            For each program a tuple of trees of `jax.ShapeDtypeStruct`; none of them is on the host.
        """

        def shaped(tree: Any, sharding: Any) -> Any:
            return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

        rows, whole = self._rows, self._whole
        block = shaped(state.queue.values[0], self._device)
        light, start = state.queue._replace(values=()), jax.ShapeDtypeStruct((), jnp.int32, sharding=whole)
        asked = state._replace(queue=light), embeddings, ids, labels
        met, total = jax.eval_shape(self.programs.begin, *asked)
        met, total = Met(shaped(met.part, rows), shaped(met.nonfinite, whole)), shaped(total, rows)
        others = met if self.blocks > 1 else None
        _, cotangent, _, problem = jax.eval_shape(self.programs.loss, *asked, block, others)
        pushed = shaped(problem[1:], rows)
        return BlockPrograms(
            begin=asked,
            visit=(*asked, block, start, met),
            loss=(*asked, block, others),
            pull=(*asked, block, start, met, shaped(cotangent, rows), total),
            add=(*asked, embeddings, total),
            write=(light, pushed[0], block, start),
            push=(light, pushed[1]),
        )

    def push(
        self, queue: HostQueue, problem: Problem, lengths: dict[int, jax.Array], *, moved: bool
    ) -> tuple[HostQueue, dict[str, jax.Array]]:
        """The queue after a step, and what to log of it.

        Args:
            queue: before it.
            problem: with what is pushed.
            lengths: from the call.
            moved: whether the step was finite; otherwise nothing is pushed.

        Returns:
            Queue and metrics as of `jaxcl.update`.
        """
        light, lengths = queue._replace(values=()), dict(lengths)
        if moved:
            values, blocks = problem.push_values, list(queue.values)
            for number in hostqueue.touched(self.size, self.each, int(queue.cursor), values.shape[0]):
                block = jax.device_put(blocks[number], self._device)
                block, lengths[number] = self.programs.write(light, values, block, self._start(number))
                blocks[number] = jax.device_put(block, self._host)
            queue = self.programs.push(light, problem.push_groups)._replace(values=tuple(blocks))
        found = jnp.stack(list(lengths.values()))
        metrics = dict(queue_norm_min=jnp.min(found[:, 0]), queue_norm_max=jnp.max(found[:, 1]))
        return queue, dict(metrics, queue_fill=queue.filled / self.size)

    def _start(self, number: int) -> np.int32:
        """The first row of a block."""
        return np.int32(number * self.each)
