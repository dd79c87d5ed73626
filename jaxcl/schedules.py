"""Values that change over a run, as functions of the real updates so far; traced, so that one program runs them all.

Temperature, decay and queue length are at their end in the last step, number T − 1 of T. The learning rate would waste
that step: it is 0 only after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxcl.config import LossConfig, OptimConfig, QueueConfig, TargetConfig

Temperature = Callable[[Any, Any], Any]  # of real updates so far and the queue
# of the way that is left: 1 at step 0, 0 from step `steps` on
SHAPES = {
    "linear": lambda steps: optax.linear_schedule(1.0, 0.0, steps),
    "cosine": lambda steps: optax.cosine_decay_schedule(1.0, steps),
}
# exponents of batch / 256: with the one a step is as long as the small ones that it replaces (Goyal et al. 2017), with
# the other its noise has the same variance (Krizhevsky 2014)
SCALES = {"linear": 1.0, "sqrt": 0.5}


def make_schedule(shape: str, start: float, end: float, *, total_steps: int) -> optax.Schedule:
    """From one value to another over a run.

      left · start + (1 − left) · end,  left = 1 − t/(T−1) (linear) or (1 + cos(π t/(T−1)))/2 (cosine)

    Args:
        shape: "constant", "linear" or "cosine".
        start: value of the first step, t = 0.
        end: value of the last one, t = T − 1; not read with "constant".
        total_steps: T.

    Returns:
        From the number of real updates so far, which may be traced, to the value of the next one.

    >>> [round(float(make_schedule("linear", 0.5, 0.1, total_steps=5)(t)), 6) for t in (0, 1, 4, 5)]
    [0.5, 0.4, 0.1, 0.1]
    """
    if shape == "constant":
        return optax.constant_schedule(start)
    left = SHAPES[shape](max(total_steps - 1, 1))
    return lambda updates: left(updates) * start + (1 - left(updates)) * end


def make_temperature(config: LossConfig, *, total_steps: int) -> Temperature:
    """Temperature of the loss, by real update; or by the queue's pointer.

      queue_pointer: start + (end − start) · cursor/K

    is the "dynamic temperature" of a report on MoCo, 0.2 + 0.8 · cursor/K, and wrong: the cursor of a ring says nothing
    of progress. Every K/batch steps the temperature falls back to its start: a saw-tooth whose period is two other
    settings, and a constant where the batch is a multiple of the queue. It is here to be compared with.

    Args:
        config: temperature of the first step, of the last one, and the schedule between.
        total_steps: real updates of the run.

    Returns:
        From the number of real updates so far and the queue, which only queue_pointer reads, to a temperature.

    >>> config = LossConfig(temperature=0.5, temperature_end=0.1, temperature_schedule="cosine")
    >>> round(float(make_temperature(config, total_steps=11)(5, None)), 6)
    0.3
    """
    start = config.temperature
    end = start if config.temperature_end is None else config.temperature_end
    if config.temperature_schedule == "queue_pointer":
        return lambda _, queue: start + (end - start) * queue.cursor / queue.groups.shape[0]
    by_update = make_schedule(config.temperature_schedule, start, end, total_steps=total_steps)
    return lambda updates, _: by_update(updates)


def make_decay(config: TargetConfig, *, total_steps: int) -> optax.Schedule:
    """Decay of a momentum encoder, by real update; cosine towards 1 is that of BYOL (Grill et al. 2020).

      from_zero: decay · (1 − cos(π t/(T−1)))/2

    is the "dynamic momentum" of a report on MoCo, in which it starts at 0, and wrong: early on, when the student
    changes fastest, the momentum encoder is its copy. A queue then holds keys of encoders that have little in common,
    which is what the momentum encoder was to prevent, and a method without negatives predicts itself. The report
    leaves open how the decay rises; here as a cosine. It is here to be compared with.

    Args:
        config: decay of the first step, of the last one, and the schedule between.
        total_steps: real updates of the run.

    Returns:
        From the number of real updates so far to a decay in [0, 1].

    >>> round(float(make_decay(TargetConfig(decay=0.9, schedule="cosine"), total_steps=11)(5)), 6)
    0.95
    """
    if config.schedule == "from_zero":
        return make_schedule("cosine", 0.0, config.decay, total_steps=total_steps)
    end = 1.0 if config.decay_end is None else config.decay_end
    return make_schedule(config.schedule, config.decay, end, total_steps=total_steps)


def make_queue_length(config: QueueConfig, *, total_steps: int) -> optax.Schedule | None:
    """How many of the newest rows of a queue count, by real update.

    Args:
        config: rows that count in the first step, all rows, and the schedule between.
        total_steps: real updates of the run.

    Returns:
        From the number of real updates so far to a number of rows, int32; None: all of them, always.

    >>> length = make_queue_length(QueueConfig(size=100, start=20, schedule="linear"), total_steps=5)
    >>> [int(length(t)) for t in range(5)]
    [20, 40, 60, 80, 100]
    """
    if config.schedule == "constant" or config.start is None:
        return None
    rows = make_schedule(config.schedule, config.start, config.size, total_steps=total_steps)
    return lambda updates: jnp.round(rows(updates)).astype(jnp.int32)


def make_learning_rate(config: OptimConfig, *, batch_size: int, total_steps: int) -> optax.Schedule:
    """Linear warm-up from 0 to the peak, then half a cosine or a line to 0.

      peak = base_lr · batch / 256 (Goyal et al. 2017), or base_lr · √(batch / 256) with the square-root rule

    Args:
        config: base learning rate, warm-up, rule of scale and schedule.
        batch_size: images a real update, over all devices.
        total_steps: real updates of the run.

    Returns:
        A function of the number of finished real updates (0 for the first), which may be traced.

    >>> rate = make_learning_rate(OptimConfig(base_lr=0.1, warmup_steps=2), batch_size=512, total_steps=10)
    >>> [round(float(rate(step)), 6) for step in (0, 1, 2, 6, 10)]
    [0.0, 0.1, 0.2, 0.1, 0.0]
    """
    peak = config.base_lr * (batch_size / 256) ** SCALES[config.scale_rule]
    warmup = config.warmup_steps
    left = SHAPES[config.schedule](max(total_steps - warmup, 1))

    def learning_rate(step: Any) -> Float[Array, ""]:
        return peak * jnp.where(step < warmup, step / max(warmup, 1), left(step - warmup))

    return learning_rate
