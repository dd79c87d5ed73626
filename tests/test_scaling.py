"""The factor of the loss with float16: what overflows is skipped and halves it, and nothing else changes."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE

from jaxcl import methods
from jaxcl.blueprint import make_networks
from jaxcl.build import build
from jaxcl.cached import make_cached_step, make_programs
from jaxcl.checkpoint import Checkpoints
from jaxcl.config import ConfigError, OptimConfig, first_loss_scale, resolve, to_dict
from jaxcl.hosted import HostedStep
from jaxcl.mesh import make_mesh, replicated
from jaxcl.methods.base import Method, Objective
from jaxcl.models.vit import ViT
from jaxcl.optim import make_optimizer
from jaxcl.portions import Portions
from jaxcl.scaling import HIGHEST, LOWEST, LossScale, init_scale, next_scale, overflowed
from jaxcl.state import make_init_state
from jaxcl.step import make_train_step
from jaxcl.train import Fit

IMAGES, DIM = 8, 5
STEPS = dict(learning_rate=lambda _: 0.1, temperature=lambda *_: 0.2, loss_scale_steps=3)


def toy_method(dtype, steep=1000):
    """One product in the compute type, and a mean whose gradient of each embedding is `steep` / 64."""

    def init(key, views):
        return {"params": {"kernel": jnp.ones((DIM, 4))}, "batch_stats": {}}

    def embed(key, params, batch_stats, target, views, *, train):
        rows = views.reshape(-1, 2, DIM).astype(dtype) @ params["kernel"].astype(dtype)
        return rows.astype(jnp.float32), batch_stats

    def objective(key, embeddings, ids, labels, *, queue, temperature):
        return Objective(steep * jnp.mean(embeddings), {}, embeddings[:, 0], ids)

    return Method(init, embed, objective, lambda *_: None, None)


def a_batch(scale=0.01):
    views = scale * np.random.default_rng(0).normal(size=(IMAGES, 2, 1, DIM, 1)).astype(np.float32)
    ids = np.arange(IMAGES, dtype=np.int32)
    return {"views": views, "id": ids, "label": ids}


def toy_run(kind, dtype=jnp.float16, first=2**14, **options):
    """First state, and a step of a kind."""
    method, micro = toy_method(dtype, **options), 4 if kind != "one shot" else IMAGES
    num_micro = 2 if kind == "accumulate" else 1
    config = OptimConfig(name="sgd", momentum=0.0, base_lr=1.0, warmup_steps=0, weight_decay=0.0, clip_norm=None)
    optimizer = make_optimizer(config, batch_size=IMAGES, total_steps=100, num_micro=num_micro)
    init = make_init_state(
        method,
        optimizer,
        views_shape=(2, 2, 1, DIM, 1),
        queue_size=0,
        queue_dim=4,
        queue_dtype="float16",
        loss_scale=first,
    )
    state, parts = init(jax.random.key(0)), (method, optimizer, lambda batch: batch["views"])
    if kind in ("one shot", "accumulate"):
        return state, jax.jit(make_train_step(*parts, num_micro=num_micro, **STEPS))
    portions = Portions(IMAGES, micro)
    programs = make_programs(*parts, portions=portions, **STEPS)
    if kind == "cached":
        return state, jax.jit(make_cached_step(programs, portions))
    mesh = make_mesh(1, 1)
    state = jax.device_put(state, replicated(mesh))
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    return state, HostedStep(programs, portions, mesh=mesh, like=like)


@pytest.mark.parametrize("kind", ["one shot", "accumulate", "cached", "hosted"])
def test_a_step_that_overflows_is_skipped_and_halves_the_factor_which_later_doubles_again(kind):
    state, step = toy_run(kind)
    _, plain = toy_run(kind, jnp.float32, None)
    expected = toy_run(kind, jnp.float32, None)[0]
    # 1000 / 64 times the factor must stay below 65,504: up to 2^12, and with micro-batches of half the images 2^11
    fits = 2**11 if kind == "accumulate" else 2**12
    factors, skipped = [], 0
    for _ in range(9):
        before = np.asarray(state.params["kernel"])
        state, metrics = step(state, a_batch())
        factors.append(float(metrics["loss_scale"]))
        overflow = factors[-1] > fits
        skipped += overflow
        assert (float(metrics["overflow"]), int(metrics["skipped"])) == (overflow, skipped)
        assert np.isfinite(metrics["loss"])
        if overflow:
            np.testing.assert_array_equal(state.params["kernel"], before)
        else:
            expected, _ = plain(expected, a_batch())
            np.testing.assert_allclose(state.params["kernel"], expected.params["kernel"], rtol=2e-3)
    start = [float(2**power) for power in range(14, int(np.log2(fits)), -1)]
    cycle = [float(fits)] * 3 + [2.0 * fits]
    assert factors == (start + cycle * 3)[:9]
    assert int(state.updates) == 9 - skipped


def test_gradients_too_small_for_float16_vanish_without_a_factor_and_arrive_with_one():
    norms = {}
    for dtype, first in ((jnp.float32, None), (jnp.float16, 1), (jnp.float16, 2**14)):
        state, step = toy_run("one shot", dtype, first, steep=1e-6)  # 1.6e-8 an embedding
        norms[first] = float(step(state, a_batch())[1]["grad_norm"])
    assert norms[1] == 0
    np.testing.assert_allclose(norms[2**14], norms[None], rtol=2e-3)


def test_a_loss_that_is_not_finite_is_no_overflow_and_leaves_the_factor():
    state, step = toy_run("one shot", first=2**4)
    new, metrics = step(state, a_batch(scale=np.inf))
    assert (float(metrics["overflow"]), int(metrics["skipped"]), float(new.loss_scale.factor)) == (0, 1, 2**4)


def test_the_smallest_factor_excuses_nothing():
    scale = init_scale(1)
    assert not overflowed(scale, 1.0, jnp.nan)
    assert not overflowed(None, 1.0, jnp.inf)
    assert overflowed(init_scale(2), 1.0, jnp.nan)
    assert float(next_scale(scale, finite=False, overflow=False, patience=3).factor) == LOWEST


def test_the_factor_is_that_of_a_plain_loop():
    rng, patience = np.random.default_rng(3), 4
    factor, count, scale = 2.0**22, 0, LossScale(jnp.float32(2.0**22), jnp.int32(0))
    following = jax.jit(functools.partial(next_scale, patience=patience))
    for overflow in rng.random(200) < 0.12:
        scale = following(scale, finite=not overflow, overflow=bool(overflow))
        count = 0 if overflow else count + 1
        if overflow:
            factor = max(factor / 2, LOWEST)
        elif count == patience:
            factor, count = min(factor * 2, HIGHEST), 0
        assert (float(scale.factor), int(scale.finite)) == (factor, count)


def test_overflows_do_not_count_among_the_steps_in_a_row_that_end_a_run():
    fit = object.__new__(Fit)
    fit._lost_in_a_row, fit._skipped = 0, 0.0
    fit._config = resolve({"max_nonfinite": 2})
    fit._checkpoints = SimpleNamespace(latest=lambda: None)
    ids = np.arange(3)
    for number in range(1, 9):
        fit._watch(number, {"skipped": float(number), "overflow": 1.0}, ids)
    with pytest.warns(UserWarning, match="step 9 was not finite"):
        fit._watch(9, {"skipped": 9.0, "overflow": 0.0}, ids)
    fit._watch(10, {"skipped": 10.0, "overflow": 1.0}, ids)
    with pytest.warns(UserWarning, match="step 11"), pytest.raises(ConfigError, match="2 non-finite steps in a row"):
        fit._watch(11, {"skipped": 11.0, "overflow": 0.0}, ids)


def settings(dtype="float16", **optim):
    return resolve(
        {
            "data": {"image_size": 16},
            "model": {"dtype": dtype, "head_hidden": 8, "head_dim": 4},
            "batch": {"size": 16},
            "optim": {"warmup_steps": 1, **optim},
            "steps": 6,
            "mesh": {"shape": {"data": 1}},
        }
    )


def test_the_factor_is_saved_and_comes_back_and_other_types_have_none(tmp_path):
    parts = build(settings(loss_scale=2**9))
    state = parts.init_state(0)
    assert float(state.loss_scale.factor) == 2**9
    state = state._replace(loss_scale=jax.device_put(LossScale(np.float32(2**7), np.int32(5)), state.step.sharding))
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(1, state, position={}, config=to_dict(parts.config), score=None)
    checkpoints.wait()
    found = checkpoints.restore_newest(parts.like).state.loss_scale
    checkpoints.close()
    assert (float(found.factor), int(found.finite)) == (2**7, 5)
    assert build(settings("float32")).like.loss_scale is None
    assert first_loss_scale(settings("bfloat16")) is None


@pytest.mark.parametrize(
    ("dtype", "optim", "message"),
    [
        ("float16", {"loss_scale": 1000}, "optim.loss_scale = 1000 is no power of two; .* are 512 and 1024$"),
        ("bfloat16", {"loss_scale": 8}, "optim.loss_scale = 8 is read only with model.dtype = 'float16'; leave it out"),
        ("float32", {"loss_scale_steps": 8}, "optim.loss_scale_steps = 8 is read only with model.dtype = 'float16'"),
    ],
)
def test_a_factor_that_is_no_power_of_two_or_that_nothing_reads_is_an_error(dtype, optim, message):
    with pytest.raises(ConfigError, match=message):
        settings(dtype, **optim)


SMALL = {
    "data": {"image_size": 8},
    "batch": {"size": 8},
    "model": {"encoder": "vit_ti", "patch": 4, "head_layers": 1, "head_dim": 8, "head_norm": False},
    "loss": {"impl": "dense", "temperature": 1.0},
    "optim": {"warmup_steps": 3, "base_lr": 0.1},
    "steps": 30,
}


@functools.cache
def trained(dtype):
    """Metrics of thirty steps on eight images of noise, and the last state."""
    config = resolve({**SMALL, "model": {**SMALL["model"], "dtype": dtype}})
    networks = make_networks(config, norm_momentum=0.9, vocab=None)
    networks["encoder"] = ViT(16, 2, depth=2, patch=4, dtype=jnp.dtype(dtype))
    method = methods.find("simclr")(networks=networks, config=config)
    optimizer = make_optimizer(config.optim, batch_size=8, total_steps=config.steps)
    init = make_init_state(
        method,
        optimizer,
        views_shape=(2, 2, 8, 8, 3),
        queue_size=0,
        queue_dim=8,
        queue_dtype="float16",
        loss_scale=2**9 if dtype == "float16" else None,
    )
    step = make_train_step(method, optimizer, lambda batch: batch["views"], **{**STEPS, "loss_scale_steps": 2000})
    step, state = jax.jit(step, compiler_options=FAST_COMPILE), jax.jit(init)(jax.random.key(0))
    ids = np.arange(8, dtype=np.int32)
    rng, rows = np.random.default_rng(0), []
    images = rng.normal(size=(8, 1, 8, 8, 3))
    for _ in range(config.steps):
        views = (images + 0.3 * rng.normal(size=(8, 2, 8, 8, 3))).astype(np.float32)
        state, metrics = step(state, {"views": views, "id": ids, "label": ids})
        rows.append({name: float(value) for name, value in metrics.items()})
    return rows, state


MORE = pytest.mark.slow(reason="ten seconds: the same of a type that has no factor")


@pytest.mark.parametrize("dtype", [pytest.param("bfloat16", marks=MORE), "float16"])
def test_a_small_vit_learns_the_same_in_each_compute_type(dtype):
    expected, _ = trained("float32")
    rows, state = trained(dtype)
    np.testing.assert_allclose(rows[0]["loss"], expected[0]["loss"], rtol=0.01)
    last, wanted = (np.mean([row["loss"] for row in some[-5:]]) for some in (rows, expected))
    assert wanted < 0.2 * expected[0]["loss"]
    np.testing.assert_allclose(last, wanted, rtol=0.06)
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    assert ("loss_scale" in rows[0]) == (dtype == "float16")
