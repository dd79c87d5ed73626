"""The cached step for images that stay on the host: four programs, and a loop that sends one micro-batch at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxcl.cached import Problem, Programs, bare, embedding_shapes, seen_of, with_gradient, zero_gradient, zeros_like
from jaxcl.mesh import along_data, replicated
from jaxcl.portions import Portions
from jaxcl.state import TrainState

Batch = dict[str, np.ndarray]


class HostedStep:
    """`(state, batch of numpy arrays) -> (state, metrics)`: what `make_cached_step` computes, in four programs.

    On the device there are at most two micro-batches, the one that is worked on and the next on its way. Arrays that
    nobody needs any more are given up: the old state, and the embeddings, in whose place their gradient comes.

    Attributes:
        programs: compiled at their first call; encode and replay once more for a short last micro-batch.
    """

    def __init__(self, programs: Programs, portions: Portions, *, mesh: Mesh, like: TrainState) -> None:
        """Nothing is compiled yet.

        Args:
            programs: from `make_programs`, for the same `portions`.
            portions: the batch in micro-batches.
            mesh: devices that share each micro-batch.
            like: shapes and shardings of the state.
        """
        self._pure, self._portions, self._mesh, self._like = programs, portions, mesh, like
        rows, whole = along_data(mesh), replicated(mesh)
        placed: Any = jax.tree.map(lambda x: x.sharding, like)
        everywhere: Any = whole  # of all metrics
        pushed: Any = None if like.queue is None else rows
        self._blank: Callable[[], Any] | None = None
        self._zero_gradient = jax.jit(zero_gradient, out_shardings=placed.params)
        self.programs = Programs(
            encode=jax.jit(programs.encode, out_shardings=(rows, placed.batch_stats), donate_argnums=6),
            loss=jax.jit(programs.loss, out_shardings=(rows, Problem(everywhere, pushed, pushed)), donate_argnums=1),
            replay=jax.jit(programs.replay, out_shardings=(placed.params, placed.batch_stats), donate_argnums=7),
            update=jax.jit(programs.update, out_shardings=(placed, whole), donate_argnums=0),
        )

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        """One real update.

        Args:
            state: to begin with; it is given up.
            batch: rows that this process has, [B, …] each.

        Returns:
            State and metrics, as of `make_cached_step`.
        """
        ids, labels = (self._place(batch[name]) for name in ("id", "label"))
        embeddings, batch_stats = self._over(self.programs.encode, state, batch, self._zeros(batch), state.batch_stats)
        gradient, problem = self.programs.loss(bare(state), embeddings, ids, labels)
        replay = functools.partial(with_gradient, self.programs.replay, gradient)
        grads, _ = self._over(replay, state, batch, self._zero_gradient(state.params), state.batch_stats)
        return self.programs.update(state, grads, batch_stats, problem)

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
        embeddings = shaped(embedding_shapes(self._pure, self._portions, state, batch), rows)
        grads = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding), state.params)
        number = jax.ShapeDtypeStruct((), jnp.int32, sharding=whole)
        seen = *seen_of(state), number, shaped(batch, rows, self._portions.micro)
        asked = bare(state), embeddings, shaped(batch["id"], rows), shaped(batch["label"], rows)
        _, problem = jax.eval_shape(self._pure.loss, *asked)
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
        """Every program of a step with the shapes of its arguments.

        Args:
            batch: as in `arguments`.

        Returns:
            By name, a jitted function and its arguments.
        """
        return {name: (getattr(self.programs, name), given) for name, given in self.arguments(batch)._asdict().items()}

    def _zeros(self, batch: Batch) -> Any:
        """Where the embeddings of a batch will be written."""
        if self._blank is None:
            shapes, rows = embedding_shapes(self._pure, self._portions, self._like, batch), along_data(self._mesh)
            self._blank = jax.jit(lambda: zeros_like(shapes), out_shardings=rows)
        return self._blank()

    def _over(
        self, program: Callable[..., tuple[Any, Any]], state: TrainState, batch: Batch, buffer: Any, batch_stats: Any
    ) -> tuple[Any, Any]:
        """Calls a program with one micro-batch after the other; while it works, the next one is on its way."""
        seen, count, coming = seen_of(state), self._portions.count, self._micro(batch, 0)
        for number in range(count):
            micro = coming
            buffer, batch_stats = program(*seen, np.int32(number), micro, buffer, batch_stats)
            if number + 1 < count:
                coming = self._micro(batch, number + 1)
                jax.block_until_ready(buffer)  # or the host would run ahead, and send all of them
        return buffer, batch_stats

    def _micro(self, batch: Batch, number: int) -> dict[str, jax.Array]:
        """One micro-batch on the device."""
        images = None if number < self._portions.whole else self._portions.short
        return {name: self._place(rows) for name, rows in self._portions.take(batch, number, images).items()}

    def _place(self, rows: np.ndarray) -> jax.Array:
        """Rows that this process has, as a global array."""
        return jax.make_array_from_process_local_data(along_data(self._mesh), rows)
