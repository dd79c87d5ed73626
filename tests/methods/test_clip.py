import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE
from test_contract import MODEL, TEXT, VOCAB, Encoder

from jaxcl.config import Config, DataConfig, LossConfig, OptimConfig
from jaxcl.data import Tokenizer, open_source
from jaxcl.mesh import make_mesh
from jaxcl.methods.base import Captioned
from jaxcl.methods.clip import Matches, hash_of, make_method, match
from jaxcl.models import make_head, make_text_tower
from jaxcl.optim import make_optimizer


def matches(image, text, captions, temperature=0.2):
    rows = len(image)
    scale = jnp.full(rows, -math.log(temperature), jnp.float32)
    return Matches(jnp.float32(image), jnp.float32(text), scale, jnp.array(captions, jnp.float32))


def loss_of(embeddings, mesh=None, **settings):
    ids = jnp.arange(len(embeddings.image), dtype=jnp.int32) + 7
    config = Config(loss=LossConfig(**settings))
    return match(jax.random.key(0), embeddings, ids, config=config, mesh=mesh)


def quick(function):
    return jax.jit(function, compiler_options=FAST_COMPILE)


def computed(embeddings, **settings):
    return quick(lambda e: loss_of(e, **settings))(embeddings)


def by_loops(image, text, captions, temperature):
    """The definition, in float64: a caption that is also another image's is no negative of that image."""
    units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (np.float64(image), np.float64(text))]
    scores = units[0] @ units[1].T / temperature
    losses = []
    for table in (scores, scores.T):
        for i, row in enumerate(table):
            others = [row[j] for j in range(len(row)) if captions[j] != captions[i]]
            losses.append(np.log(np.sum(np.exp([row[i], *others]))) - row[i])
    return np.mean(losses)


def random_matches(rows=13, dim=5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, dim)), rng.normal(size=(rows, dim)), rng.integers(0, 9, rows)


@pytest.mark.parametrize("impl", ["strip", "dense"])
@pytest.mark.parametrize("temperature", [0.01, 0.2])
def test_the_loss_is_half_of_each_direction_over_negatives_of_other_captions(impl, temperature):
    given = random_matches()
    found = computed(matches(*given, temperature), impl=impl).loss
    np.testing.assert_allclose(found, by_loops(*given, temperature), rtol=1e-5)


def test_embeddings_that_are_all_one_have_the_loss_of_guessing():
    same = np.ones((11, 4))
    out = computed(matches(same, same, range(11)))
    np.testing.assert_allclose(out.loss, math.log(11), rtol=1e-6)
    assert float(out.metrics["negatives_per_anchor"]) == 10


def test_pairs_that_are_twice_in_a_batch_have_no_floor_of_log_2():
    rows = np.repeat(np.eye(8), 2, axis=0)
    shared = computed(matches(rows, rows, np.repeat(np.arange(8), 2), 0.05)).loss
    as_strangers = computed(matches(rows, rows, range(16), 0.05)).loss
    assert float(shared) < 1e-5
    np.testing.assert_allclose(as_strangers, math.log(2), rtol=1e-4)


def test_top_k_is_that_of_each_direction():
    image, text, _ = random_matches()
    captions = range(len(image))
    every = by_loops(image, text, captions, 0.2)
    np.testing.assert_allclose(computed(matches(image, text, captions), top_k=12).loss, every, rtol=1e-5)
    few = computed(matches(image, text, captions), top_k=3)
    assert float(few.loss) < float(every)
    assert float(few.metrics["negatives_per_anchor"]) == 3
    sampled = computed(matches(image, text, captions), top_k=3, tail="sampled", tail_samples=4)
    np.testing.assert_allclose(sampled.loss, every, rtol=1e-5)


def test_eight_devices_share_both_directions():
    given = matches(*random_matches(rows=32))

    def value_and_gradients(mesh):
        found = jax.value_and_grad(lambda e: loss_of(e, mesh, top_k=9).loss)
        return jax.jit(found, compiler_options=FAST_COMPILE)(given)

    one, eight = value_and_gradients(None), value_and_gradients(make_mesh(8))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), eight, one)


@functools.cache
def a_method(temperature=0.2):
    networks = {"encoder": Encoder(), "head": make_head(MODEL), "text_head": make_head(MODEL)}
    networks["text"] = make_text_tower(TEXT, MODEL, vocab=VOCAB)
    method = make_method(networks=networks, config=Config(loss=LossConfig(impl="dense", temperature=temperature)))
    views = jax.random.normal(jax.random.key(1), (12, 1, 4, 4, 3))
    tokens = jax.random.randint(jax.random.key(2), (12, TEXT.length), 3, VOCAB)
    inputs = Captioned(views, tokens)
    return method, inputs, quick(method.init)(jax.random.key(0), inputs)


