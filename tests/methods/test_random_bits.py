"""Shared random bits compete with the image: Chen, Luo and Li, "Intriguing Properties of Contrastive Losses" (2021).

Each image carries random bits in channels of their own, the same in both of its views. They tell images apart as well
as what an image shows, and are easier to read: an embedding that has learned them knows nothing of the image. A low
temperature, whose gradient keeps coming from the hardest negatives, survives more of them.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcl.augment import augment, normalize
from jaxcl.config import AugmentConfig, Config, DataConfig, ModelConfig, OptimConfig
from jaxcl.data import open_source
from jaxcl.data.crops import random_views, view_draws
from jaxcl.data.fashion_mnist import DEBIAN_FOLDER
from jaxcl.methods import find
from jaxcl.models import make_encoder, make_head
from jaxcl.optim import make_optimizer
from jaxcl.probes import probe
from jaxcl.schedules import make_learning_rate
from jaxcl.state import make_init_state
from jaxcl.step import make_train_step

STEPS, BATCH, SIDE, CHANCE = 60, 256, 28, 0.1
AUGMENT = AugmentConfig(crop_scale_min=0.5, brightness=0.2, contrast=0.2, blur_prob=0.0)


@functools.cache
def images(split, count):
    source = getattr(open_source(DataConfig(name="fashion_mnist")), split)
    records = [source[i] for i in range(count)]
    numbers = (np.array([getattr(record, part) for record in records], np.int32) for part in ("label", "id"))
    return np.stack([record.image for record in records]), *numbers


def with_bits(images, ids, bits):
    """[B, …, C] with the bits of each image behind its channels, −1 or 1 everywhere."""
    draw = jax.vmap(lambda i: jax.random.rademacher(jax.random.fold_in(jax.random.key(3), i), (bits,), jnp.float32))
    drawn = draw(ids).reshape(len(ids), *(1,) * (images.ndim - 2), bits)
    return jnp.concatenate([images, jnp.broadcast_to(drawn, (*images.shape[:-1], bits))], axis=-1)


@functools.cache
def accuracy(bits, temperature):
    """Of a linear probe of the embedding, after a short training on 6,000 images."""
    model, optim = ModelConfig(head_hidden=256, head_dim=64), OptimConfig(base_lr=1e-2, warmup_steps=5)
    networks, schedule = {"encoder": make_encoder(model), "head": make_head(model)}, dict(batch_size=BATCH)
    method = find("simclr")(networks=networks, config=Config(model=model))
    optimizer = make_optimizer(optim, **schedule, total_steps=STEPS, num_micro=1)

    def prepare(batch):
        views = augment(jax.random.key(0), batch["views"], batch["id"], batch["epoch"], config=AUGMENT)
        return with_bits(normalize(jnp.swapaxes(views, 0, 1), 0.5, 0.25), batch["id"], bits)

    shape = (2, 2, SIDE, SIDE, 1 + bits)
    init = make_init_state(method, optimizer, views_shape=shape, queue_size=0, queue_dim=64, queue_dtype="float16")
    rate = make_learning_rate(optim, **schedule, total_steps=STEPS)
    step = jax.jit(make_train_step(method, optimizer, prepare, learning_rate=rate, temperature=lambda *_: temperature))
    state, (pixels, labels, ids) = jax.jit(init)(jax.random.key(0)), images("train", 6000)
    rng = np.random.default_rng(0)
    for number in range(STEPS):
        at = rng.permutation(len(ids))[:BATCH]
        draws = view_draws(0, number, ids[at])
        views = np.stack([random_views(pixels[i], draws[j], SIDE, config=AUGMENT) for j, i in enumerate(at)])
        epoch = np.full(BATCH, number, np.int32)
        state, _ = step(state, {"views": views, "id": ids[at], "label": labels[at], "epoch": epoch})

    @jax.jit
    def embed(pixels, ids):
        seen = with_bits(normalize(pixels.astype(jnp.float32) / 255, 0.5, 0.25), ids, bits)[:, None]
        return method.embed(jax.random.key(0), state.params, state.batch_stats, None, seen, train=False)[0][:, 0]

    held, answers, held_ids = images("test", 2000)
    sets = np.asarray(embed(pixels, ids)), labels, np.asarray(embed(held, held_ids)), answers
    return probe(*sets, knn_k=20, knn_temperature=0.07, linear_steps=60, seed=0).linear_top1


@pytest.mark.slow(reason="four trainings of 60 steps")
@pytest.mark.skipif(not Path(DEBIAN_FOLDER).is_dir(), reason="Fashion-MNIST is not installed")
def test_accuracy_falls_to_chance_as_shared_bits_grow_and_a_low_temperature_survives_more_of_them():
    none, some, many = accuracy(0, 0.2), accuracy(8, 0.05), accuracy(24, 0.05)
    assert none > 0.7
    assert none - 0.1 > some > 0.4
    assert many < CHANCE + 0.1
    assert accuracy(8, 0.2) < CHANCE + 0.1
