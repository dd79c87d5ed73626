"""The queue and the keys of MoCo v2."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE

from jaxcl import methods
from jaxcl import queue as queues
from jaxcl.config import Config, ConfigError, LossConfig, TargetConfig, resolve
from jaxcl.methods.parts.keys import make_encode_keys
from jaxcl.methods.parts.networks import Pair

IMAGES, DIM, SIDE = 12, 4, 2


class Normed(nn.Module):
    """A linear layer and a batch norm: a key is a function of its image and of those it is normalised with."""

    @nn.compact
    def __call__(self, images, train=False):
        x = nn.Dense(DIM)(images.reshape(images.shape[0], -1))
        return nn.BatchNorm(use_running_average=not train)(x)


class Same(nn.Module):
    """Nothing."""

    @nn.compact
    def __call__(self, x, train=False):
        return x


CHAIN = {"encoder": Normed(), "head": Same()}


def objective_of(queries, keys, queue, ids=None, **loss):
    """The objective at temperature 0.2, compiled as one program."""
    method = methods.find("moco_v2")(networks=CHAIN, config=Config(loss=LossConfig(**loss)))
    compiled = jax.jit(method.objective, compiler_options=FAST_COMPILE)
    ids = jnp.arange(len(queries), dtype=jnp.int32) if ids is None else ids
    pair = Pair(queries[:, None], keys[:, None])
    return compiled(jax.random.key(0), pair, ids, None, queue=queue, temperature=0.2)


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def unit(x):
    x = np.asarray(x, np.float64)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize("impl", ["strip", "dense"])
def test_the_key_of_an_image_competes_with_the_filled_rows_of_the_queue_alone(impl):
    queries, keys, earlier = normal(0, 5, DIM), normal(1, 5, DIM), normal(2, 7, DIM)
    bank = queues.push(queues.init(9, DIM, jnp.float32), earlier, jnp.arange(50, 57))
    out = objective_of(queries, keys, bank, impl=impl)
    losses = []
    for q, k in zip(unit(queries), unit(keys), strict=True):
        scores = np.array([q @ k, *(unit(earlier) @ q)]) / 0.2
        losses.append(np.log(np.sum(np.exp(scores))) - scores[0])
    np.testing.assert_allclose(out.loss, np.mean(losses), rtol=1e-5)
    assert float(out.metrics["negatives_per_anchor"]) == 7
    np.testing.assert_array_equal(out.push_values, keys)


@pytest.mark.parametrize("impl", ["strip", "dense"])
def test_with_an_empty_queue_nothing_repels_and_the_loss_is_zero(impl):
    out = objective_of(normal(0, 5, DIM), normal(1, 5, DIM), queues.init(16, DIM), impl=impl)
    assert float(out.loss) == pytest.approx(0.0, abs=1e-6)
    assert all(np.isfinite(value) for value in jax.tree.leaves(out.metrics))
    assert float(out.metrics["negatives_per_anchor"]) == 0
    assert float(out.metrics["contrastive_accuracy"]) == 1


@pytest.mark.parametrize("impl", ["strip", "dense"])
def test_a_stuck_bank_costs_the_logarithm_of_its_rows_and_one(impl):
    same = jnp.ones((6, DIM))
    bank = queues.push(queues.init(4096, DIM), jnp.ones((4096, DIM)), jnp.arange(100, 4196))
    out = objective_of(same, same, bank, impl=impl)
    assert float(out.loss) == pytest.approx(np.log(4097), rel=1e-6) == pytest.approx(8.318, abs=1e-3)


def test_an_images_own_earlier_key_is_not_its_negative():
    bank = queues.push(queues.init(8, DIM), normal(2, 3, DIM), jnp.array([0, 50, 51], jnp.int32))
    out = objective_of(normal(0, 5, DIM), normal(1, 5, DIM), bank)
    assert float(out.metrics["negatives_per_anchor"]) == pytest.approx((2 + 4 * 3) / 5)


def test_queries_are_the_students_first_views_and_the_queue_receives_the_momentum_encoders_second_ones():
    method = methods.find("moco_v2")(networks=CHAIN, config=Config(target=TargetConfig(key_norm="split", key_splits=1)))
    views = normal(3, IMAGES, 2, SIDE, SIDE, 3)
    variables = method.init(jax.random.key(0), views)
    params, stats = variables["params"], variables["batch_stats"]
    target = jax.tree.map(lambda x: x + 0.1, method.target(params))
    pair, changed = method.embed(jax.random.key(0), params, stats, target, views, train=True)
    for side, weights, number in ((pair.student, params, 0), (pair.teacher, target, 1)):
        given = {"params": weights["encoder"], "batch_stats": stats["encoder"]}
        expected, new = Normed().apply(given, views[:, number], train=True, mutable=["batch_stats"])
        np.testing.assert_allclose(side[:, 0], expected, rtol=1e-5, atol=1e-6)
        if number == 0:  # running statistics are the student's alone
            jax.tree.map(np.testing.assert_array_equal, changed["encoder"], new["batch_stats"])


@pytest.fixture(scope="module")
def variables():
    return {"params": Normed().init(jax.random.key(0), normal(4, 2, SIDE, SIDE, 3))["params"]}


def keys_of(variables, images, key=0, *, norm="shuffled", splits=3, train=True):
    stats = {"mean": jnp.full(DIM, 0.1), "var": jnp.full(DIM, 2.0)}
    encode = make_encode_keys(CHAIN, norm=norm, splits=splits)
    params = {"encoder": variables["params"], "head": {}}
    batch_stats = {"encoder": {"BatchNorm_0": stats}, "head": {}}
    return encode(jax.random.key(key), params, batch_stats, images, train=train)


@pytest.mark.parametrize("norm", ["shuffled", "split"])
def test_permuted_keys_come_back_in_order(variables, norm):
    images = normal(5, IMAGES, SIDE, SIDE, 3)
    plain = keys_of(variables, images, norm="group", train=False)
    np.testing.assert_allclose(keys_of(variables, images, norm=norm, train=False), plain, rtol=1e-6, atol=1e-6)


def mates(variables, images, **how):
    """[i, j]: does the key of image i change with image j?"""
    before, rows = keys_of(variables, images, **how), []
    for j in range(IMAGES):
        after = keys_of(variables, images.at[j].add(1.0), **how)
        rows.append(np.abs(np.asarray(after - before)).max(axis=1) > 1e-6)
    return np.array(rows).T


def test_a_key_is_normalised_with_its_part_of_the_batch_which_shuffling_draws(variables):
    images, parts = normal(6, IMAGES, SIDE, SIDE, 3), []
    neighbours = np.kron(np.eye(3, dtype=bool), np.ones((4, 4), bool))
    np.testing.assert_array_equal(mates(variables, images, norm="split"), neighbours)
    for key in (0, 1):
        shared = mates(variables, images, key=key)
        np.testing.assert_array_equal(shared, shared.T)
        assert shared.sum(axis=1).tolist() == [4] * IMAGES
        keys = keys_of(variables, images, key=key)
        for part in np.unique(shared, axis=0):
            alone = keys_of(variables, images[part], splits=1)
            np.testing.assert_allclose(keys[part], alone, rtol=1e-4, atol=1e-5)
        parts.append(shared)
    assert not np.array_equal(*parts)
    assert not np.array_equal(parts[0], neighbours)


def test_no_gradient_flows_through_a_key(variables):
    images = normal(7, IMAGES, SIDE, SIDE, 3)
    for norm in ("shuffled", "split", "group"):
        gradient = jax.grad(lambda given, norm=norm: keys_of(given, images, norm=norm).sum())(variables)
        assert not any(leaf.any() for leaf in jax.tree.leaves(gradient))


def test_a_batch_that_does_not_split_is_an_error_that_names_both_numbers(variables):
    with pytest.raises(ValueError, match="splits=5 must divide 12"):
        keys_of(variables, normal(7, IMAGES, SIDE, SIDE, 3), splits=5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": {"key_norm": "group"}}, r"key_norm = 'group' needs model.norm = 'group', not 'batch'"),
        (
            {"target": {"key_norm": "group"}, "model": {"norm": "group"}},
            r"key_norm = 'group' needs model.head_norm = False, not True",
        ),
        ({"target": {"key_splits": 7}}, r"batch.size = 512 .* valid values of target.key_splits are 4 and 8"),
        ({"target": {"key_splits": 16}, "batch": {"size": 64, "micro": 16}}, r"largest valid value is 8$"),
        (
            {"target": {"key_splits": 8}, "batch": {"size": 20, "micro": 16, "mode": "cached"}},
            r"the last micro-batch = 4 is not divisible by target.key_splits = 8; the largest valid value is 2$",
        ),
        (
            {"target": {"key_splits": 4}, "batch": {"size": 20, "micro": 16, "mode": "cached"}},
            r"leaves one image a part of the last micro-batch = 4, .*; the largest valid value is 2$",
        ),
        (
            {"target": {"key_splits": 4}, "batch": {"size": 14, "micro": 12, "mode": "cached"}},
            r"the last micro-batch = 2 is not divisible by target.key_splits = 4; the largest valid value is 1$",
        ),
    ],
)
def test_keys_that_would_be_given_away_are_refused_before_anything_compiles(settings, message):
    with pytest.raises(ConfigError, match=message):
        methods.check(resolve({"method": "moco_v2", "queue": {"size": 64}, **settings}), has_labels=False)


@pytest.mark.parametrize(("size", "micro", "splits"), [(20, 16, 2), (14, 12, 1), (64, 16, 8), (512, None, 4)])
def test_the_parts_that_an_error_offers_are_accepted(size, micro, splits):
    batch = {"size": size, "micro": micro, "mode": "cached" if micro else "accumulate"}
    settings = {"target": {"key_splits": splits}, "batch": batch, "queue": {"size": 64}}
    methods.check(resolve({"method": "moco_v2", **settings}), has_labels=False)


def test_group_norm_everywhere_needs_no_parts():
    for own in ({"encoder": "conv", "norm": "group"}, {"encoder": "vit_ti"}):
        settings = {"target": {"key_norm": "group"}, "model": {**own, "head_norm": False}, "queue": {"size": 64}}
        methods.check(resolve({"method": "moco_v2", **settings}), has_labels=False)
