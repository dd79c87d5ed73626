"""The pure train step: views, loss, gradient, update, queue push, metrics."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxcl import queue as queues
from jaxcl.methods.base import Method
from jaxcl.optim import ema
from jaxcl.spread import spread

Batch = dict[str, Any]
DRAW = 2**32 - 1  # no step has this number, whose keys are the others


def make_train_step(
    method: Method,
    optimizer: optax.GradientTransformation,
    prepare: Callable[[Batch], Any],
    *,
    seed: int = 0,
    num_micro: int = 1,
    learning_rate: optax.Schedule,
    temperature: Callable[[Any, Any], Any],
    target_decay: optax.Schedule | None = None,
    queue_length: optax.Schedule | None = None,
    queue_sample: int | None = None,
) -> Callable[[Any, Batch], tuple[Any, dict[str, jax.Array]]]:
    """The function that one real update runs; the caller applies jit, shardings and donation.

    With several micro-batches the optimizer is an `optax.MultiSteps`: their gradients are averaged, each of a
    contrastive problem of its own, so accumulation adds no negatives. Micro-batch j holds every `num_micro`-th image
    from j on, so each device works on images that it already has. A step with a non-finite loss or gradient changes
    nothing but `step`.

    Args:
        method: embeddings and objective.
        optimizer: from `jaxcl.optim.make_optimizer` for the same `num_micro`.
        prepare: batch of uint8 views to what `Method.embed` gets, such as normalised, augmented [B, V, H, W, C].
        seed: of the run; each contrastive problem has a key folded from it and the step.
        num_micro: micro-batches of one real update.
        learning_rate: for the log, by real update.
        temperature: of the loss, by real update and queue.
        target_decay: of the momentum encoder, by real update; needed where the method has one.
        queue_length: newest rows of the queue that count, by real update; None: as many as the state says, or all.
        queue_sample: rows drawn from these at random, anew at each step; None: all.

    Returns:
        `train_step(state, batch) -> (state, metrics)`; metrics are scalars.

    Raises:
        ValueError: a method with a momentum encoder, and no `target_decay` to move it by.
    """
    if method.target and target_decay is None:
        raise ValueError("target_decay=None, but the method has a momentum encoder, which would never move")

    def loss_fn(params: Any, state: Any, against: dict[str, Any], batch: Batch, key: Any) -> tuple[jax.Array, Any]:
        keys, stats, target = jax.random.split(key), state.batch_stats, state.target
        embeddings, batch_stats = method.embed(keys[0], params, stats, target, prepare(batch), train=True)
        out = method.objective(keys[1], embeddings, batch["id"], batch["label"], **against)
        return out.loss, (batch_stats, out)

    def micro_step(against: dict[str, Any], state: Any, given: tuple[Batch, jax.Array]) -> tuple[Any, Any]:
        gradient = jax.value_and_grad(loss_fn, has_aux=True)
        (_, (batch_stats, out)), grads = gradient(state.params, state, against, *given)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = dict(out.metrics, **spread(out.push_values), loss=out.loss, grad_norm=optax.tree.norm(grads))
        return state._replace(params=params, batch_stats=batch_stats, opt_state=opt_state), (metrics, out)

    def train_step(state: Any, batch: Batch) -> tuple[Any, dict[str, jax.Array]]:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), state.step), num_micro)
        bank = negatives(state)
        micro = functools.partial(micro_step, dict(queue=bank, temperature=temperature(state.updates, state.queue)))
        if num_micro == 1:
            new, (metrics, out) = micro(state, (batch, keys[0]))
        else:
            new, (metrics, out) = jax.lax.scan(micro, state, (jax.tree.map(split, batch), keys))
            metrics = jax.tree.map(lambda values: jnp.mean(values, axis=0), metrics)
        finite = jnp.isfinite(metrics["loss"] + metrics["grad_norm"] + optax.tree.norm(new.params))
        queue = state.queue and queues.push(state.queue, merge(out.push_values), merge(out.push_groups))
        target = state.target
        if method.target and target_decay is not None:
            target = ema(target, method.target(new.params), target_decay(state.updates))
        new = new._replace(queue=queue, target=target, updates=state.updates + 1)
        new = jax.tree.map(lambda after, before: jnp.where(finite, after, before), new, state)
        metrics["learning_rate"] = learning_rate(state.updates)
        metrics["skipped"] = state.step + 1 - new.updates
        if queue is not None:
            metrics["queue_fill"] = new.queue.filled / queue.values.shape[0]
            metrics["queue_rows"] = bank.filled
            metrics["queue_norm_min"], metrics["queue_norm_max"] = queues.norms(new.queue)
        return new._replace(step=state.step + 1), metrics

    def negatives(state: Any) -> Any:
        length = state.queue_rows if queue_length is None else queue_length(state.updates)
        bank = state.queue if length is None else queues.newest(state.queue, length)
        if queue_sample is None:
            return bank
        key = jax.random.fold_in(jax.random.key(seed), DRAW)
        return queues.drawn(bank, jax.random.fold_in(key, state.step), queue_sample)

    def split(x: jax.Array) -> jax.Array:
        return jnp.swapaxes(x.reshape(x.shape[0] // num_micro, num_micro, *x.shape[1:]), 0, 1)

    def merge(x: jax.Array) -> jax.Array:
        return x if num_micro == 1 else jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])

    return train_step
