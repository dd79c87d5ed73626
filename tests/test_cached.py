"""Cached gradients against the step that keeps all activations, and one with statistics of each micro-batch."""

import functools
import itertools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compile_options import AS_USERS_COMPILE, FAST_COMPILE

from jaxcl import methods
from jaxcl.cached import make_cached_step, make_programs
from jaxcl.checkpoint import Checkpoints
from jaxcl.config import Config, LossConfig, ModelConfig, TargetConfig, TextConfig
from jaxcl.data import Twice
from jaxcl.hosted import HostedStep
from jaxcl.mesh import along_data, make_mesh, replicated
from jaxcl.methods.base import Captioned, Method, Objective, Teacher
from jaxcl.methods.parts.networks import make_embed, make_init, run
from jaxcl.models import make_head, make_predictor, make_text_tower
from jaxcl.portions import Held, Portions
from jaxcl.state import make_init_state, state_shardings
from jaxcl.step import make_train_step
from jaxcl.update import problem_keys

SIDE, QUEUE, VOCAB, SEED = 4, 24, 11, 3
TEXT = TextConfig(length=6, width=8, depth=1, heads=2)
NAMES = methods.available()
TEMPERATURE = 0.2
OTHERS = [name for name in NAMES if name not in ("simclr", "moco_v2", "byol")]
MORE = pytest.mark.slow(reason="a minute: the same of every other method")
EVERY = [name if name not in OTHERS else pytest.param(name, marks=MORE) for name in NAMES]


class Encoder(nn.Module):
    """Small enough to compile in no time, with a batch norm or without."""

    batch_norm: bool

    @nn.compact
    def __call__(self, images, train=False):
        x = nn.Dense(10)(images.reshape(images.shape[0], -1))
        return nn.relu(nn.BatchNorm(use_running_average=not train)(x) if self.batch_norm else x)


# the gradient that the optimizer was given, to be looked at
REMEMBER = optax.GradientTransformation(
    lambda params: jax.tree.map(jnp.zeros_like, params),
    lambda grads, state, params: (jax.tree.map(lambda g: -0.1 * g, grads), grads),
)


def make(name, mesh, *, batch_norm, impl="dense", **loss):
    model = ModelConfig(head_hidden=12, head_dim=6, predictor_hidden=10, head_norm=batch_norm)
    networks = {"encoder": Encoder(batch_norm), "head": make_head(model), "predictor": make_predictor(model)}
    networks |= {"text": make_text_tower(TEXT, model, vocab=VOCAB), "text_head": make_head(model)}
    teacher = {part: networks[part] for part in ("encoder", "head")}

    def say(variables, images):
        return run(teacher, variables["params"], variables["batch_stats"], images, train=False)[0]

    config = Config(loss=LossConfig(impl=impl, temperature=TEMPERATURE, **loss), target=TargetConfig(key_splits=2))
    own = methods.traits(name)
    given = {"teacher": Teacher(say, feature_dim=10)} if own.teacher else {}
    return methods.find(name)(networks=networks, config=config, mesh=mesh, **given), make_init(teacher)


def a_batch(images, seed=0):
    key = jax.random.key(seed)
    ids = jnp.arange(images, dtype=jnp.int32) + 100 * seed
    tokens = jax.random.randint(jax.random.fold_in(key, 1), (images, TEXT.length), 0, VOCAB).at[:, 0].set(1)
    views = jax.random.normal(key, (images, 2, SIDE, SIDE, 3))
    return {"views": views, "id": ids, "label": jnp.where(ids % 5 == 0, -1, ids % 3), "tokens": tokens}


def preparer(name):
    """What the method embeds of a batch."""
    own = methods.traits(name)

    def prepare(batch):
        views = batch["views"][:, : own.views]
        return Captioned(views, batch["tokens"]) if own.captions else views

    return prepare


