"""The step whose activations are those of one micro-batch, and whose loss is that of the whole batch.

  z_j = f(θ, x_j) without gradient, for each micro-batch j      encode
  g = ∂L/∂z of the loss of all embeddings z = (z_1, …, z_m)     loss
  ∂L/∂θ = Σ_j (∂z_j/∂θ)ᵀ g_j, each z_j computed again           replay
  one step of the optimizer, momentum encoder and queue         update

It is the chain rule and nothing else: the gradient is that of a step that keeps all activations, up to rounding, at the
price of a second forward pass. The key of micro-batch j is folded from the step's and j, so that both passes see the
same random numbers; the loss has the key that it has in `jaxcl.step`. Batch norm: each micro-batch is normalised by its
own statistics, in both passes; the running statistics go through the micro-batches one after the other, as with
accumulation, and the second pass, which sees at each what the first one saw, changes them no further.

Source: Gao, Zhang, Han and Callan, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup" (2021).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxcl.methods.base import Method
from jaxcl.portions import Portions
from jaxcl.scaling import scaled, unscaled
from jaxcl.update import descend, gradient_metrics, make_finish, make_negatives, metrics_of, networks_of, problem_keys

Batch = dict[str, Any]


class Programs(NamedTuple):
    """The four parts of a step, or one thing for each of them, such as a compiled program or its arguments.

    Attributes:
        encode: `(params, frozen, target, step, number, micro-batch, embeddings [B, …], batch_stats) -> (embeddings,
            batch_stats)`, with the embeddings of micro-batch `number` in their place.
        loss: `(state, embeddings, ids [B], labels [B]) -> (gradient, Problem)`; of the state it reads what `bare`
            leaves, and the gradient is a tree like the embeddings.
        replay: `(params, frozen, target, step, number, micro-batch, gradient, grads, batch_stats) -> (grads,
            batch_stats)`, with what this micro-batch adds to the gradient of the parameters, float32.
        update: `(state, grads, batch_stats, Problem) -> (state, metrics)`.
    """

    encode: Any
    loss: Any
    replay: Any
    update: Any


class Problem(NamedTuple):
    """What is left of a contrastive problem when its gradient is known.

    Attributes:
        metrics: scalars by name.
        push_values: [B, D] for a queue; None where there is none.
        push_groups: [B]; None where there is none.
    """

    metrics: dict[str, Any]
    push_values: Any
    push_groups: Any


def make_programs(
    method: Method,
    optimizer: optax.GradientTransformation,
    prepare: Callable[[Batch], Any],
    *,
    portions: Portions,
    seed: int = 0,
    learning_rate: optax.Schedule,
    temperature: Callable[[Any, Any], Any],
    target_decay: optax.Schedule | None = None,
    queue_length: optax.Schedule | None = None,
    queue_sample: int | None = None,
    loss_scale_steps: int = 2000,
) -> Programs:
    """The four parts as pure functions, for `make_cached_step` or `jaxcl.hosted`.

    Args:
        method: embeddings and objective.
        optimizer: from `jaxcl.optim.make_optimizer`, without micro-batches: it sees one gradient a real update.
        prepare: as in `jaxcl.step.make_train_step`; it is given one micro-batch at a time.
        portions: the batch in micro-batches.
        seed: as there, and so are the rest.
        learning_rate: for the log.
        temperature: of the loss.
        target_decay: of the momentum encoder.
        queue_length: newest rows of the queue that count.
        queue_sample: rows drawn from these at random.
        loss_scale_steps: finite steps in a row after which the factor of the loss doubles.

    Returns:
        The programs.

    Raises:
        ValueError: a method with a momentum encoder, and no `target_decay` to move it by.
    """
    negatives = make_negatives(seed=seed, queue_length=queue_length, queue_sample=queue_sample)
    finish = make_finish(
        method, learning_rate=learning_rate, target_decay=target_decay, loss_scale_steps=loss_scale_steps
    )

    def keys_of(step: Any) -> jax.Array:
        return jax.random.split(problem_keys(seed, step, 1)[0])

    def embed(
        params: Any, frozen: Any, target: Any, step: Any, number: Any, micro: Batch, batch_stats: Any
    ) -> tuple[Any, Any]:
        key = jax.random.fold_in(keys_of(step)[0], number)
        params, target = networks_of(method, params, frozen, target)
        return method.embed(key, params, batch_stats, target, prepare(micro), train=True)

    def encode(
        params: Any, frozen: Any, target: Any, step: Any, number: Any, micro: Batch, embeddings: Any, batch_stats: Any
    ) -> tuple[Any, Any]:
        rows, batch_stats = embed(params, frozen, target, step, number, micro, batch_stats)
        # without a place to write to yet, its shape is asked for
        return portions.put(portions.blank(rows) if embeddings is None else embeddings, rows, number), batch_stats

    def loss(state: Any, embeddings: Any, ids: Any, labels: Any) -> tuple[Any, Problem]:
        key, bank = keys_of(state.step)[1], negatives(state)

        def value(embeddings: Any) -> tuple[Any, Any]:
            against = dict(queue=bank, temperature=temperature(state.updates, state.queue))
            out = method.objective(key, embeddings, ids, labels, **against)
            return scaled(out.loss, state.loss_scale), out

        gradient, out = jax.grad(value, has_aux=True)(embeddings)
        if bank is None:
            return gradient, Problem(metrics_of(out), None, None)
        return gradient, Problem(dict(metrics_of(out), queue_rows=bank.filled), out.push_values, out.push_groups)

    def replay(
        params: Any,
        frozen: Any,
        target: Any,
        step: Any,
        number: Any,
        micro: Batch,
        gradient: Any,
        grads: Any,
        batch_stats: Any,
    ) -> tuple[Any, Any]:
        def again(params: Any) -> tuple[Any, Any]:
            return embed(params, frozen, target, step, number, micro, batch_stats)

        _, pull, batch_stats = jax.vjp(again, params, has_aux=True)
        (more,) = pull(portions.take(gradient, number, micro["id"].shape[0]))
        return jax.tree.map(jnp.add, grads, more), batch_stats

    def update(state: Any, grads: Any, batch_stats: Any, problem: Problem) -> tuple[Any, dict[str, jax.Array]]:
        grads = unscaled(grads, state.loss_scale)
        new = descend(optimizer, state, grads, batch_stats)
        metrics = {**problem.metrics, **gradient_metrics(state, problem.metrics["loss"], grads)}
        return finish(state, new, metrics, problem.push_values, problem.push_groups)

    return Programs(encode, loss, replay, update)


def make_cached_step(
    programs: Programs, portions: Portions
) -> Callable[[Any, Batch], tuple[Any, dict[str, jax.Array]]]:
    """The four parts as one program, for images that are on the device; the caller applies jit, shardings and donation.

    Args:
        programs: from `make_programs`, for the same `portions`.
        portions: the batch in micro-batches; whole ones are one loop, a short one is a call of its own.

    Returns:
        `train_step(state, batch) -> (state, metrics)`; metrics are scalars.
    """

    def train_step(state: Any, batch: Batch) -> tuple[Any, dict[str, jax.Array]]:
        seen = seen_of(state)

        def over(program: Callable[..., tuple[Any, Any]], first: tuple[Any, Any]) -> tuple[Any, Any]:
            def one(carry: tuple[Any, Any], number: Any) -> tuple[tuple[Any, Any], None]:
                return program(*seen, number, portions.take(batch, number), *carry), None

            carry, _ = lax.scan(one, first, jnp.arange(portions.whole))
            if portions.short:
                carry = program(*seen, portions.whole, portions.take(batch, portions.whole, portions.short), *carry)
            return carry

        blank = zeros_like(embedding_shapes(programs, portions, state, batch))
        embeddings, batch_stats = over(programs.encode, (blank, state.batch_stats))
        gradient, problem = programs.loss(bare(state), embeddings, batch["id"], batch["label"])
        replay = functools.partial(with_gradient, programs.replay, gradient)
        grads, _ = over(replay, (zero_gradient(state.params), state.batch_stats))
        return programs.update(state, grads, batch_stats, problem)

    return train_step


def with_gradient(replay: Callable[..., Any], gradient: Any, *arguments: Any) -> Any:
    """Calls `Programs.replay` with the arguments of `Programs.encode`: the gradient stands before the last two."""
    return replay(*arguments[:-2], gradient, *arguments[-2:])


def seen_of(state: Any) -> tuple[Any, Any, Any, Any]:
    """Of a state what encode and replay read, their first arguments; batch statistics are among the last."""
    return state.params, state.frozen, state.target, state.step


def bare(state: Any) -> Any:
    """Of a state what the loss reads: counters and queue, so that a program of its own is handed nothing else."""
    return state._replace(params=None, batch_stats=None, opt_state=None, target=None, frozen=None)


def zeros_like(shapes: Any) -> Any:
    """Zeros of some shapes and dtypes."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def zero_gradient(params: Any) -> Any:
    """Where the gradient of parameters is summed: zeros like them, float32."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params)


def embedding_shapes(programs: Programs, portions: Portions, state: Any, batch: Batch) -> Any:
    """The shapes of all embeddings of a batch.

    Args:
        programs: from `make_programs`.
        portions: the batch in micro-batches.
        state: of arrays or shapes.
        batch: of arrays or shapes [B, …].

    Returns:
        A tree of `jax.ShapeDtypeStruct` [B, …].
    """
    micro = jax.tree.map(lambda x: jax.ShapeDtypeStruct((portions.micro, *x.shape[1:]), x.dtype), batch)
    number = jax.ShapeDtypeStruct((), jnp.int32)
    shapes, _ = jax.eval_shape(programs.encode, *seen_of(state), number, micro, None, state.batch_stats)
    return shapes