def embedded(train):
    method, inputs, variables = a_method()
    embed = quick(lambda params, stats: method.embed(None, params, stats, None, inputs, train=train)[0])
    return embed(variables["params"], variables["batch_stats"])


def test_the_gradient_of_the_scale_is_that_of_finite_differences_and_goes_through_every_row_of_the_embeddings():
    _, _, variables = a_method()
    embeddings = embedded(train=True)
    assert all(leaf.shape[0] == 12 and jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in embeddings)

    def loss(scale):
        return loss_of(embeddings._replace(log_scale=jnp.broadcast_to(scale, (12,))), impl="dense").loss

    scale, step = variables["params"]["log_scale"], 1e-2
    np.testing.assert_allclose(jnp.exp(-scale), 0.2, rtol=1e-6)
    expected = (quick(loss)(scale + step) - quick(loss)(scale - step)) / (2 * step)
    np.testing.assert_allclose(quick(jax.grad(loss))(scale), expected, rtol=1e-3)
    by_row = quick(jax.grad(lambda e: loss_of(e).loss))(embeddings)
    np.testing.assert_allclose(by_row.log_scale, np.full(12, expected / 12), rtol=1e-3)
    assert not by_row.caption.any()


def test_the_temperature_of_the_log_is_the_learned_one():
    out = computed(matches(*random_matches(), 0.03))
    np.testing.assert_allclose(out.metrics["temperature"], 0.03, rtol=1e-6)


def test_towers_are_the_embeddings_without_training():
    method, inputs, variables = a_method()
    params, stats = variables["params"], variables["batch_stats"]
    embeddings, towers = embedded(train=False), method.towers
    image, text = (
        quick(towers.image)(params, stats, inputs.views[:, 0]),
        quick(towers.text)(params, stats, inputs.tokens),
    )
    np.testing.assert_allclose(image, embeddings.image, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(text, embeddings.text, rtol=1e-5, atol=1e-6)


def updates_of(grads, start, name="adamw", **settings):
    """The inverse temperature after each of some gradients of its logarithm."""
    config = OptimConfig(name=name, base_lr=0.5, warmup_steps=0, clip_norm=None, **settings)
    optimizer = make_optimizer(config, batch_size=256, total_steps=10_000)
    params = {"log_scale": jnp.float32(math.log(start))}
    state, seen = optimizer.init(params), []
    update = quick(optimizer.update)
    for grad in grads:
        updates, state = update({"log_scale": jnp.float32(grad)}, state, params)
        params = jax.tree.map(jnp.add, params, updates)
        seen.append(float(jnp.exp(params["log_scale"])))
    return seen


@pytest.mark.parametrize("name", ["adamw", "sgd", "lars"])
def test_the_inverse_temperature_stops_at_100_and_comes_back_when_the_gradient_turns(name):
    seen = updates_of([-1.0] * 6 + [1.0] * 20, 30.0, name)
    assert max(seen) <= 100 * (1 + 1e-6)
    np.testing.assert_allclose(seen[5], 100, rtol=1e-6)
    # momentum of six steps outwards is spent before it moves, however long it has been at the bound
    assert seen[-1] < 50
    assert min(updates_of([1.0] * 60, 1.0, name)) >= 0.01 * (1 - 1e-6)


def test_weight_decay_leaves_the_scale_alone():
    assert set(updates_of([0.0] * 200, 14.0, weight_decay=0.1)) == {float(jnp.exp(jnp.float32(math.log(14.0))))}


def test_a_caption_has_one_number_however_much_padding_follows_and_no_two_names_of_emoji_share_one():
    names = sorted(
        {e.caption for side in open_source(DataConfig(), captions=True) for e in map(side.__getitem__, range(200))}
    )
    numbers = hash_of(jnp.asarray(Tokenizer(80)(names)))
    assert len(set(numbers.tolist())) == len(names) > 390
    assert int(numbers.min()) >= 0
    assert int(numbers.max()) < 2**24
    short = [name for name in names if len(name.encode()) <= 20]
    np.testing.assert_array_equal(
        hash_of(jnp.asarray(Tokenizer(22)(short))), hash_of(jnp.asarray(Tokenizer(80)(short)))
    )
