"""What every method must do, whatever it is."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE

from jaxcl import methods
from jaxcl.config import Config, ConfigError, LossConfig, ModelConfig, OptimConfig, QueueConfig, TargetConfig, resolve
from jaxcl.mesh import make_mesh
from jaxcl.models import make_head, make_predictor
from jaxcl.optim import make_optimizer
from jaxcl.schedules import make_learning_rate
from jaxcl.state import make_init_state, state_shardings
from jaxcl.step import make_train_step

MODEL = ModelConfig(head_hidden=12, head_dim=6, predictor_hidden=10)
BATCH, SIDE, QUEUE = 16, 4, 24
NAMES = methods.available()


class Encoder(nn.Module):
    """Small enough to compile in no time, with a batch norm."""

    @nn.compact
    def __call__(self, images, train=False):
        x = nn.Dense(10)(images.reshape(images.shape[0], -1))
        return nn.relu(nn.BatchNorm(use_running_average=not train)(x))


def make(name, mesh=None):
    networks = {"encoder": Encoder(), "head": make_head(MODEL), "predictor": make_predictor(MODEL)}
    # the engines equal the dense loss in tests of their own, and take longer to compile
    return methods.find(name)(networks=networks, loss=LossConfig(impl="dense"), mesh=mesh)


def a_batch(seed=0):
    key = jax.random.key(seed)
    ids = jnp.arange(BATCH, dtype=jnp.int32) + 100 * seed
    labels = jnp.where(ids % 5 == 0, -1, ids % 3)
    return {"views": jax.random.normal(key, (BATCH, 2, SIDE, SIDE, 3)), "id": ids, "label": labels}


@functools.cache  # tests of one method share its programs
def a_run(name, devices=1, num_micro=1, temperature=0.2):
    mesh = make_mesh(devices, 1)
    method = make(name, mesh)
    optim = OptimConfig(name="sgd", base_lr=1.0, warmup_steps=1)
    schedule = dict(batch_size=BATCH, total_steps=10)
    optimizer = make_optimizer(optim, **schedule, num_micro=num_micro)
    init = make_init_state(
        method,
        optimizer,
        views_shape=(2, 2, SIDE, SIDE, 3),
        queue_size=QUEUE if methods.traits(name).queue else 0,
        queue_dim=MODEL.head_dim,
        queue_dtype="float16",
    )
    step = make_train_step(
        method,
        optimizer,
        lambda batch: batch["views"],
        num_micro=num_micro,
        learning_rate=make_learning_rate(optim, **schedule),
        temperature=lambda _: temperature,
        target_decay=lambda _: 0.9,
    )
    shardings = state_shardings(jax.eval_shape(init, jax.random.key(0)), mesh)
    state = jax.jit(init, out_shardings=shardings, compiler_options=FAST_COMPILE)(jax.random.key(0))
    return state, jax.jit(step, out_shardings=(shardings, None), compiler_options=FAST_COMPILE)


@pytest.mark.parametrize("name", NAMES)
def test_steps_are_one_trace_and_keep_the_tree_of_the_state(name):
    state, step = a_run(name)
    new = state
    for seed in range(3):
        new, metrics = step(new, a_batch(seed))
    assert step._cache_size() == 1
    assert jax.tree.structure(new) == jax.tree.structure(state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), new) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert int(new.updates) == 3
    assert {"loss", "grad_norm", "positive_cosine", "negatives_per_anchor"} <= set(metrics)
    for part in state.params:
        before, after = (jax.tree.leaves(s.params[part]) for s in (state, new))
        assert any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True)), part


@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradient_are_finite_at_temperature_001(name):
    state, step = a_run(name, temperature=0.01)
    new, metrics = step(state, a_batch())
    assert np.isfinite(metrics["loss"])
    assert np.isfinite(metrics["grad_norm"])
    assert int(new.updates) == 1


@pytest.mark.parametrize("name", NAMES)
def test_one_and_eight_devices_agree(name):
    results = []
    for devices in (1, 8):
        state, step = a_run(name, devices)
        losses = []
        for seed in range(2):
            state, metrics = step(state, a_batch(seed))
            losses.append(float(metrics["loss"]))
        results.append((losses, jax.device_get(state.params)))
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), results[1][1], results[0][1])


@pytest.mark.parametrize("name", NAMES)
def test_gradients_go_where_they_belong(name):
    method, batch = make(name), a_batch()
    variables = jax.jit(method.init, compiler_options=FAST_COMPILE)(jax.random.key(0), batch["views"])
    params, stats = variables["params"], variables["batch_stats"]
    target = method.target and method.target(params)

    def loss(params, target, half):
        embeddings, _ = method.embed(params, stats, target, batch["views"], train=True)
        if half is not None:  # of a pair the teacher alone
            embeddings = embeddings._replace(student=jax.lax.stop_gradient(embeddings.student))
        return method.objective(
            jax.random.key(0), embeddings, batch["id"], batch["label"], queue=None, temperature=0.2
        ).loss

    def gradients(half):
        compiled = jax.jit(jax.grad(loss, argnums=(0, 1)), static_argnums=2, compiler_options=FAST_COMPILE)
        return compiled(params, target, half)

    of_params, of_target = gradients(None)
    assert all(leaf.any() for leaf in jax.tree.leaves(of_params["encoder"]))
    assert not any(leaf.any() for leaf in jax.tree.leaves(of_target))
    assert "predictor" not in (target or {})
    if "predictor" in params:
        assert not any(leaf.any() for leaf in jax.tree.leaves(gradients("teacher")[0]))


@pytest.mark.parametrize("name", [name for name in NAMES if methods.traits(name).target])
def test_a_momentum_encoder_moves_once_a_real_update(name):
    state, step = a_run(name, num_micro=4)
    new, _ = step(state, a_batch())
    moved = jax.tree.map(
        lambda old, online: 0.9 * old + 0.1 * online, state.target, {k: new.params[k] for k in state.target}
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), new.target, moved)


def test_a_setting_that_a_method_does_not_read_is_an_error_that_names_what_would_do():
    cases = {
        "queue.size = 64, but method = 'byol' has no queue: 0, or one of simclr": Config(
            method="byol", queue=QueueConfig(size=64)
        ),
        "loss.top_k = 3, but method = 'simsiam' has no negatives": Config(method="simsiam", loss=LossConfig(top_k=3)),
        "loss.temperature_schedule = 'cosine', but method = 'byol' has no temperature; 'constant'": Config(
            method="byol", loss=LossConfig(temperature_schedule="cosine", temperature_end=0.1)
        ),
        "target.schedule = 'linear', but method = 'simclr' has no momentum encoder": Config(
            target=TargetConfig(schedule="linear")
        ),
        "the largest valid value is 511": Config(method="moco_v3", loss=LossConfig(top_k=512)),
        "method = 'supcon' needs labels, and data.name = 'emoji' has none": Config(method="supcon"),
    }
    for message, config in cases.items():
        with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
            methods.check(config, has_labels=False)


@pytest.mark.parametrize(
    ("method", "settings", "most"),
    [
        ("simclr", {}, 1022),
        ("simclr", {"queue": {"size": 1}}, 1023),
        ("simclr", {"batch": {"size": 64, "micro": 16}}, 30),  # the whole batch never meets in one loss
        ("supcon", {"queue": {"size": 7}}, 1029),
        ("moco_v3", {"batch": {"size": 64, "micro": 16}}, 15),
    ],
)
def test_top_k_is_at_most_the_negatives_that_the_method_has(method, settings, most):
    methods.check(resolve({"method": method, "loss": {"top_k": most}, **settings}), has_labels=True)
    message = rf"loss.top_k = {most + 1} is more than .* '{method}' .* largest valid value is {most}$"
    with pytest.raises(ConfigError, match=message):
        methods.check(resolve({"method": method, "loss": {"top_k": most + 1}, **settings}), has_labels=True)


def test_an_unknown_method_offers_the_nearest():
    with pytest.raises(ConfigError, match=r"'simsiamm' is unknown.*simsiam"):
        methods.find("simsiamm")