class Run:
    """A method on some devices: its first state, and steps of every kind from it."""

    def __init__(self, method, prepare, *, devices=1, target=None, queue=0, captions=False, views=2, shape=None):
        self.mesh, self.method, self.prepare = make_mesh(devices, 1), method, prepare
        init = make_init_state(
            method,
            REMEMBER,
            views_shape=shape or (2, views, SIDE, SIDE, 3),
            tokens_shape=(2, TEXT.length) if captions else None,
            queue_size=queue,
            queue_dim=6,
            queue_dtype="float16",
        )
        state = jax.jit(init, compiler_options=FAST_COMPILE)(jax.random.key(0))
        state = state if target is None else state._replace(target=target)
        self.shardings = state_shardings(state, self.mesh)
        self.state = jax.device_put(state, self.shardings)
        self.given = dict(
            seed=SEED,
            learning_rate=lambda _: 0.1,
            temperature=lambda *_: TEMPERATURE,
            target_decay=lambda _: 0.9,
        )

    @functools.cached_property
    def one_shot(self):
        return self.jit(make_train_step(self.method, REMEMBER, self.prepare, **self.given))

    def programs(self, portions):
        return make_programs(self.method, REMEMBER, self.prepare, portions=portions, **self.given)

    @functools.cache  # noqa: B019
    def cached(self, images, micro):
        portions = Portions(images, micro)
        return self.jit(make_cached_step(self.programs(portions), portions))

    def hosted(self, images, micro):
        portions = Portions(images, micro)
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self.state)
        return HostedStep(self.programs(portions), portions, mesh=self.mesh, like=like)

    def jit(self, step, options=FAST_COMPILE):
        outputs = (self.shardings, replicated(self.mesh))
        return jax.jit(
            step, in_shardings=(self.shardings, along_data(self.mesh)), out_shardings=outputs, compiler_options=options
        )


@functools.cache  # tests of one method share its programs
def a_run(name, devices=1, *, batch_norm=False, **loss):
    own = methods.traits(name)
    method, init_teacher = make(name, make_mesh(devices, 1), batch_norm=batch_norm, **loss)
    target = None
    if own.teacher:
        init = jax.jit(init_teacher, compiler_options=FAST_COMPILE)
        target = init(jax.random.key(77), jnp.zeros((2, 2, SIDE, SIDE, 3)))
    queue = QUEUE if own.queue else 0
    shapes = dict(queue=queue, captions=own.captions, views=own.views, target=target)
    return Run(method, preparer(name), devices=devices, **shapes)


def rows_of(images, micro):
    """Which images meet in each micro-batch."""
    portions = Portions(images, micro)
    sizes = [micro] * portions.whole + [portions.short] * (portions.short > 0)
    return [portions.take(np.arange(images), number, size) for number, size in enumerate(sizes)]


def reference(run, state, batch, micro):
    """One shot, with each micro-batch embedded on its own by its own key: objective, gradient, running statistics."""
    rows = rows_of(len(batch["id"]), micro)
    keys = jax.random.split(problem_keys(SEED, state.step, 1)[0])
    place = np.argsort(np.concatenate(rows))

    def loss(params):
        parts, stats = [], state.batch_stats
        for number, own in enumerate(rows):
            inputs = run.prepare({name: x[own] for name, x in batch.items()})
            key = jax.random.fold_in(keys[0], number)
            part, stats = run.method.embed(key, params, stats, state.target, inputs, train=True)
            parts.append(part)
        embeddings = jax.tree.map(lambda *x: jnp.concatenate(x)[place], *parts)
        given = dict(queue=state.queue, temperature=TEMPERATURE)
        out = run.method.objective(keys[1], embeddings, batch["id"], batch["label"], **given)
        return out.loss, (out, stats)

    (_, (out, stats)), grads = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=FAST_COMPILE)(
        state.params
    )
    return out, grads, stats


def close(a, b, tolerance=1e-5):
    """Equal up to a share of the largest number of an array, or where that is rounding of a tenth of the tree's."""
    largest = max((np.abs(leaf).max(initial=0) for leaf in jax.tree.leaves(jax.device_get(b))), default=0)

    def one(x, y):
        x, y = (np.asarray(v, np.float64) for v in (x, y))
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * max(np.abs(y).max(initial=0), 0.1 * largest))

    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(one, a, b)


