"""Decay and trust ratio by name, schedules in real updates, and the moving average."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxcl.config import ModelConfig, OptimConfig
from jaxcl.models import make_encoder, make_head
from jaxcl.optim import decay_mask, ema, group_table, make_optimizer, parameter_groups
from jaxcl.schedules import make_learning_rate

NAMES = ("sgd", "lars", "adamw")
PLAIN = dict(clip_norm=None, warmup_steps=0)


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def toy_params():
    return {
        "dense": {"kernel": normal(3, 5, 3), "bias": jnp.zeros(3)},
        "norm": {"scale": jnp.full(3, 1.5), "bias": jnp.full(3, 0.25)},
        "temperature": jnp.float32(0.3),
    }


def params_of(config, size=8):
    encoder, head = make_encoder(config), make_head(config)
    image = jnp.zeros((2, size, size, 3))
    variables, features = jax.eval_shape(lambda: tuple(reversed(encoder.init_with_output(jax.random.key(0), image))))
    return {
        "encoder": variables["params"],
        "head": jax.eval_shape(head.init, jax.random.key(0), features)["params"],
    }


def run(optimizer, params, grads):
    """Parameters after each gradient."""
    state, seen = optimizer.init(params), []
    update = jax.jit(optimizer.update)
    for grad in grads:
        updates, state = update(grad, state, params)
        params = optax.apply_updates(params, updates)
        seen.append(params)
    return seen


# What decays


@pytest.mark.parametrize(
    ("encoder", "norm"), [("conv", "group"), ("resnet18", "batch"), ("resnet50", "batch"), ("vit_ti", "batch")]
)
def test_kernels_decay_and_nothing_else_does(encoder, norm):
    rows = parameter_groups(params_of(ModelConfig(encoder=encoder, norm=norm, head_layers=3)))
    for row in rows:
        assert row.decays == row.name.endswith("/kernel"), row
    assert any(row.decays for row in rows)


def test_a_bias_and_a_scale_stacked_by_a_scan_do_not_decay_though_they_have_two_axes():
    rows = {row.name: row for row in parameter_groups(params_of(ModelConfig(encoder="vit_ti")))}
    for name, shape in (("qkv/bias", (12, 576)), ("norm1/scale", (12, 192)), ("mlp2/bias", (12, 192))):
        row = rows[f"encoder/layers/{name}"]
        assert (row.shape, row.decays) == (shape, False)
    assert rows["encoder/layers/qkv/kernel"].decays


def test_class_token_positions_and_temperature_do_not_decay_and_embedding_tables_do():
    rows = {row.name: row for row in parameter_groups(params_of(ModelConfig(encoder="vit_ti")))}
    assert not rows["encoder/cls"].decays
    assert not rows["encoder/position"].decays
    mask = decay_mask({"logit_scale": jnp.ones(()), "token": {"embedding": jnp.ones((7, 2))}})
    assert mask == {"logit_scale": False, "token": {"embedding": True}}


def test_the_table_of_parameters_counts_every_value_once():
    params = params_of(ModelConfig(encoder="resnet18"))
    rows = parameter_groups(params)
    assert sum(row.size for row in rows) == sum(leaf.size for leaf in jax.tree.leaves(params))
    assert len({row.name for row in rows}) == len(rows)
    assert ("head/dense1/kernel", (512, 512), 512 * 512, True) in rows


def test_a_run_begins_with_a_table_of_what_decays_and_what_is_scaled():
    params = {"layer": {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}}
    assert group_table(params, OptimConfig(name="lars", weight_decay=1e-4)).splitlines() == [
        "kernels: 1 array, 12 numbers, weight decay 0.0001, trust ratio",
        "norms and biases: 1 array, 4 numbers, no weight decay, no trust ratio",
    ]
    assert "kernels: 1 array, 12 numbers, no weight decay" in group_table(params, OptimConfig(weight_decay=0.0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_micro", [1, 3])
def test_a_step_with_zero_gradient_leaves_norms_biases_and_scalars_bitwise_and_shrinks_kernels(name, num_micro):
    params = toy_params()
    config = OptimConfig(name=name, base_lr=0.5, weight_decay=1e-4, **PLAIN)
    optimizer = make_optimizer(config, batch_size=256, total_steps=10, num_micro=num_micro)
    zero = jax.tree.map(jnp.zeros_like, params)
    after = run(optimizer, params, [zero] * num_micro)[-1]
    assert jnp.linalg.norm(after["dense"]["kernel"]) < jnp.linalg.norm(params["dense"]["kernel"])
    for tree in (params, after):
        tree["dense"] = {"bias": tree["dense"]["bias"]}
    chex.assert_trees_all_equal(after, params)


# One update against its formula


def one_update(config, params, grad, **sizes):
    optimizer = make_optimizer(config, **(dict(batch_size=256, total_steps=10) | sizes))
    return run(optimizer, params, [grad])[0]


def test_lars_scales_kernels_by_the_trust_ratio_and_leaves_biases_to_plain_sgd():
    params = toy_params()
    grad = jax.tree.map(lambda x: jnp.full_like(x, 0.7), params)
    config = OptimConfig(name="lars", base_lr=0.5, weight_decay=0.01, **PLAIN)
    after = one_update(config, params, grad)
    kernel = np.asarray(params["dense"]["kernel"], np.float64)
    step = 0.7 + 0.01 * kernel
    ratio = 1e-3 * np.linalg.norm(kernel) / np.linalg.norm(step)
    np.testing.assert_allclose(after["dense"]["kernel"], kernel - 0.5 * ratio * step, rtol=1e-5)
    np.testing.assert_allclose(after["dense"]["bias"], np.full(3, -0.35), rtol=1e-6)
    np.testing.assert_allclose(after["norm"]["scale"], np.full(3, 1.15), rtol=1e-6)


def test_lars_takes_one_trust_ratio_for_each_layer_of_a_scan():
    config = OptimConfig(name="lars", base_lr=0.5, weight_decay=0.01, **PLAIN)
    scale = jnp.array([1.0, 10.0, 0.1])[:, None, None]
    stack, grad = normal(5, 3, 4, 2), normal(6, 3, 4, 2)
    stack = stack * scale
    after = one_update(config, {"layers": {"kernel": stack}}, {"layers": {"kernel": grad}})["layers"]["kernel"]
    for layer in range(3):
        alone = one_update(config, {"dense": {"kernel": stack[layer]}}, {"dense": {"kernel": grad[layer]}})
        np.testing.assert_allclose(after[layer], alone["dense"]["kernel"], rtol=1e-5)


def test_a_zero_kernel_and_a_zero_gradient_have_finite_updates_under_lars():
    config = OptimConfig(name="lars", base_lr=0.5, weight_decay=0.0, **PLAIN)
    params = {"a": {"kernel": jnp.zeros((2, 2))}, "b": {"kernel": jnp.ones((2, 2))}}
    grad = {"a": {"kernel": jnp.ones((2, 2))}, "b": {"kernel": jnp.zeros((2, 2))}}
    after = one_update(config, params, grad)
    chex.assert_trees_all_close(after["a"]["kernel"], jnp.full((2, 2), -0.5))
    chex.assert_trees_all_equal(after["b"]["kernel"], params["b"]["kernel"])


def test_adamw_decays_kernels_apart_from_the_gradient():
    params = toy_params()
    grad = jax.tree.map(jnp.ones_like, params)
    config = OptimConfig(name="adamw", base_lr=0.1, weight_decay=0.5, **PLAIN)
    after = one_update(config, params, grad)
    np.testing.assert_allclose(after["dense"]["kernel"], params["dense"]["kernel"] * 0.95 - 0.1, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["norm"]["scale"], np.full(3, 1.4), rtol=1e-5)


def test_sgd_momentum_is_the_classic_one():
    params = {"bias": jnp.zeros(2)}
    config = OptimConfig(name="sgd", base_lr=0.1, momentum=0.5, weight_decay=0.0, **PLAIN)
    rate = make_learning_rate(config, batch_size=256, total_steps=10)
    optimizer = make_optimizer(config, batch_size=256, total_steps=10)
    seen = run(optimizer, params, [{"bias": jnp.ones(2)}] * 2)
    np.testing.assert_allclose(seen[1]["bias"], np.full(2, -rate(0) - 1.5 * rate(1)), rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_micro", [1, 2])
def test_a_predictor_has_its_own_rate_and_the_rest_is_bitwise_as_without_one(name, num_micro):
    params = {"encoder": toy_params(), "predictor": toy_params()}
    grads = [jax.tree.map(lambda x, n=n: normal(n, *x.shape), params) for n in range(4)]
    config = dict(name=name, base_lr=1e-3, weight_decay=0.1, clip_norm=0.5, warmup_steps=0)

    def moves(rate):
        given = OptimConfig(**config, predictor_rate=rate)
        optimizer = make_optimizer(given, batch_size=256, total_steps=10, num_micro=num_micro)
        state, seen = optimizer.init(params), []
        for grad in grads:  # from the same parameters: decay sees them too
            updates, state = optimizer.update(grad, state, params)
            seen.append(updates)
        return seen

    for slow, fast in zip(moves(1.0), moves(8.0), strict=True):
        jax.tree.map(np.testing.assert_array_equal, fast["encoder"], slow["encoder"])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, 8 * b, rtol=1e-6), fast["predictor"], slow["predictor"])
    assert float(jnp.abs(fast["predictor"]["dense"]["kernel"]).max()) > 0


@pytest.mark.parametrize("name", ["sgd", "lars"])
def test_gradients_are_clipped_by_their_global_norm_before_anything_else(name):
    params = {"a": {"bias": jnp.zeros(1)}, "b": {"bias": jnp.zeros(1)}}
    grad = {"a": {"bias": jnp.array([30.0])}, "b": {"bias": jnp.array([40.0])}}
    config = OptimConfig(name=name, base_lr=1.0, clip_norm=0.5, warmup_steps=0)
    after = one_update(config, params, grad)
    np.testing.assert_allclose([after["a"]["bias"][0], after["b"]["bias"][0]], [-0.3, -0.4], rtol=1e-6)
    small = jax.tree.map(lambda g: g / 1000, grad)
    np.testing.assert_allclose(one_update(config, params, small)["a"]["bias"], [-0.03], rtol=1e-6)


def test_with_micro_batches_the_schedule_counts_real_updates():
    config = OptimConfig(name="sgd", base_lr=1.0, momentum=0.0, weight_decay=0.0, clip_norm=None, warmup_steps=2)
    rate = make_learning_rate(config, batch_size=256, total_steps=5)
    optimizer = make_optimizer(config, batch_size=256, total_steps=5, num_micro=4)
    seen = run(optimizer, {"kernel": jnp.zeros((1, 1))}, [{"kernel": jnp.ones((1, 1))}] * 20)
    values = np.concatenate([[0.0], np.ravel([p["kernel"] for p in seen])])
    moves = -np.diff(values)
    np.testing.assert_allclose(moves[3::4], [float(rate(n)) for n in range(5)], atol=1e-6)
    assert np.all(np.delete(moves, np.s_[3::4]) == 0.0)


def test_micro_batches_are_averaged_and_clipping_sees_the_average():
    config = OptimConfig(name="sgd", base_lr=1.0, weight_decay=0.0, clip_norm=1.0, warmup_steps=0)
    optimizer = make_optimizer(config, batch_size=256, total_steps=5, num_micro=4)
    grads = [{"bias": jnp.array([g])} for g in (-90.0, 30.0, 40.0, 22.0)]
    after = run(optimizer, {"bias": jnp.zeros(1)}, grads)[-1]
    np.testing.assert_allclose(after["bias"], [-0.5], rtol=1e-6)


def test_decay_is_applied_once_a_real_update():
    config = OptimConfig(name="adamw", base_lr=0.1, weight_decay=0.5, **PLAIN)
    params = {"kernel": jnp.ones((2, 2))}
    zero = {"kernel": jnp.zeros((2, 2))}
    optimizer = make_optimizer(config, batch_size=256, total_steps=10, num_micro=3)
    np.testing.assert_allclose(run(optimizer, params, [zero] * 3)[-1]["kernel"], np.full((2, 2), 0.95), rtol=1e-6)


# The state


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_micro", [1, 2])
def test_the_state_holds_arrays_only_and_one_micro_batch_needs_no_accumulator(name, num_micro):
    params = toy_params()
    optimizer = make_optimizer(OptimConfig(name=name), batch_size=64, total_steps=30, num_micro=num_micro)
    state = optimizer.init(params)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    assert isinstance(state, optax.MultiStepsState) == (num_micro > 1)
    _, after = optimizer.update(params, state, params)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after)


def test_no_micro_batch_at_all_is_an_error_that_names_the_argument():
    with pytest.raises(ValueError, match=r"num_micro must be at least 1, got 0"):
        make_optimizer(OptimConfig(), batch_size=64, total_steps=30, num_micro=0)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_split_over_devices_get_the_update_of_one_device(name):
    mesh = jax.make_mesh((8,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    params = {"layers": {"kernel": normal(1, 3, 16, 5)}}
    grad = jax.tree.map(jnp.cos, params)
    optimizer = make_optimizer(OptimConfig(name=name, warmup_steps=0), batch_size=64, total_steps=9, num_micro=2)
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "model", None))
    alone = run(optimizer, params, [grad] * 4)[-1]
    together = run(optimizer, jax.device_put(params, split), [jax.device_put(grad, split)] * 4)[-1]
    chex.assert_trees_all_close(together, alone, rtol=1e-6)


# The moving average


def test_the_moving_average_of_one_step_is_99_parts_old_and_one_part_new():
    old, new = normal(1, 4, 3), normal(2, 4, 3)
    average = ema({"w": old}, {"w": new}, 0.99)["w"]
    expected = 0.99 * np.asarray(old, np.float64) + 0.01 * np.asarray(new, np.float64)
    np.testing.assert_allclose(average, expected, rtol=0, atol=2e-7)


def test_the_moving_average_stays_at_decay_one_follows_at_zero_and_takes_a_traced_decay():
    old, new = {"w": jnp.array([1.0, -2.0])}, {"w": jnp.array([5.0, 7.0])}
    chex.assert_trees_all_equal(ema(old, new, 1.0), old)
    chex.assert_trees_all_equal(ema(old, new, 0.0), new)
    chex.assert_trees_all_close(jax.jit(ema)(old, new, jnp.float32(0.5)), {"w": jnp.array([3.0, 2.5])})
