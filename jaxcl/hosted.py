"""The cached step for images that are not on the device: four programs, and a loop that sends micro-batches."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxcl.blockwise import BlockwiseLoss
from jaxcl.cached import Problem, Programs, bare, embedding_shapes, seen_of, with_gradient, zero_gradient, zeros_like
from jaxcl.mesh import along_data, on_device, replicated
from jaxcl.portions import Held, Portions
from jaxcl.scaling import scaled
from jaxcl.state import TrainState

Batch = dict[str, np.ndarray]


@runtime_checkable
class Rows(Protocol):
    """A batch that is not in memory."""

    def __iter__(self) -> Iterator[Batch]:
        """Its micro-batches, in order."""
        ...

    def __getitem__(self, name: str) -> np.ndarray:
        """A field of all rows that have been gone through, [B]."""
        ...


class HostedStep:
    """`(state, batch of numpy arrays) -> (state, metrics)`: what `make_cached_step` computes, in four programs.

    On the device there are at most two micro-batches, the one that is worked on and the next on its way. Arrays that
    nobody needs any more are given up: the old state, and the embeddings, in whose place their gradient comes.
    Where the optimizer's arrays wait on the host, they are on the device for the last program alone, the same one.

    Attributes:
        programs: compiled at their first call; encode and replay once more for a short last micro-batch.
    """

    def __init__(
        self,
        programs: Programs,
        portions: Portions,
        *,
        mesh: Mesh,
        like: TrainState,
        bank: BlockwiseLoss | None = None,
    ) -> None:
        """Nothing is compiled yet.

        Args:
            programs: from `make_programs`, for the same `portions`.
            portions: the batch in micro-batches.
            mesh: devices that share each micro-batch.
            like: shapes and shardings of the state; its `opt_state` may be on the host.
            bank: the loss where the queue is on the host, in the place of `programs.loss`.
        """
        self._bank = bank
        self._home: Any = jax.tree.map(lambda x: x.sharding, like.opt_state)
        like = like._replace(opt_state=jax.tree.map(_on_device, like.opt_state))
        self.pure, self._portions, self._mesh, self._like = programs, portions, mesh, like
        rows, whole = along_data(mesh), replicated(mesh)
        placed: Any = jax.tree.map(lambda x: x.sharding, like)
        placed = placed._replace(queue=placed.queue if bank is None else None)
        self._away: Any = placed.opt_state
        everywhere: Any = whole  # of all metrics
        pushed: Any = None if like.queue is None else rows
        self._blank: Callable[[], Any] | None = None
        self._zero_gradient = jax.jit(zero_gradient, out_shardings=placed.params)
        # the loss of a queue on the host has its gradient from a program of its own, which knows no factor
        self._scaled = jax.jit(lambda tree, scale: jax.tree.map(lambda g: scaled(g, scale), tree), donate_argnums=0)
        self.programs = Programs(
            encode=jax.jit(programs.encode, out_shardings=(rows, placed.batch_stats), donate_argnums=6),
            loss=bank.programs.loss
            if bank
            else jax.jit(programs.loss, out_shardings=(rows, Problem(everywhere, pushed, pushed)), donate_argnums=1),
            replay=jax.jit(programs.replay, out_shardings=(placed.params, placed.batch_stats), donate_argnums=7),
            update=jax.jit(programs.update, out_shardings=(placed, whole), donate_argnums=0),
        )

    def __call__(self, state: TrainState, batch: Batch | Rows) -> tuple[TrainState, dict[str, jax.Array]]:
        """One real update.

        Args:
            state: to begin with; it is given up.
            batch: rows that this process has, [B, …] each; or what yields its micro-batches each time it is gone
                through, which is twice, and then knows "id" and "label" of all rows, such as `jaxcl.data.Twice`.

        Returns:
            State and metrics, as of `make_cached_step`.
        """
        micros = Held(batch, self._portions) if isinstance(batch, dict) else batch
        embeddings, batch_stats = self._over(self.programs.encode, state, micros, self._zeros, state.batch_stats)
        ids, labels = (self._place(batch[name]) for name in ("id", "label"))
        if self._bank is None:
            gradient, problem = self.programs.loss(bare(state), embeddings, ids, labels)
            lengths = None
        else:
            gradient, problem, lengths = self._bank(bare(state), embeddings, ids, labels)
            gradient = self._scaled(gradient, state.loss_scale)
        replay = functools.partial(with_gradient, self.programs.replay, gradient)
        grads, _ = self._over(replay, state, micros, lambda _: self._zero_gradient(state.params), state.batch_stats)
        if self._home != self._away:
            jax.block_until_ready(grads)  # or the moments would be there while the activations are
            state = state._replace(opt_state=jax.device_put(state.opt_state, self._away))
        if self._bank is None:
            state, metrics = self.programs.update(state, grads, batch_stats, problem)
        else:
            state, metrics = self._update_and_push(state, grads, batch_stats, problem, lengths)
        if self._home != self._away:
            state = state._replace(opt_state=jax.device_put(state.opt_state, self._home))
        return state, metrics

    def _update_and_push(
        self, state: TrainState, grads: Any, batch_stats: Any, problem: Problem, lengths: Any
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """The update without the queue, and the push if it was finite."""
        assert self._bank is not None
        queue: Any = state.queue
        updates, rest = int(state.updates), Problem(problem.metrics, None, None)
        state, metrics = self.programs.update(state._replace(queue=None), grads, batch_stats, rest)
        queue, more = self._bank.push(queue, problem, lengths, moved=int(state.updates) > updates)
        return state._replace(queue=queue), metrics | more

    def arguments(self, batch: Any) -> Programs:
        """The shapes with which each program is called, to compile it for devices that may not be there.

        Args:
            batch: of arrays or shapes, over all processes [B, …] each.

        Returns:
            For each program a tuple of trees of `jax.ShapeDtypeStruct` with shardings, for a whole micro-batch.
        """
        rows, whole = along_data(self._mesh), replicated(self._mesh)

        def shaped(tree: Any, sharding: Any, images: int | None = None) -> Any:
            def one(x: Any) -> Any:
                return jax.ShapeDtypeStruct((images or x.shape[0], *x.shape[1:]), x.dtype, sharding=sharding)

            return jax.tree.map(one, tree)

        state = self._like
        embeddings = shaped(embedding_shapes(self.pure, self._portions, state, batch), rows)
        grads = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding), state.params)
        number = jax.ShapeDtypeStruct((), jnp.int32, sharding=whole)
        seen = *seen_of(state), number, shaped(batch, rows, self._portions.micro)
        asked: Any = bare(state), embeddings, shaped(batch["id"], rows), shaped(batch["label"], rows)
        if self._bank is None:
            problem = jax.eval_shape(self.pure.loss, *asked)[1]
        else:
            asked, state = self._bank.arguments(*asked).loss, state._replace(queue=None)
            problem = jax.eval_shape(self._bank.programs.loss, *asked)[-1]._replace(push_values=None, push_groups=None)
        problem = Problem(
            jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), problem.metrics),
            *(None if x is None else shaped(x, rows) for x in problem[1:]),
        )
        return Programs(
            encode=(*seen, embeddings, state.batch_stats),
            loss=asked,
            replay=(*seen, embeddings, grads, state.batch_stats),
            update=(state, grads, state.batch_stats, problem),
        )

    def lowerable(self, batch: Any) -> dict[str, tuple[Any, tuple[Any, ...]]]:
        """Every program of a step with the shapes of its arguments; what waits on the host is in none of them.

        Args:
            batch: as in `arguments`.

        Returns:
            By name, a jitted function and its arguments.
        """
        arguments = self.arguments(batch)._asdict()
        found = {name: (getattr(self.programs, name), given) for name, given in arguments.items()}
        if self._bank is not None:
            blocks = self._bank.arguments(bare(self._like), *arguments["loss"][1:4])._asdict()
            more = {name: (getattr(self._bank.programs, name), given) for name, given in blocks.items()}
            found |= {f"queue {name}": pair for name, pair in more.items() if name != "loss"}
        return found

    def _zeros(self, micro: Any) -> Any:
        """Where the embeddings of a batch will be written; `micro` has the shapes of its rows."""
        if self._blank is None:
            shapes, rows = embedding_shapes(self.pure, self._portions, self._like, micro), along_data(self._mesh)
            self._blank = jax.jit(lambda: zeros_like(shapes), out_shardings=rows)
        return self._blank()

    def _over(
        self,
        program: Callable[..., tuple[Any, Any]],
        state: TrainState,
        micros: Iterable[Batch],
        first: Callable[[Any], Any],
        batch_stats: Any,
    ) -> tuple[Any, Any]:
        """Calls a program with one micro-batch after the other; while it works, the next one is on its way."""
        seen, coming = seen_of(state), iter(micros)
        micro = self._placed(next(coming))
        buffer = first(micro)
        for number in itertools.count():
            buffer, batch_stats = program(*seen, np.int32(number), micro, buffer, batch_stats)
            following = next(coming, None)
            if following is None:
                return buffer, batch_stats
            micro = self._placed(following)
            jax.block_until_ready(buffer)  # or the host would run ahead, and send all of them
        raise AssertionError

    def _placed(self, micro: Batch) -> dict[str, jax.Array]:
        """One micro-batch on the device."""
        return {name: self._place(rows) for name, rows in micro.items()}

    def _place(self, rows: np.ndarray) -> jax.Array:
        """Rows that this process has, as a global array."""
        return jax.make_array_from_process_local_data(along_data(self._mesh), rows)


def _on_device(leaf: Any) -> Any:
    """The same shape in the memory of the devices."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=on_device(leaf.sharding))
