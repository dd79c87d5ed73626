"""What every kind of step shares: its key and negatives before the loss, and one real update after the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxcl import lora
from jaxcl import queue as queues
from jaxcl.methods.base import Method, Objective
from jaxcl.optim import ema
from jaxcl.scaling import next_scale, overflowed
from jaxcl.spread import spread

DRAW = 2**32 - 1  # no step has this number, whose keys are the others


def problem_keys(seed: int, step: Any, count: int) -> jax.Array:
    """A key for each contrastive problem of a step.

    Args:
        seed: of the run.
        step: batches seen.
        count: contrastive problems of a real update.

    Returns:
        [count] keys.

    >>> problem_keys(0, 7, 2).shape
    (2,)
    """
    return jax.random.split(jax.random.fold_in(jax.random.key(seed), step), count)


def make_negatives(
    *, seed: int, queue_length: optax.Schedule | None, queue_sample: int | None
) -> Callable[[Any], queues.Queue | None]:
    """The function from a state to the part of its queue that counts in this step.

    Args:
        seed: of the run.
        queue_length: newest rows that count, by real update; None: as many as the state says, or all.
        queue_sample: rows drawn from these at random, anew at each step; None: all.

    Returns:
        `negatives(state) -> Queue`, or None where the state has none.
    """

    def negatives(state: Any) -> queues.Queue | None:
        length = state.queue_rows if queue_length is None else queue_length(state.updates)
        bank = state.queue if length is None else queues.newest(state.queue, length)
        if queue_sample is None:
            return bank
        key = jax.random.fold_in(jax.random.key(seed), DRAW)
        return queues.drawn(bank, jax.random.fold_in(key, state.step), queue_sample)

    return negatives


def metrics_of(out: Objective) -> dict[str, jax.Array]:
    """What to log of one contrastive problem.

    Args:
        out: its objective.

    Returns:
        Scalars by name.
    """
    return dict(out.metrics, **spread(out.push_values), loss=out.loss)


def gradient_metrics(state: Any, loss: Any, grads: Any) -> dict[str, jax.Array]:
    """What to log of a gradient, and whether a smaller factor of the loss may make it finite.

    Args:
        state: with the factor, or without one.
        loss: that it is the gradient of.
        grads: of the parameters.

    Returns:
        "grad_norm", and with a factor "overflow", 1 or 0.
    """
    norm = optax.tree.norm(grads)
    if state.loss_scale is None:
        return {"grad_norm": norm}
    return {"grad_norm": norm, "overflow": overflowed(state.loss_scale, loss, norm).astype(jnp.float32)}


def networks_of(method: Method, params: Any, frozen: Any, target: Any) -> tuple[Any, Any]:
    """Parameters and target as `Method.embed` takes them: frozen ones, which both may share, stand beside them.

    Args:
        method: whose target may be a momentum encoder, or a teacher's variables.
        params: that are trained.
        frozen: `TrainState.frozen`.
        target: `TrainState.target`.

    Returns:
        Both, the same ones where nothing is frozen.
    """
    return lora.joined(params, frozen), lora.joined(target, frozen) if method.target else target


def descend(optimizer: optax.GradientTransformation, state: Any, grads: Any, batch_stats: Any) -> Any:
    """One step of the optimizer.

    Args:
        optimizer: of the run.
        state: before it.
        grads: of its parameters.
        batch_stats: after the forward pass.

    Returns:
        The state with new parameters, batch statistics and optimizer state.
    """
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    return state._replace(
        params=optax.apply_updates(state.params, updates), batch_stats=batch_stats, opt_state=opt_state
    )


def make_finish(
    method: Method,
    *,
    learning_rate: optax.Schedule,
    target_decay: optax.Schedule | None,
    loss_scale_steps: int = 2000,
) -> Callable[..., tuple[Any, dict[str, jax.Array]]]:
    """The end of a step: momentum encoder and queue, each once a real update, and nothing at all if it is not finite.

    Args:
        method: with or without a momentum encoder.
        learning_rate: for the log, by real update.
        target_decay: of the momentum encoder, by real update; needed where the method has one.
        loss_scale_steps: finite steps in a row after which the factor of the loss doubles, where it has one.

    Returns:
        `finish(state, new, metrics, push_values, push_groups) -> (state, metrics)`, from the state before the step, the
        one after the optimizer, metrics with "loss" and "grad_norm", and what a queue receives, [B, D] and [B]. A
        step with a non-finite loss, gradient or parameter changes nothing but `step` and the factor of the loss.

    Raises:
        ValueError: a method with a momentum encoder, and no `target_decay` to move it by.
    """
    if method.target and target_decay is None:
        raise ValueError("target_decay=None, but the method has a momentum encoder, which would never move")

    def finish(state: Any, new: Any, metrics: dict[str, Any], push_values: Any, push_groups: Any) -> tuple[Any, Any]:
        finite = jnp.isfinite(metrics["loss"] + metrics["grad_norm"] + optax.tree.norm(new.params))
        queue = state.queue and queues.push(state.queue, push_values, push_groups, when=finite)
        target = state.target
        if method.target and target_decay is not None:
            target = ema(target, method.target(new.params), target_decay(state.updates))
        new = new._replace(target=target, updates=state.updates + 1)
        moved = (x._replace(frozen=None, queue=None) for x in (new, state))
        new = jax.tree.map(lambda after, before: jnp.where(finite, after, before), *moved)._replace(queue=queue)
        metrics = dict(metrics, learning_rate=learning_rate(state.updates), skipped=state.step + 1 - new.updates)
        if state.loss_scale is not None:
            overflow = metrics["overflow"] > 0
            scale = next_scale(state.loss_scale, finite=finite, overflow=overflow, patience=loss_scale_steps)
            new = new._replace(loss_scale=scale)
            metrics |= {"loss_scale": state.loss_scale.factor, "overflow": overflow.astype(jnp.float32)}
        if queue is not None:
            metrics["queue_fill"] = new.queue.filled / queue.values.shape[0]
            metrics["queue_norm_min"], metrics["queue_norm_max"] = queues.norms(new.queue)
        return new._replace(step=state.step + 1, frozen=state.frozen), metrics

    return finish
