"""The alarms in runs that really go wrong: the cause is in the data, the state or a setting, never in the log."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE

from jaxcl import methods
from jaxcl import queue as queues
from jaxcl.config import Config, LossConfig, ModelConfig, OptimConfig, QueueConfig
from jaxcl.models import make_head
from jaxcl.optim import make_optimizer
from jaxcl.report.health import ALARMS, Health
from jaxcl.schedules import make_learning_rate
from jaxcl.state import make_init_state
from jaxcl.step import make_train_step

STEPS, EVERY, WARMUP, CLIP = 120, 4, 10, 1.0
BATCH, SIDE, DIM, ROWS = 64, 4, 32, 128
MANY = BATCH * STEPS + 1  # rows of which half the steps fill less than half
TINY = 1e-6  # a learning rate that leaves the encoder as it was


class Encoder(nn.Module):
    """One layer."""

    @nn.compact
    def __call__(self, images, train=False):
        return nn.relu(nn.Dense(16)(images.reshape(images.shape[0], -1)))


@functools.cache  # most runs share a program
def program(temperature, norm, rate, rows):
    head = make_head(ModelConfig(head_hidden=16, head_dim=DIM, head_norm=norm, head_norm_out=norm))
    config = Config(loss=LossConfig(impl="dense", temperature=temperature), queue=QueueConfig(size=rows))
    method = methods.find("simclr")(networks={"encoder": Encoder(), "head": head}, config=config, mesh=None)
    optim = OptimConfig(name="sgd", base_lr=rate, warmup_steps=WARMUP, clip_norm=CLIP)
    schedule = dict(batch_size=BATCH, total_steps=STEPS)
    optimizer = make_optimizer(optim, **schedule, num_micro=1)
    init = make_init_state(
        method, optimizer, views_shape=(2, 2, SIDE, SIDE, 3), queue_size=rows, queue_dim=DIM, queue_dtype="float32"
    )
    step = make_train_step(
        method,
        optimizer,
        lambda batch: batch["views"],
        learning_rate=make_learning_rate(optim, **schedule),
        temperature=lambda *_: temperature,
    )
    fast = functools.partial(jax.jit, compiler_options=FAST_COMPILE)
    return fast(init)(jax.random.key(0)), fast(step)


def a_full_queue(scale=1.0, rows=ROWS):
    key, none = jax.random.key(9), queues.init(rows, DIM, jnp.float32)
    full = queues.push(none, jax.random.normal(key, (rows, DIM)), jnp.full(rows, 10**6))
    return full._replace(values=scale * full.values)


def pictures(rng):
    """Two noisy views of each of some images."""
    images = rng.normal(size=(BATCH, 1, SIDE, SIDE, 3))
    return images + 0.1 * rng.normal(size=(BATCH, 2, SIDE, SIDE, 3))


def copies(rng):
    """The same view twice."""
    return np.repeat(rng.normal(size=(BATCH, 1, SIDE, SIDE, 3)), 2, axis=1)


def one_picture(rng):
    return np.ones((BATCH, 2, SIDE, SIDE, 3))


def one_brightness(rng):
    """Images that differ in how bright they are, one half in the negative."""
    pattern = np.random.default_rng(5).normal(size=(SIDE, SIDE, 3))
    return rng.choice([-1.0, 1.0], size=(BATCH, 1, 1, 1, 1)) * rng.uniform(0.9, 1.1, (BATCH, 2, 1, 1, 1)) * pattern


def unrelated_views(rng):
    return rng.normal(size=(BATCH, 2, SIDE, SIDE, 3))


def alarms(views=pictures, queue=None, temperature=0.2, norm=False, rate=1.0, same=False):
    """The names of those that speak in a run of 120 steps, logged as the loop logs it."""
    queue = a_full_queue() if queue is None else queue
    state, step = program(temperature, norm, rate, queue.groups.size)
    state = state._replace(queue=queue)
    health, rng, said = Health(steps=STEPS, warmup=WARMUP, clip_norm=CLIP), np.random.default_rng(0), []
    for number in range(1, STEPS + 1):
        ids = jnp.zeros(BATCH, jnp.int32) if same else jnp.arange(BATCH, dtype=jnp.int32) + BATCH * number
        state, metrics = step(state, {"views": jnp.float32(views(rng)), "id": ids, "label": jnp.full(BATCH, -1)})
        if number % EVERY == 0:
            said += health.look(number, {name: float(value) for name, value in metrics.items()})
    return {alarm.name for alarm in ALARMS for text in said if text.split(": ", 1)[1].startswith(alarm.says[:20])}


@pytest.mark.parametrize("norm", [False, True])
def test_a_run_that_learns_is_left_in_peace(norm):
    assert alarms(norm=norm) == set()


def an_empty_queue(rows):
    return queues.init(rows, DIM, jnp.float32)


CAUSES = {
    "rows of a queue that were never normalised": (dict(queue=a_full_queue(2.0, 10 * BATCH)), {"queue norms"}),
    "a queue that the run will never fill": (dict(queue=an_empty_queue(MANY)), {"queue fill"}),
    "views that have nothing in common": (dict(views=unrelated_views, norm=True, rate=TINY), {"alignment"}),
    # an encoder that learns makes such views agree in the easiest way: all of them become one
    "such views and an encoder that learns": (dict(views=unrelated_views), {"collapse", "uniformity", "stuck"}),
    "images that differ in one number": (dict(views=one_brightness), {"rank"}),
    "a temperature that makes gradients explode": (
        dict(views=unrelated_views, norm=True, rate=TINY, temperature=1e-3),
        {"alignment", "clipping"},
    ),
    "views that are copies, and a temperature that asks for no more": (
        dict(views=copies, norm=True, rate=TINY, temperature=1e-4),
        {"no gradient"},
    ),
    "images that are all one": (
        dict(views=one_picture, rate=TINY, queue=an_empty_queue(ROWS)),
        {"stuck", "collapse", "uniformity"},
    ),
    "images that all count as one": (
        dict(same=True, queue=an_empty_queue(ROWS)),
        {"no negatives", "collapse", "uniformity"},
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_planted_cause_is_named_and_nothing_else(cause):
    planted, names = CAUSES[cause]
    assert alarms(**planted) == names


def test_every_alarm_is_planted():
    assert set().union(*(names for _, names in CAUSES.values())) == {alarm.name for alarm in ALARMS}