def same_step(one, other, tolerance=1e-5):
    """State and metrics of two steps agree; a queue of float16 within an ulp."""
    (state, metrics), (expected, wanted) = one, other
    assert metrics.keys() == wanted.keys()
    for name in metrics:
        close(metrics[name], wanted[name], tolerance)
    for name in ("params", "opt_state", "batch_stats", "target", "updates", "step"):  # opt_state is the gradient
        close(getattr(state, name), getattr(expected, name), tolerance)
    if expected.queue is not None:
        close(state.queue.values, expected.queue.values, 1e-3)
        jax.tree.map(np.testing.assert_array_equal, state.queue[1:], expected.queue[1:])


@pytest.mark.parametrize("name", EVERY)
def test_without_batch_norm_two_steps_are_those_that_keep_every_activation(name):
    check_without_batch_norm(name, 6)


@pytest.mark.parametrize("micro", [4, 16])
def test_so_are_those_of_whole_micro_batches_and_of_one(micro):
    check_without_batch_norm("simclr", micro)


def check_without_batch_norm(name, micro):
    run = a_run(name)
    step, state, expected = run.cached(16, micro), run.state, run.state
    for seed in range(2):  # the second one against a queue
        expected, wanted = run.one_shot(expected, a_batch(16, seed))
        state, metrics = step(state, a_batch(16, seed))
        same_step((state, metrics), (expected, wanted))
    assert step._cache_size() == 1
    if methods.traits(name).negatives and name != "moco_v2":
        assert metrics["negatives_per_anchor"] == metrics["negatives_per_anchor"] >= 11  # more than a micro-batch has


@pytest.mark.parametrize("name", ["moco_v2", *(pytest.param(name, marks=MORE) for name in NAMES if name != "moco_v2")])
def test_with_batch_norm_a_step_is_one_shot_with_statistics_of_each_micro_batch(name):
    run = a_run(name, batch_norm=True)
    first, _ = run.cached(16, 6)(run.state, a_batch(16, 1))  # a queue that is not empty, statistics that are not 0
    state, metrics = run.cached(16, 6)(first, a_batch(16))
    out, grads, stats = reference(run, first, a_batch(16), 6)
    close(state.opt_state, grads)
    close(state.batch_stats, stats)
    for key, value in out.metrics.items():
        close(metrics[key], value)
    close(metrics["loss"], out.loss)


def test_statistics_of_micro_batches_are_not_those_of_the_whole_batch():
    run = a_run("simclr", batch_norm=True)
    state, _ = run.cached(16, 6)(run.state, a_batch(16))
    whole, _ = run.one_shot(run.state, a_batch(16))
    with pytest.raises(AssertionError):
        close(state.opt_state, whole.opt_state, 1e-2)


@functools.cache
def a_toy(devices=1, queue=24, dropout=True):
    """A method that drops half of the pixels by its key: what it learns depends on every random bit."""

    def init(key, views):
        del views
        return {"params": {"kernel": jax.random.normal(key, (SIDE, 6))}, "batch_stats": {"seen": jnp.zeros(())}}

    def embed(key, params, batch_stats, target, views, *, train):
        del target, train
        flat = views.reshape(*views.shape[:2], -1)[..., :SIDE]
        kept = jax.random.bernoulli(key, 0.5, flat.shape) if dropout else 1.0
        # what it says depends on how many micro-batches came before: the second pass must see what the first one saw
        seen = batch_stats["seen"] + 1
        return (flat * kept) @ params["kernel"] * seen, {"seen": seen}

    def objective(key, embeddings, ids, labels, *, queue, temperature):
        del key, labels, temperature
        scores = embeddings[:, 0] @ embeddings[:, 1].T
        loss = jnp.mean(jax.nn.logsumexp(scores, axis=1) - jnp.diagonal(scores))
        seen = {"images": jnp.float32(len(ids)), "rows": jnp.float32(0 if queue is None else queue.filled)}
        return Objective(loss, seen, embeddings[:, 0], ids)

    method = Method(init, embed, objective, lambda *_: None, lambda params: params)
    return Run(method, lambda batch: batch["views"], devices=devices, queue=queue)


