"""What every method must do, whatever it is."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE

from jaxcl import methods
from jaxcl import queue as queues
from jaxcl.checkpoint import Checkpoints
from jaxcl.config import (
    Config,
    ConfigError,
    DataConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    QueueConfig,
    TargetConfig,
    TextConfig,
    resolve,
)
from jaxcl.mesh import make_mesh
from jaxcl.methods.base import Captioned, Teacher
from jaxcl.methods.parts.networks import make_init, run
from jaxcl.models import make_head, make_predictor, make_text_tower
from jaxcl.optim import make_optimizer
from jaxcl.schedules import make_learning_rate
from jaxcl.state import make_init_state, state_shardings
from jaxcl.step import make_train_step

MODEL = ModelConfig(head_hidden=12, head_dim=6, predictor_hidden=10)
TEXT = TextConfig(length=6, width=8, depth=1, heads=2)
BATCH, SIDE, QUEUE, VOCAB = 16, 4, 24, 11
NAMES = methods.available()
COLD = 100  # updates after which a run has a temperature of 0.01, in the program that it has
MORE = pytest.mark.slow(reason="half a minute: over eight devices every method is a program of its own")
WIDE = [name if name in ("simclr", "clip", "moco_v2") else pytest.param(name, marks=MORE) for name in NAMES]


class Encoder(nn.Module):
    """Small enough to compile in no time, with a batch norm."""

    @nn.compact
    def __call__(self, images, train=False):
        x = nn.Dense(10)(images.reshape(images.shape[0], -1))
        return nn.relu(nn.BatchNorm(use_running_average=not train)(x))


NETWORKS = {"encoder": Encoder(), "head": make_head(MODEL), "predictor": make_predictor(MODEL)}
NETWORKS |= {"text": make_text_tower(TEXT, MODEL, vocab=VOCAB), "text_head": make_head(MODEL)}
TEACHER = {name: NETWORKS[name] for name in ("encoder", "head")}


def say(variables, images):
    """What a teacher does."""
    return run(TEACHER, variables["params"], variables["batch_stats"], images, train=False)[0]


def make(name, mesh=None):
    # the engines equal the dense loss in tests of their own, and take longer to compile
    config = Config(loss=LossConfig(impl="dense", temperature=0.2), target=TargetConfig(key_splits=2))
    given = {}
    if methods.traits(name).teacher:
        given = {"teacher": Teacher(say, feature_dim=10)}
    return methods.find(name)(networks=NETWORKS, config=config, mesh=mesh, **given)


def target_of(name, method, params):
    """What a method has beside its parameters: a momentum encoder, a teacher of its own, or nothing."""
    if not methods.traits(name).teacher:
        return method.target and method.target(params)
    init = jax.jit(make_init(TEACHER), compiler_options=FAST_COMPILE)
    return init(jax.random.key(77), jnp.zeros((2, 2, SIDE, SIDE, 3)))


def a_bank():
    values = jax.random.normal(jax.random.key(9), (QUEUE, MODEL.head_dim))
    return queues.push(queues.init(QUEUE, MODEL.head_dim, jnp.float32), values, jnp.arange(500, 500 + QUEUE))


def a_batch(seed=0):
    key = jax.random.key(seed)
    ids = jnp.arange(BATCH, dtype=jnp.int32) + 100 * seed
    labels = jnp.where(ids % 5 == 0, -1, ids % 3)
    tokens = jax.random.randint(jax.random.fold_in(key, 1), (BATCH, TEXT.length), 0, VOCAB).at[:, 0].set(1)
    views = jax.random.normal(key, (BATCH, 2, SIDE, SIDE, 3))
    return {"views": views, "id": ids, "label": labels, "tokens": tokens}


def inputs_of(name, batch):
    """What the method embeds."""
    own = methods.traits(name)
    views = batch["views"][:, : own.views]
    return Captioned(views, batch["tokens"]) if own.captions else views


@functools.cache  # tests of one method share its programs
def a_run(name, devices=1, num_micro=1):
    mesh = make_mesh(devices, 1)
    method, own = make(name, mesh), methods.traits(name)
    optim = OptimConfig(name="sgd", base_lr=1.0, warmup_steps=1)
    schedule = dict(batch_size=BATCH, total_steps=10)
    optimizer = make_optimizer(optim, **schedule, num_micro=num_micro)
    init = make_init_state(
        method,
        optimizer,
        views_shape=(2, own.views, SIDE, SIDE, 3),
        tokens_shape=(2, TEXT.length) if own.captions else None,
        queue_size=QUEUE if own.queue else 0,
        queue_dim=MODEL.head_dim,
        queue_dtype="float16",
    )
    step = make_train_step(
        method,
        optimizer,
        lambda batch: inputs_of(name, batch),
        num_micro=num_micro,
        learning_rate=make_learning_rate(optim, **schedule),
        temperature=lambda updates, _: jnp.where(updates < COLD, 0.2, 0.01),
        target_decay=lambda _: 0.99,
    )
    shardings = state_shardings(jax.eval_shape(init, jax.random.key(0)), mesh)
    state = jax.jit(init, out_shardings=shardings, compiler_options=FAST_COMPILE)(jax.random.key(0))
    if methods.traits(name).teacher:
        state = state._replace(target=target_of(name, method, state.params))
        shardings = state_shardings(state, mesh)
        state = jax.device_put(state, shardings)
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
    state, step = a_run(name)
    state = state._replace(updates=state.updates + COLD)
    for seed in range(2):  # a queue is empty in the first step
        state, metrics = step(state, a_batch(seed))
        assert np.isfinite(metrics["loss"])
        assert np.isfinite(metrics["grad_norm"])
    assert int(state.updates) == COLD + 2


@pytest.mark.parametrize("name", WIDE)
def test_one_and_eight_devices_agree(name):
    results = []
    for devices in (1, 8):
        state, step = a_run(name, devices)
        losses = []
        for seed in range(2):
            state, metrics = step(state, a_batch(seed))
            losses.append(float(metrics["loss"]))
        results.append((losses, jax.device_get(state.params)))
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), results[1][1], results[0][1])


@pytest.mark.parametrize("name", NAMES)
def test_gradients_go_where_they_belong(name):
    method, batch = make(name), a_batch()
    variables = jax.jit(method.init, compiler_options=FAST_COMPILE)(jax.random.key(0), inputs_of(name, batch))
    params, stats = variables["params"], variables["batch_stats"]
    target = target_of(name, method, params)
    bank = a_bank() if methods.traits(name).queue else None

    def loss(params, target, values, half):
        key, queue = jax.random.key(0), bank and bank._replace(values=values)
        embeddings, _ = method.embed(key, params, stats, target, inputs_of(name, batch), train=True)
        if half is not None:  # of a pair the teacher alone
            embeddings = embeddings._replace(student=jax.lax.stop_gradient(embeddings.student))
        given = dict(queue=queue, temperature=0.2)
        return method.objective(key, embeddings, batch["id"], batch["label"], **given).loss

    def gradients(half):
        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2)), static_argnums=3, compiler_options=FAST_COMPILE)
        return compiled(params, target, bank and bank.values, half)

    of_params, *of_others = gradients(None)
    for part in {"encoder", "text", "log_scale"} & set(params):
        assert all(leaf.any() for leaf in jax.tree.leaves(of_params[part])), part
    assert not any(leaf.any() for leaf in jax.tree.leaves(of_others))
    assert "predictor" not in (target or {})
    if "predictor" in params or target:
        assert not any(leaf.any() for leaf in jax.tree.leaves(gradients("teacher")[0]))


@pytest.mark.parametrize("name", [name for name in NAMES if methods.traits(name).target])
def test_a_momentum_encoder_moves_once_a_real_update(name):
    state, step = a_run(name, num_micro=4)
    state, _ = step(state, a_batch(1))  # at learning rate 0: it fills the queue and moves nothing
    first = jax.device_get({k: state.params[k] for k in state.target})
    new, _ = step(state, a_batch())
    online = {k: new.params[k] for k in first}
    assert any(not np.allclose(*pair) for pair in zip(*map(jax.tree.leaves, (online, first)), strict=True))
    moved = jax.tree.map(lambda old, online: 0.99 * old + 0.01 * online, first, online)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), new.target, moved)


@pytest.mark.parametrize("name", [name for name in NAMES if methods.traits(name).teacher])
def test_a_teacher_is_an_argument_of_the_step_and_comes_out_as_it_went_in(name):
    state, step = a_run(name)
    constants = step.trace(state, a_batch()).jaxpr.consts
    assert sum(np.size(constant) for constant in constants) < 10
    new, _ = step(state, a_batch(1))
    jax.tree.map(np.testing.assert_array_equal, new.target, state.target)


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_state_goes_on_bit_for_bit(name, tmp_path):
    state, step = a_run(name)
    for seed in range(2):
        state, _ = step(state, a_batch(seed))
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    store = Checkpoints(tmp_path)
    store.save(2, state, position={}, config={}, score=None)
    store.wait()
    restored, _ = store.restore(2, like)
    store.close()
    straight, resumed = (step(given, a_batch(2)) for given in (state, restored))
    jax.tree.map(np.testing.assert_array_equal, resumed, straight)


def test_a_setting_that_a_method_does_not_read_is_an_error_that_names_what_would_do():
    cases = {
        "queue.size = 64, but method = 'byol' has no queue: 0, or one of distill, moco_v2, simclr, supcon": Config(
            method="byol", queue=QueueConfig(size=64)
        ),
        "loss.top_k = 3, but method = 'simsiam' has no negatives": Config(method="simsiam", loss=LossConfig(top_k=3)),
        "loss.temperature_schedule = 'queue_pointer', but method = 'byol' has no negatives; the only": Config(
            method="byol", loss=LossConfig(temperature_schedule="queue_pointer")
        ),
        "target.schedule = 'linear', but method = 'simclr' has no momentum encoder": Config(
            target=TargetConfig(schedule="linear")
        ),
        "queue.size = 0 leaves method = 'moco_v2' without negatives": Config(method="moco_v2"),
        "target.key_norm = 'split', but method = 'moco_v3' has no keys": Config(
            method="moco_v3", target=TargetConfig(key_norm="split")
        ),
        "the largest valid value is 511": Config(method="moco_v3", loss=LossConfig(top_k=512)),
        "queue.size = 64, but method = 'clip' has no queue": Config(method="clip", queue=QueueConfig(size=64)),
        "method = 'clip' needs captions, and data.name = 'fashion_mnist' has none; emoji has": Config(
            method="clip", data=DataConfig(name="fashion_mnist")
        ),
        "text.depth = 3, but method = 'simclr' reads no captions": Config(text=TextConfig(depth=3)),
        "loss.temperature = 0.009, but method = 'clip' learns it between 0.01 and 100; the nearest": Config(
            method="clip", loss=LossConfig(temperature=0.009)
        ),
        "loss.temperature_schedule = 'linear', but method = 'clip' learns its temperature; 'constant'": Config(
            method="clip", loss=LossConfig(temperature_schedule="linear", temperature_end=0.1)
        ),
        "method = 'supcon' needs labels, and data.name = 'emoji' has none": Config(method="supcon"),
    }
    for message, config in cases.items():
        with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
            methods.check(config, has_labels=False, has_captions=config.data.name == "emoji")


@pytest.mark.parametrize(
    ("method", "settings", "most"),
    [
        ("simclr", {}, 1022),
        ("simclr", {"queue": {"size": 1}}, 1023),
        ("simclr", {"batch": {"size": 64, "micro": 16}, "loss": {"skip_hardest": 0.2}}, 24),
        ("simclr", {"batch": {"size": 64, "micro": 16}}, 30),  # the whole batch never meets in one loss
        ("simclr", {"batch": {"size": 64, "micro": 16, "mode": "cached"}}, 126),  # here it does
        ("clip", {"batch": {"size": 64, "micro": 24, "mode": "cached"}}, 63),
        ("supcon", {"queue": {"size": 7}}, 1029),
        ("moco_v2", {"queue": {"size": 64}}, 64),
        ("moco_v3", {"batch": {"size": 64, "micro": 16}}, 15),
        ("clip", {"batch": {"size": 64}}, 63),
    ],
)
def test_top_k_is_at_most_the_negatives_that_the_method_has(method, settings, most):
    settings = dict(settings)
    loss = settings.pop("loss", {})
    has = dict(has_labels=True, has_captions=True)
    methods.check(resolve({"method": method, "loss": {"top_k": most, **loss}, **settings}), **has)
    message = rf"loss.top_k = {most + 1} is more than .* '{method}' .* largest valid value is {most}$"
    with pytest.raises(ConfigError, match=message):
        methods.check(resolve({"method": method, "loss": {"top_k": most + 1, **loss}, **settings}), **has)


def test_an_unknown_method_offers_the_nearest():
    with pytest.raises(ConfigError, match=r"'simsiamm' is unknown.*simsiam"):
        methods.find("simsiamm")


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("byol", {"loss": {"temperature": 0.5}}, "loss.temperature = 0.5, but .* no negatives; .* is 0.2$"),
        ("simsiam", {"loss": {"impl": "dense"}}, "loss.impl = 'dense', but .* no negatives; .* is 'strip'$"),
        ("byol", {"loss": {"block_size": 3}}, "loss.block_size = 3, but .* 'byol' has no negatives; .* is None$"),
        ("simclr", {"target": {"decay": 0.5}}, "target.decay = 0.5, but .* no momentum encoder; .* is 0.99$"),
        ("simclr", {"queue": {"dtype": "float32"}}, "queue.dtype = 'float32', but .* queue.size = 0; .* 'float16'$"),
        ("moco_v3", {"queue": {"dtype": "bfloat16"}}, "queue.dtype = 'bfloat16', but .* queue.size = 0"),
    ],
)
def test_no_setting_passes_that_the_method_never_reads(method, settings, message):
    with pytest.raises(ConfigError, match=message):
        methods.check(resolve({"method": method, **settings}), has_labels=True)


@pytest.mark.parametrize(("top_k", "samples"), [(20, 10), (29, 1)])
def test_a_tail_is_drawn_from_what_the_hardest_leave(top_k, samples):
    loss = {"top_k": top_k, "tail": "sampled", "tail_samples": samples}
    methods.check(resolve({"loss": loss, "batch": {"size": 16}}), has_labels=True)
    loss["tail_samples"] += 1
    with pytest.raises(
        ConfigError, match=rf"tail_samples = {samples + 1} is more .* largest valid value is {samples}$"
    ):
        methods.check(resolve({"loss": loss, "batch": {"size": 16}}), has_labels=True)
    loss["top_k"] = 30
    with pytest.raises(ConfigError, match=r"more than the 0 negatives .* loss.tail = 'drop', it is the same"):
        methods.check(resolve({"loss": loss, "batch": {"size": 16}}), has_labels=True)
