"""Small steps whose images wait on the host, with optimizer and queue there too or not."""

import functools

import flax.linen as nn
import jax
import numpy as np

from jaxcl import hostqueue, methods
from jaxcl.blockwise import make_blockwise
from jaxcl.build import make_first_state
from jaxcl.cached import make_programs
from jaxcl.config import BatchConfig, Config, LossConfig, ModelConfig, OptimConfig, QueueConfig, TargetConfig
from jaxcl.hosted import HostedStep
from jaxcl.mesh import make_mesh
from jaxcl.models import make_head
from jaxcl.optim import make_optimizer
from jaxcl.portions import Portions
from jaxcl.state import make_init_state, state_shardings

IMAGES, MICRO, SIDE, DIM = 10, 4, 3, 6


class Encoder(nn.Module):
    """One layer."""

    @nn.compact
    def __call__(self, images, train=False):
        return nn.Dense(7)(images.reshape(images.shape[0], -1))


class Run:
    """A hosted step and a first state; `rows` of a block: the queue is on the host."""

    def __init__(
        self,
        optimizer="adamw",
        *,
        offload=False,
        devices=1,
        method="simclr",
        queue=0,
        rows=None,
        dtype="float32",
        **loss,
    ):
        mesh, images = make_mesh(devices), IMAGES
        networks = {"encoder": Encoder(), "head": make_head(ModelConfig(head_hidden=5, head_dim=DIM, head_norm=False))}
        config = Config(
            method=method,
            loss=LossConfig(**{"impl": "strip" if devices > 1 or queue else "dense", **loss}),
            queue=QueueConfig(size=queue, dtype=dtype),
            target=TargetConfig(key_splits=1),
            batch=BatchConfig(size=images, micro=MICRO, mode="cached", images="host"),
            steps=9,
        )
        self.method = methods.find(method)(networks=networks, config=config, mesh=mesh)
        settings = OptimConfig(name=optimizer, clip_norm=0.05, weight_decay=0.1, warmup_steps=1)
        rule = make_optimizer(settings, batch_size=images, total_steps=9)
        shapes = dict(views_shape=(2, 2, SIDE, SIDE, 3), queue_dim=DIM, queue_dtype=dtype)
        init = make_init_state(self.method, rule, queue_size=0 if rows else queue, **shapes)
        bank = functools.partial(hostqueue.init, queue, DIM, dtype, devices=devices, rows=rows) if rows else None
        shapes = jax.eval_shape(init, jax.random.key(0))
        shapes = shapes._replace(queue=jax.eval_shape(bank)) if bank else shapes
        self.shardings = state_shardings(shapes, mesh, offload=offload)
        self.like = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, self.shardings
        )
        first = make_first_state(init, self.shardings, None, bank=bank)
        self.first = lambda: first(0)
        portions = Portions(images, MICRO)
        given = dict(portions=portions, learning_rate=lambda _: 0.1, temperature=lambda *_: config.loss.temperature)
        given |= dict(target_decay=lambda _: 0.9)
        programs = make_programs(self.method, rule, lambda batch: batch["views"], **given)
        loss = make_blockwise(config, self.method, mesh=mesh, like=self.like) if bank else None
        self.step = HostedStep(programs, portions, mesh=mesh, like=self.like, bank=loss)

    def steps(self, state, first, last):
        for number in range(first, last):
            state, metrics = self.step(state, a_batch(number))
            assert jax.tree.map(lambda x: x.sharding, state) == self.shardings
        return state, metrics


a_run = functools.cache(Run)  # tests of one optimizer share its programs


def a_batch(number):
    views = np.random.default_rng(number).normal(size=(IMAGES, 2, SIDE, SIDE, 3)).astype(np.float32)
    ids = np.arange(IMAGES, dtype=np.int32) + 100 * number
    return {"views": views, "id": ids, "label": np.full_like(ids, -1)}


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def kinds(tree):
    return {x.sharding.memory_kind for x in jax.tree.leaves(tree) if x.ndim}