@pytest.mark.parametrize("micro", [2, 7])
def test_the_second_pass_sees_the_random_numbers_and_the_statistics_of_the_first(micro):
    run = a_toy()
    first, _ = run.cached(19, micro)(run.state, a_batch(19, 1))
    state, metrics = run.cached(19, micro)(first, a_batch(19))
    out, grads, stats = reference(run, first, a_batch(19), micro)
    close(state.opt_state, grads)
    close(metrics["loss"], out.loss)
    assert state.batch_stats == stats
    assert (metrics["images"], metrics["rows"]) == (19, 19)
    np.testing.assert_array_equal(state.queue.groups[:19], [*range(5, 19), *range(114, 119)])
    close(state.target, jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, first.target, state.params))


def test_each_image_is_in_one_micro_batch_and_each_device_has_as_many_of_each():
    for images, micro in ((16, 4), (40, 16), (24, 24), (21, 7), (22, 10), (13, 4)):
        rows = rows_of(images, micro)
        np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(images))
        for devices in (d for d in range(1, 9) if images % d == 0 and micro % d == 0):
            for own in rows:
                counts = np.bincount(own // (images // devices), minlength=devices)
                assert set(counts) == {len(own) // devices}
    assert rows_of(16, 4)[1].tolist() == [1, 5, 9, 13]  # as with accumulation


@pytest.mark.parametrize("name", ["simclr", pytest.param("clip", marks=MORE), pytest.param("moco_v3", marks=MORE)])
def test_one_and_eight_devices_agree(name):
    results = []
    for devices in (1, 8):
        run = a_run(name, devices, impl="strip")
        step, state = run.cached(40, 16), run.state
        for seed in range(2):
            state, metrics = step(state, a_batch(40, seed))
        results.append(jax.device_get((state, metrics)))
    same_step(*results[::-1], tolerance=3e-5)


def test_no_image_moves_between_devices():
    run = a_run("simclr", 8, impl="strip")
    text = run.cached(40, 16).lower(run.state, a_batch(40)).compile().as_text()
    sent = re.findall(r"= (.*) (?:all-gather|all-to-all|collective-permute)\(", text)
    assert sent  # for the loss
    assert not [shape for shape in sent if f",{SIDE},{SIDE},3]" in shape or f",{SIDE * SIDE * 3}]" in shape]


def test_a_step_with_one_bad_image_changes_nothing_but_the_count_of_steps():
    run = a_toy()
    step = run.cached(19, 5)
    state, _ = step(run.state, a_batch(19))
    for image in (1, 18):
        poisoned = a_batch(19, 2)
        poisoned["views"] = poisoned["views"].at[image].set(np.nan)
        for bad in (step, run.hosted(19, 5)):
            given = jax.tree.map(jnp.copy, state)
            after, metrics = bad(given, jax.device_get(poisoned) if isinstance(bad, HostedStep) else poisoned)
            assert (int(after.step), int(metrics["skipped"])) == (int(state.step) + 1, 1)
            jax.tree.map(np.testing.assert_array_equal, after._replace(step=state.step), state)
    going_on, without = (step(given, a_batch(19, 3))[0] for given in (after, state._replace(step=after.step)))
    jax.tree.map(np.testing.assert_array_equal, going_on, without)


@pytest.mark.parametrize(("devices", "name"), [pytest.param(1, "moco_v2", marks=MORE), (8, "simclr")])
def test_images_on_the_host_give_the_step_of_images_on_the_device(devices, name):
    run, portions = a_run(name, devices, batch_norm=devices == 1), Portions(40, 16)
    hosted = run.hosted(40, 16)
    step = run.jit(make_cached_step(run.programs(portions), portions), options=None)  # the hosted programs have none
    state, other = run.state, jax.tree.map(jnp.copy, run.state)
    for seed in range(2):
        state, metrics = step(state, a_batch(40, seed))
        other, others = hosted(other, jax.device_get(a_batch(40, seed)))
    same_step((other, others), (state, metrics), tolerance=1e-6)
    sizes = [program._cache_size() for program in hosted.programs]
    assert sizes == [2, 1, 2, 1]  # a short last micro-batch has programs of its own
    assert jax.tree.map(lambda x: x.sharding, other) == jax.tree.map(lambda x: x.sharding, state)


def test_a_batch_that_is_read_twice_gives_the_same_bits_as_one_in_memory():
    run, portions = a_run("simclr"), Portions(19, 5)
    hosted, batch = run.hosted(19, 5), dict(jax.device_get(a_batch(19)), bad=np.full(19, -1, np.int32))
    stream = itertools.chain(*[Held(batch, portions)] * 2)
    twice = Twice(stream, portions, lambda _: None, "toy")
    states = [hosted(jax.tree.map(jnp.copy, run.state), given) for given in (twice, batch)]
    jax.tree.map(np.testing.assert_array_equal, *states)
    assert next(stream, None) is None


@pytest.mark.parametrize("name", ["simclr", pytest.param("moco_v3", marks=MORE)])
def test_the_programs_compile_for_the_shapes_that_they_are_called_with(name):
    hosted = a_run(name).hosted(16, 8)
    shapes = jax.eval_shape(lambda: a_batch(16))
    arguments = hosted.arguments(shapes)
    compiled = {
        field: getattr(hosted.programs, field).lower(*given).compile(FAST_COMPILE)
        for field, given in arguments._asdict().items()
    }
    embeddings = sum(x.size * 4 for x in jax.tree.leaves(arguments.loss[1]))
    assert compiled["loss"].memory_analysis().alias_size_in_bytes == embeddings  # the gradient takes their place
    assert compiled["update"].memory_analysis().alias_size_in_bytes > 0
    views = 8 * methods.traits(name).views * SIDE * SIDE * 3 * 4
    assert compiled["encode"].memory_analysis().argument_size_in_bytes > views
    hosted(jax.tree.map(jnp.copy, a_run(name).state), jax.device_get(a_batch(16)))
    assert [program._cache_size() for program in hosted.programs] == [1, 1, 1, 1]


def test_seven_steps_and_thirteen_more_are_bitwise_twenty_steps(tmp_path):
    run = a_toy()
    step, whole, state = run.cached(19, 5), run.state, run.state
    for seed in range(20):
        whole, _ = step(whole, a_batch(19, seed))
    for seed in range(7):
        state, _ = step(state, a_batch(19, seed))
    store = Checkpoints(tmp_path)
    store.save(7, state, position={}, config={}, score=None)
    store.wait()
    state, _ = store.restore(
        7, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    )
    store.close()
    for seed in range(7, 20):
        state, _ = step(state, a_batch(19, seed))
    jax.tree.map(np.testing.assert_array_equal, state, whole)


class Deep(nn.Module):
    """Many activations and little to compile."""

    @nn.compact
    def __call__(self, images, train=False):
        x = images.reshape(images.shape[0], -1)
        for _ in range(8):
            x = nn.relu(nn.Dense(64)(x))
        return nn.Dense(6)(x)


def test_activations_do_not_grow_with_the_batch():
    chain = {"encoder": Deep()}

    def objective(key, embeddings, ids, labels, *, queue, temperature):
        del key, labels, queue, temperature
        return Objective(jnp.mean((embeddings[:, 0] - embeddings[:, 1]) ** 2), {}, embeddings[:, 0], ids)

    run = Run(Method(make_init(chain), make_embed(chain), objective, lambda *_: None), lambda batch: batch["views"])

    def temp_bytes(step, images):
        batch = jax.eval_shape(lambda: a_batch(images))
        return step.lower(run.state, batch).compile(AS_USERS_COMPILE).memory_analysis().temp_size_in_bytes

    one_shot = [temp_bytes(run.one_shot, images) for images in (256, 512)]
    cached = [temp_bytes(run.cached(images, 16), images) for images in (256, 512)]
    activations = 2 * 256 * 8 * 64 * 4
    assert one_shot[1] - one_shot[0] > activations
    assert cached[1] - cached[0] < 0.1 * activations
    assert cached[1] < 0.3 * one_shot[1]
