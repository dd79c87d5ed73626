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

from jaxcl.cached import Problem, Programs, bare, embedding_shapes, seen_of, with_gradient, zero_gradient, zeros_like
from jaxcl.mesh import along_data, replicated
from jaxcl.portions import Held, Portions
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
        gradient, problem = self.programs.loss(bare(state), embeddings, ids, labels)
        replay = functools.partial(with_gradient, self.programs.replay, gradient)
        grads, _ = self._over(replay, state, micros, lambda _: self._zero_gradient(state.params), state.batch_stats)
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

    def _zeros(self, micro: Any) -> Any:
        """Where the embeddings of a batch will be written; `micro` has the shapes of its rows."""
        if self._blank is None:
            shapes, rows = embedding_shapes(self._pure, self._portions, self._like, micro), along_data(self._mesh)
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
