"""The pure train step: views, loss, gradient, update, queue push, metrics."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxcl.methods.base import Method
from jaxcl.scaling import scaled, unscaled
from jaxcl.update import descend, gradient_metrics, make_finish, make_negatives, metrics_of, networks_of, problem_keys

Batch = dict[str, Any]


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
    loss_scale_steps: int = 2000,
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
        loss_scale_steps: finite steps in a row after which the factor of the loss doubles, where the state has one.

    Returns:
        `train_step(state, batch) -> (state, metrics)`; metrics are scalars.

    Raises:
        ValueError: a method with a momentum encoder, and no `target_decay` to move it by.
    """
    negatives = make_negatives(seed=seed, queue_length=queue_length, queue_sample=queue_sample)
    finish = make_finish(
        method, learning_rate=learning_rate, target_decay=target_decay, loss_scale_steps=loss_scale_steps
    )

    def loss_fn(params: Any, state: Any, against: dict[str, Any], batch: Batch, key: Any) -> tuple[jax.Array, Any]:
        keys, (params, target) = jax.random.split(key), networks_of(method, params, state.frozen, state.target)
        embeddings, batch_stats = method.embed(keys[0], params, state.batch_stats, target, prepare(batch), train=True)
        out = method.objective(keys[1], embeddings, batch["id"], batch["label"], **against)
        return scaled(out.loss, state.loss_scale), (batch_stats, out)

    def micro_step(against: dict[str, Any], state: Any, given: tuple[Batch, jax.Array]) -> tuple[Any, Any]:
        gradient = jax.value_and_grad(loss_fn, has_aux=True)
        (_, (batch_stats, out)), grads = gradient(state.params, state, against, *given)
        grads = unscaled(grads, state.loss_scale)
        metrics = {**metrics_of(out), **gradient_metrics(state, out.loss, grads)}
        if num_micro > 1 and "overflow" in metrics:  # the step is skipped, but the other micro-batches have a loss
            grads = jax.tree.map(lambda g: jnp.where(metrics["overflow"] > 0, 0, g), grads)
        return descend(optimizer, state, grads, batch_stats), (metrics, out)

    def train_step(state: Any, batch: Batch) -> tuple[Any, dict[str, jax.Array]]:
        keys, bank = problem_keys(seed, state.step, num_micro), negatives(state)
        micro = functools.partial(micro_step, dict(queue=bank, temperature=temperature(state.updates, state.queue)))
        if num_micro == 1:
            new, (metrics, out) = micro(state, (batch, keys[0]))
        else:
            new, (metrics, out) = jax.lax.scan(micro, state, (jax.tree.map(split, batch), keys))
            metrics = jax.tree.map(lambda values: jnp.mean(values, axis=0), metrics)
        if bank is not None:
            metrics["queue_rows"] = bank.filled
        return finish(state, new, metrics, merge(out.push_values), merge(out.push_groups))

    def split(x: jax.Array) -> jax.Array:
        return jnp.swapaxes(x.reshape(x.shape[0] // num_micro, num_micro, *x.shape[1:]), 0, 1)

    def merge(x: jax.Array) -> jax.Array:
        return x if num_micro == 1 else jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])

    return train_step
