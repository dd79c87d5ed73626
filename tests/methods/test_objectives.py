"""Losses of the methods against their papers' formulas, image by image."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE

from jaxcl import methods
from jaxcl import queue as queues
from jaxcl.config import Config, LossConfig, ModelConfig
from jaxcl.methods.parts.networks import Pair
from jaxcl.methods.supcon import UNLABELLED, groups_of
from jaxcl.models import make_encoder, make_head, make_predictor

SMALL = ModelConfig(head_hidden=8, head_dim=5)
IMAGES, IDS = 7, jnp.arange(7, dtype=jnp.int32)


def make(name, **loss):
    networks = {"encoder": make_encoder(SMALL), "head": make_head(SMALL), "predictor": make_predictor(SMALL)}
    return methods.find(name)(networks=networks, config=Config(loss=LossConfig(**loss)))


def objective_of(name, embeddings, labels=None, queue=None, temperature=0.4, **loss):
    """The objective of a method, compiled as one program."""
    compiled = jax.jit(make(name, **loss).objective, compiler_options=FAST_COMPILE)
    return compiled(jax.random.key(0), embeddings, IDS, labels, queue=queue, temperature=temperature)


def a_pair():
    student, teacher = (jax.random.normal(jax.random.key(seed), (IMAGES, 2, 5)) for seed in (1, 2))
    return Pair(student, teacher)


def unit(x):
    x = np.asarray(x, np.float64)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize("name", ["byol", "simsiam"])
def test_agreement_is_the_distance_of_unit_vectors_across_views(name):
    pair = a_pair()
    out = objective_of(name, pair)
    p, z = unit(pair.student), unit(pair.teacher)
    squares = ((p[:, 0] - z[:, 1]) ** 2).sum(1) + ((p[:, 1] - z[:, 0]) ** 2).sum(1)
    np.testing.assert_allclose(out.loss, np.mean(squares) / 2, rtol=1e-5)


@pytest.mark.parametrize("name", ["byol", "simsiam"])
def test_a_collapsed_encoder_agrees_with_itself(name):
    same = jnp.ones((IMAGES, 2, 5))
    out = objective_of(name, Pair(same, same))
    np.testing.assert_allclose(out.loss, 0, atol=1e-6)
    np.testing.assert_allclose(out.metrics["alignment"], 0, atol=1e-5)


def test_moco_v3_is_both_cross_entropies_times_twice_the_temperature():
    pair = a_pair()
    out = objective_of("moco_v3", pair)
    q, k, expected = unit(pair.student), unit(pair.teacher), 0.0
    for own in (0, 1):
        scores = q[:, own] @ k[:, 1 - own].T / 0.4
        expected += np.mean([np.log(np.sum(np.exp(row))) - row[i] for i, row in enumerate(scores)])
    np.testing.assert_allclose(out.loss, 2 * 0.4 * expected, rtol=1e-5)
    assert float(out.metrics["negatives_per_anchor"]) == pytest.approx(IMAGES - 1)


LABELS = jnp.array([0, 1, 0, -1, 1, -1, 0], jnp.int32)


def supcon_terms(embeddings):
    """Of each view: log-probabilities of its positives."""
    z = unit(embeddings).reshape(-1, 5)
    groups = np.repeat([f"{g}" if g >= 0 else f"image {i}" for i, g in enumerate(np.asarray(LABELS))], 2)
    scores = z @ z.T / 0.4
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i]
        total = np.log(sum(np.exp(scores[i, j]) for j in others))
        yield [scores[i, j] - total for j in others if groups[j] == groups[i]]


@pytest.mark.parametrize("impl", ["strip", "dense"])
def test_supcon_has_the_sum_outside_the_logarithm_and_leaves_unlabelled_images_to_themselves(impl):
    embeddings = jax.random.normal(jax.random.key(3), (IMAGES, 2, 5))
    out = objective_of("supcon", embeddings, LABELS, impl=impl)
    outside = np.mean([-np.mean(terms) for terms in supcon_terms(embeddings)])
    inside = np.mean([-np.log(np.mean(np.exp(terms))) for terms in supcon_terms(embeddings)])
    np.testing.assert_allclose(out.loss, outside, rtol=1e-5)
    assert abs(float(out.loss) - inside) > 1e-2


def test_without_any_label_supcon_is_simclr():
    embeddings = jax.random.normal(jax.random.key(3), (IMAGES, 2, 5))
    nothing = jnp.full(IMAGES, -1, jnp.int32)
    values = [objective_of(n, embeddings, nothing).loss for n in ("supcon", "simclr")]
    np.testing.assert_allclose(values[0], values[1], rtol=1e-6)


@pytest.mark.parametrize("name", ["simclr", "supcon"])
def test_both_directions_of_a_symmetric_loss_see_the_same_queue(name):
    embeddings = jax.random.normal(jax.random.key(4), (IMAGES, 2, 5))
    rows = jax.random.normal(jax.random.key(5), (9, 5))
    bank = queues.push(queues.init(9, 5, jnp.float32), rows, 100 + jnp.arange(9))
    both = objective_of(name, embeddings, LABELS, queue=bank)
    swapped = objective_of(name, embeddings[:, ::-1], LABELS, queue=bank)
    np.testing.assert_allclose(both.loss, swapped.loss, rtol=1e-5)
    z, q = unit(embeddings.reshape(-1, 5)) / 0.4, unit(rows)
    groups = np.repeat(np.asarray(groups_of(IDS, LABELS) if name == "supcon" else IDS), 2)
    losses = []
    for i in range(len(z)):  # either view of an image has all nine rows among its negatives
        partners = [j for j in range(len(z)) if groups[j] == groups[i] and j != i]
        others = [j for j in range(len(z)) if j != i]
        total = sum(np.exp(z[i] @ z[j] * 0.4) for j in others) + np.exp(z[i] @ q.T).sum()
        losses.append(np.mean([np.log(total) - z[i] @ z[j] * 0.4 for j in partners]))
    np.testing.assert_allclose(both.loss, np.mean(losses), rtol=1e-5)


def test_groups_of_labels_and_of_images_never_meet():
    groups = groups_of(jnp.array([0, 5, 2**31 - 1], jnp.int32), jnp.array([5, -1, -1], jnp.int32))
    assert groups.tolist()[:2] == [5, UNLABELLED + 5]
    assert groups.min() >= 0
