import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE

from jaxcl import methods
from jaxcl import queue as queues
from jaxcl.config import Config, ConfigError, LossConfig, ModelConfig
from jaxcl.models import make_encoder, make_head

SMALL = ModelConfig(head_hidden=24, head_dim=8)


def simclr(**loss):
    networks = {"encoder": make_encoder(SMALL), "head": make_head(SMALL)}
    return methods.find("simclr")(networks=networks, config=Config(loss=LossConfig(**loss)))


def objective_of(method, embeddings, ids, queue=None):
    """The objective at temperature 0.5, compiled as one program."""
    compiled = jax.jit(method.objective, compiler_options=FAST_COMPILE)
    return compiled(jax.random.key(0), embeddings, jnp.asarray(ids, jnp.int32), None, queue=queue, temperature=0.5)


@pytest.fixture(scope="module")
def variables():
    return jax.jit(simclr().init, compiler_options=FAST_COMPILE)(jax.random.key(0), views_of())


def views_of(images=6, seed=0):
    return jax.random.normal(jax.random.key(seed), (images, 2, 16, 16, 3))


def nt_xent(embeddings, temperature):
    """Equation 1 of the SimCLR paper, view by view."""
    z = np.asarray(embeddings, np.float64).reshape(-1, embeddings.shape[-1])
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    scores, losses = z @ z.T / temperature, []
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i]
        losses.append(np.log(np.sum(np.exp(scores[i, others]))) - scores[i, i ^ 1])
    return np.mean(losses)


@pytest.mark.parametrize("impl", ["strip", "dense"])
def test_with_all_negatives_it_is_nt_xent(impl):
    embeddings = jax.random.normal(jax.random.key(1), (7, 2, 5))
    out = objective_of(simclr(impl=impl), embeddings, range(7))
    np.testing.assert_allclose(out.loss, nt_xent(embeddings, 0.5), rtol=1e-6)
    assert float(out.metrics["negatives_per_anchor"]) == pytest.approx(12)


def test_the_queue_receives_the_first_view_of_each_image_under_its_id():
    embeddings = jax.random.normal(jax.random.key(1), (5, 2, 8))
    ids = jnp.array([9, 4, 7, 1, 3], jnp.int32)
    out = objective_of(simclr(), embeddings, ids)
    np.testing.assert_array_equal(out.push_values, embeddings[:, 0])
    np.testing.assert_array_equal(out.push_groups, ids)


def test_the_queue_adds_negatives_but_never_an_images_own_earlier_embedding():
    embeddings = jax.random.normal(jax.random.key(1), (5, 2, 8))
    ids = jnp.arange(5, dtype=jnp.int32)
    bank = queues.push(queues.init(8, 8), embeddings[:3, 0], jnp.array([0, 50, 51], jnp.int32))
    out = objective_of(simclr(), embeddings, ids, bank)
    assert float(out.metrics["negatives_per_anchor"]) == pytest.approx((2 * (8 + 2) + 8 * (8 + 3)) / 10)


def test_no_gradient_reaches_the_queue():
    embeddings = jax.random.normal(jax.random.key(1), (5, 2, 8))
    bank = queues.push(queues.init(8, 8, dtype=jnp.float32), embeddings[:3, 1], jnp.arange(50, 53, dtype=jnp.int32))

    def loss(values):
        ids = jnp.arange(5, dtype=jnp.int32)
        queue = bank._replace(values=values)
        return simclr().objective(jax.random.key(0), embeddings, ids, None, queue=queue, temperature=0.5).loss

    assert not jax.jit(jax.grad(loss), compiler_options=FAST_COMPILE)(bank.values).any()


def test_top_k_bounds_the_negatives_that_count():
    embeddings = jax.random.normal(jax.random.key(1), (7, 2, 5))
    out = objective_of(simclr(top_k=3), embeddings, range(7))
    assert float(out.metrics["negatives_per_anchor"]) == pytest.approx(3)
    assert 0 < float(out.metrics["tail_mass"]) < 1


def test_identical_views_far_from_all_others_are_always_told_apart():
    corners = jnp.eye(6)[:, None, :].repeat(2, axis=1)
    out = objective_of(simclr(), corners, range(6))
    assert float(out.metrics["contrastive_accuracy"]) == 1.0
    np.testing.assert_allclose(out.metrics["positive_cosine"], 1.0, rtol=1e-5)
    np.testing.assert_allclose(out.metrics["hardest_cosine"], 0.0, atol=1e-6)


def test_training_updates_statistics_of_encoder_and_head_and_evaluation_does_not(variables):
    params, stats = variables["params"], variables["batch_stats"]
    assert set(params) == {"encoder", "head"}

    def statistics(views):
        return [simclr().embed(None, params, stats, None, views, train=train)[1] for train in (True, False)]

    trained, evaluated = jax.jit(statistics, compiler_options=FAST_COMPILE)(views_of())
    jax.tree.map(np.testing.assert_array_equal, evaluated, stats)
    assert all(not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (trained, stats)), strict=True))


def test_features_are_the_encoders_output_before_the_head(variables):
    def total(params):
        features = simclr().features(params, variables["batch_stats"], views_of()[:, 0])
        return features.sum(), features

    gradient = jax.jit(jax.grad(total, has_aux=True), compiler_options=FAST_COMPILE)
    grads, features = gradient(variables["params"])
    assert features.shape == (6, 512)
    assert not any(leaf.any() for leaf in jax.tree.leaves(grads["head"]))
    assert any(leaf.any() for leaf in jax.tree.leaves(grads["encoder"]))


def test_an_unknown_method_is_named_with_the_nearest_known_one():
    with pytest.raises(ConfigError, match="method = 'simclear' is unknown; did you mean 'simclr'"):
        methods.find("simclear")
