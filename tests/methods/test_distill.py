"""What a student is asked to say, and who is asked."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE

from jaxcl import methods
from jaxcl import queue as queues
from jaxcl.config import ConfigError, DistillConfig, resolve
from jaxcl.methods.base import Teacher

IMAGES, SIDE, WIDTH, DIM = 6, 2, 7, 4


class Linear(nn.Module):
    """Pixels times a matrix."""

    dim: int

    @nn.compact
    def __call__(self, x, train=False):
        del train
        return nn.Dense(self.dim, name="dense")(x.reshape(x.shape[0], -1))


NETWORKS = {"encoder": Linear(WIDTH), "head": Linear(DIM)}


def apply(variables, images):
    """What a teacher says, with a head or without."""
    said, x = {}, images
    for name, module in NETWORKS.items():
        if name in variables["params"]:
            said[name] = x = module.apply({"params": variables["params"][name]}, x)
    return said


@functools.cache  # tests of one method share its programs
def make(**settings):
    """A student like its teacher, and what it is asked of."""
    values = {"teacher": "somewhere", "teacher_temperature": 0.2, **settings}
    config = resolve({"method": "distill", "distill": values})
    return methods.find("distill")(networks=NETWORKS, config=config, teacher=Teacher(apply, WIDTH))


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


VIEWS = normal(0, IMAGES, 2, SIDE, SIDE, 3)
IDS = jnp.arange(IMAGES, dtype=jnp.int32)


@functools.cache
def variables_of(method, seed=0):
    return jax.jit(method.init, compiler_options=FAST_COMPILE)(jax.random.key(seed), VIEWS)


@functools.partial(jax.jit, static_argnums=0, compiler_options=FAST_COMPILE)
def taught(method, params, target, queue=None, temperature=0.2):
    """The objective of one batch."""
    lesson, _ = method.embed(jax.random.key(0), params, {name: {} for name in params}, target, VIEWS, train=True)
    return method.objective(jax.random.key(0), lesson, IDS, None, queue=queue, temperature=temperature)


def a_teacher(seed=1):
    variables = variables_of(make(), seed)
    return {"params": {name: variables["params"][name] for name in NETWORKS}, "batch_stats": {}}


def the_same(target):
    """Parameters of a student that says what this teacher says."""
    return target["params"] | {"map": {"dense": {"kernel": jnp.eye(WIDTH), "bias": jnp.zeros(WIDTH)}}}


def a_bank(filled, size=8):
    return queues.push(queues.init(size, DIM, jnp.float32), normal(3, filled, DIM), jnp.arange(50, 50 + filled))


def test_a_student_that_says_what_its_teacher_says_has_nothing_to_learn():
    target = a_teacher()
    out = taught(make(), the_same(target), target, a_bank(5))
    for value in (out.loss, out.metrics["feature_loss"], out.metrics["similarity_loss"]):
        assert float(value) == pytest.approx(0.0, abs=1e-5)
    assert float(out.metrics["positive_cosine"]) == pytest.approx(1.0)


def test_the_loss_is_the_weighted_sum_of_a_distance_of_unit_features_and_a_divergence():
    method, target = make(feature_weight=0.5, similarity_weight=3.0), a_teacher()
    params = variables_of(method)["params"]
    out = taught(method, params, target, a_bank(5), temperature=0.1)
    images = VIEWS.reshape(-1, SIDE, SIDE, 3)
    said, features = apply(target, images), apply({"params": params}, images)["encoder"]
    mapped = np.asarray(features @ params["map"]["dense"]["kernel"])
    cosines = np.sum(mapped * said["encoder"], axis=1) / np.linalg.norm(mapped, axis=1)
    expected = 2 - 2 * float(np.mean(cosines / np.linalg.norm(said["encoder"], axis=1)))
    assert float(out.metrics["feature_loss"]) == pytest.approx(expected, rel=1e-5)
    total = 0.5 * out.metrics["feature_loss"] + 3 * out.metrics["similarity_loss"]
    assert float(out.loss) == pytest.approx(float(total), rel=1e-6)


def test_a_queue_not_yet_filled_is_not_used():
    method, target = make(), a_teacher()
    params, bank = variables_of(method)["params"], a_bank(3)
    garbage = bank._replace(values=bank.values.at[3:].set(normal(4, 5, DIM)))
    assert float(taught(method, params, target, garbage).loss) == float(taught(method, params, target, bank).loss)
    without = taught(method, params, target, a_bank(3)._replace(filled=jnp.int32(0))).loss
    assert float(without) == pytest.approx(float(taught(method, params, target).loss), rel=1e-6)
    assert float(taught(method, params, target, bank).loss) != float(without)


def test_the_queue_receives_the_teachers_embeddings_of_one_view_of_each_image():
    target = a_teacher()
    out = taught(make(), variables_of(make())["params"], target)
    np.testing.assert_allclose(out.push_values, apply(target, VIEWS[:, 0])["head"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(out.push_groups, IDS)


@pytest.mark.parametrize(
    ("settings", "parts", "missing"),
    [
        ({"similarity_weight": 0.0}, {"encoder", "map"}, "similarity_loss"),
        ({"feature_weight": 0.0}, {"encoder", "head"}, "feature_loss"),
    ],
)
def test_a_loss_of_weight_zero_needs_no_parameters_and_every_part_that_is_there_learns(settings, parts, missing):
    method, target = make(**settings), a_teacher()
    params = variables_of(method)["params"]
    assert set(params) == parts
    if "head" not in parts:
        del target["params"]["head"]  # a teacher that is asked for features alone needs none either

    def loss(params, target):
        out = taught.__wrapped__(method, params, target)
        return out.loss, out.metrics

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True), compiler_options=FAST_COMPILE)
    (of_params, of_target), metrics = gradient(params, target)
    assert all(part["dense"]["kernel"].any() for part in of_params.values())
    assert not any(leaf.any() for leaf in jax.tree.leaves(of_target))
    assert missing not in metrics


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"distill": {}}, r"distill.teacher is empty; method = 'distill' needs the folder of a finished run"),
        (
            {"distill": {"teacher": "x", "feature_weight": 0.0, "similarity_weight": 0.0}},
            r"distill.feature_weight = 0.0 and distill.similarity_weight = 0.0: one must be above 0",
        ),
        (
            {"distill": {"teacher": "x", "similarity_weight": 0.0}, "queue": {"size": 8}},
            r"queue.size = 8 is read only with distill.similarity_weight above 0",
        ),
        (
            {"distill": {"teacher": "x", "similarity_weight": 0.0, "teacher_temperature": 3.0}},
            r"distill.teacher_temperature = 3.0 is read only with distill.similarity_weight above 0",
        ),
        (
            {
                "distill": {"teacher": "x", "similarity_weight": 0.0},
                "loss": {"temperature_schedule": "linear", "temperature_end": 0.3},
            },
            r"loss.temperature_end = 0.3, but method = 'distill' has distill.similarity_weight = 0",
        ),
        ({"distill": {"teacher": "x"}, "loss": {"top_k": 3}}, r"loss.top_k = 3, but method = 'distill' has no neg"),
        ({"distill": {"teacher": "x"}, "loss": {"impl": "column"}}, r"loss.impl = 'column', but method = 'distill'"),
        ({"method": "byol", "distill": {"teacher": "x"}}, r"distill.teacher = 'x', but method = 'byol' has no teacher"),
        ({"method": "simclr", "distill": {"feature_weight": 2}}, r"distill.feature_weight = 2.0, but .* no teacher"),
    ],
)
def test_what_cannot_teach_or_is_not_read_is_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        methods.check(resolve({"method": "distill", **settings}), has_labels=False)


def test_defaults_with_a_teacher_are_enough():
    methods.check(resolve({"method": "distill", "distill": {"teacher": "x"}, "queue": {"size": 8}}), has_labels=False)
    assert DistillConfig().teacher is None
