"""LoRA: nothing changes at first, the base never does, and neither optimizer nor checkpoint knows it."""

import dataclasses
import functools
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE

from jaxcl import lora, methods
from jaxcl.build import build
from jaxcl.cached import make_cached_step, make_programs
from jaxcl.checkpoint import Checkpoints, Restored, saved_types
from jaxcl.config import Config, ConfigError, LoraConfig, LossConfig, ModelConfig, OptimConfig, TargetConfig, resolve
from jaxcl.hosted import HostedStep
from jaxcl.integrity import checksums
from jaxcl.mesh import along_data, make_mesh, replicated
from jaxcl.methods.parts.networks import make_init, run
from jaxcl.models import make_head, make_predictor
from jaxcl.models.conv import ConvEncoder
from jaxcl.models.resnet import BasicBlock, ResNet
from jaxcl.models.vit import ViT
from jaxcl.optim import group_table, make_optimizer
from jaxcl.portions import Portions
from jaxcl.pretrained import whole_paths
from jaxcl.resume import with_base, with_moved
from jaxcl.state import make_init_state, state_shardings
from jaxcl.step import make_train_step
from jaxcl.teacher import find_teacher
from jaxcl.train import evaluate, train
from jaxcl.workdir import CHECKPOINTS

SIDE, IMAGES, SEED = 8, 16, 3
MODEL = ModelConfig(head_hidden=12, head_dim=6, predictor_hidden=10, head_norm=False)
ADAPTED = LoraConfig(rank=2, alpha=3.0)
ENCODERS = {
    "vit": functools.partial(ViT, 16, 2, 3, patch=4, remat="blocks"),
    "resnet": functools.partial(ResNet, BasicBlock, (1, 1), width=8),
    "conv": ConvEncoder,
}
fast = functools.partial(jax.jit, compiler_options=FAST_COMPILE)


@functools.cache
def adapted(name):
    """An encoder with a head, its plain parameters, both parts of them, and features of some images."""
    chain = {"encoder": ENCODERS[name](), "head": make_head(MODEL)}
    variables = fast(make_init(chain))(jax.random.key(0), jnp.zeros((2, 2, SIDE, SIDE, 3)))
    images = jax.random.normal(jax.random.key(5), (3, SIDE, SIDE, 3))

    @fast
    def features(params):
        return run(chain, params, variables["batch_stats"], images, train=False)[0]["encoder"]

    return variables["params"], *lora.split(jax.random.key(0), variables["params"], ADAPTED), features


def shaken(tree):
    """A tree that is as if it had been trained for a while."""
    return jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(x.size), x.shape), tree)


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("name", ENCODERS)
def test_at_first_a_network_computes_the_same_bits_and_later_what_its_merged_parameters_do(name):
    params, trained, frozen, features = adapted(name)
    before = features(params)
    np.testing.assert_array_equal(features(lora.joined(trained, frozen)), before)
    equal(lora.merge(trained, frozen), params)
    trained = {**trained, "encoder": shaken(trained["encoder"])}
    if name == "resnet":  # blocks start as the identity: their last norm has scale 0
        frozen = {"encoder": shaken(frozen["encoder"])}
    merged = lora.merge(trained, frozen)
    assert jax.tree.map(jnp.shape, merged) == jax.tree.map(jnp.shape, params)
    after = features(lora.joined(trained, frozen))
    np.testing.assert_allclose(after, features(merged), rtol=1e-5, atol=1e-5 * np.abs(after).max())
    assert np.abs(after - before).max() > 0.01


def test_each_layer_of_a_scan_has_its_own_a_and_b():
    _, trained, frozen, _ = adapted("vit")
    a, b = (trained["encoder"]["layers"]["mlp1"][name] for name in (lora.A, lora.B))
    assert (a.shape, b.shape) == ((3, 16, 2), (3, 2, 64))
    assert not np.any(b)
    assert len(np.unique(a)) == a.size
    np.testing.assert_array_equal(frozen["encoder"]["layers"]["mlp1"][lora.SCALE], [1.5] * 3)
    assert 0.5 < np.std(a) * 4 < 2  # 1 / √16


def test_only_kernels_that_are_aimed_at_have_an_a_and_the_rest_of_the_encoder_is_frozen():
    params, trained, frozen, _ = adapted("vit")
    assert set(trained["encoder"]) == {"layers"}
    assert set(trained["encoder"]["layers"]) == {"qkv", "project", "mlp1", "mlp2"}
    assert trained["head"] is params["head"]
    assert set(frozen) == {"encoder"}
    assert set(frozen["encoder"]) == set(params["encoder"])
    few, _ = lora.split(jax.random.key(0), params, LoraConfig(rank=2, targets="encoder/layers/q*, patches"))
    assert {*few["encoder"]} == {"layers", "patches"}
    assert {*few["encoder"]["layers"]} == {"qkv"}
    equal(few["encoder"]["layers"]["qkv"], trained["encoder"]["layers"]["qkv"])  # whatever else is adapted


class Run:
    """A method whose encoder is adapted, and its steps of every kind."""

    def __init__(self, name, devices=1):
        self.mesh, own = make_mesh(devices, 1), methods.traits(name)
        networks = {
            "encoder": ViT(8, 2, 2, patch=4),
            "head": make_head(MODEL),
            "predictor": make_predictor(MODEL),
        }
        config = Config(loss=LossConfig(impl="dense"), target=TargetConfig(key_splits=2))
        self.method = methods.find(name)(networks=networks, config=config, mesh=self.mesh)
        optim = OptimConfig(weight_decay=0.1, warmup_steps=0, base_lr=0.1)
        self.optimizers = {k: make_optimizer(optim, batch_size=256, total_steps=9, num_micro=k) for k in (1, 2)}
        shapes = dict(views_shape=(2, own.views, SIDE, SIDE, 3), queue_size=24 if own.queue else 0, queue_dim=6)
        self.init = functools.partial(make_init_state, self.method, queue_dtype="float32", adapted=ADAPTED, **shapes)
        self.given = dict(
            seed=SEED, learning_rate=lambda _: 0.1, temperature=lambda *_: 0.2, target_decay=lambda _: 0.9
        )

    @functools.cache  # noqa: B019
    def first(self, num_micro=1):
        init = self.init(self.optimizers[num_micro])
        placed = state_shardings(jax.eval_shape(init, jax.random.key(0)), self.mesh)
        return jax.jit(init, out_shardings=placed, compiler_options=FAST_COMPILE)(jax.random.key(0))

    def parts(self, num_micro=1):
        return self.method, self.optimizers[num_micro], lambda batch: batch["views"]

    def one_shot(self, num_micro=1):
        return self.jit(make_train_step(*self.parts(num_micro), num_micro=num_micro, **self.given), num_micro)

    def cached(self):
        portions = Portions(IMAGES, 8)
        return self.jit(make_cached_step(make_programs(*self.parts(), portions=portions, **self.given), portions))

    def hosted(self):
        portions = Portions(IMAGES, 8)
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self.first())
        programs = make_programs(*self.parts(), portions=portions, **self.given)
        return HostedStep(programs, portions, mesh=self.mesh, like=like)

    def jit(self, step, num_micro=1):
        placed = jax.tree.map(lambda x: x.sharding, self.first(num_micro))
        return jax.jit(
            step,
            in_shardings=(placed, along_data(self.mesh)),
            out_shardings=(placed, replicated(self.mesh)),
            compiler_options=FAST_COMPILE,
        )


def a_batch(seed=0):
    views = np.asarray(jax.random.normal(jax.random.key(seed), (IMAGES, 2, SIDE, SIDE, 3)))
    ids = np.arange(IMAGES, dtype=np.int32) + 100 * seed
    return {"views": views, "id": ids, "label": np.full(IMAGES, -1, np.int32)}


@functools.cache  # tests share its programs
def a_run(name, devices=1):
    return Run(name, devices)


@functools.cache
def after_two(name, devices=1):
    """A run after two steps at once."""
    state, step = a_run(name, devices).first(), a_run(name, devices).one_shot()
    for number in range(2):
        state, metrics = step(state, a_batch(number))
    return state, metrics


def close(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-5), a, b)


MORE = pytest.mark.slow(reason="a minute: the same with a momentum encoder and a queue")
ALSO = ["simclr", pytest.param("moco_v2", marks=MORE)]


@pytest.mark.parametrize("name", ALSO)
def test_steps_with_weight_decay_change_a_and_b_and_head_and_not_one_bit_of_the_base(name):
    first, (state, metrics) = a_run(name).first(), after_two(name)
    equal(state.frozen, first.frozen)
    for before, after in zip(jax.tree.leaves(first.params), jax.tree.leaves(state.params), strict=True):
        assert np.any(before != after)
    assert float(metrics["skipped"]) == 0
    if state.target is not None:
        assert jax.tree.map(jnp.shape, state.target) == jax.tree.map(jnp.shape, state.params)
        assert np.any(state.target["encoder"]["layers"]["qkv"][lora.B])


def test_the_optimizer_has_moments_of_nothing_but_a_and_b_and_head():
    state = a_run("simclr").first()
    sizes = [x.size for x in jax.tree.leaves(state.opt_state) if x.ndim]
    assert sum(sizes) == 2 * sum(x.size for x in jax.tree.leaves(state.params))
    assert len(jax.tree.leaves(state.params["encoder"])) == 8


@pytest.mark.parametrize("name", ALSO)
@pytest.mark.parametrize("kind", ["cached", pytest.param("hosted", marks=MORE)])
def test_cached_steps_are_those_at_once(name, kind):
    state, step = a_run(name).first(), getattr(a_run(name), kind)()
    state = jax.tree.map(jnp.copy, state)  # a hosted step gives its state up
    for number in range(2):
        state, _ = step(state, a_batch(number))
    # Adam's first steps are signs of gradients: moments show how near these are, parameters would not
    close(state.opt_state, after_two(name)[0].opt_state)
    equal(state.frozen, a_run(name).first().frozen)


def test_the_frozen_part_is_an_argument_of_the_programs_that_encode():
    step, batch = a_run("simclr").hosted(), a_batch()
    arguments = step.arguments(batch)
    sizes = jax.tree.map(jnp.shape, a_run("simclr").first().frozen)
    for program in (arguments.encode, arguments.replay):
        assert jax.tree.map(lambda x: x.shape, program[1]) == sizes
    assert arguments.loss[0].frozen is None


def test_eight_devices_make_the_same_base_to_the_last_bit_and_the_same_step():
    equal(a_run("simclr", 8).first().frozen, a_run("simclr").first().frozen)
    close(after_two("simclr", 8)[0].opt_state, after_two("simclr")[0].opt_state)


def test_micro_batches_that_are_averaged_leave_the_base_as_it_was():
    state, _ = a_run("simclr").one_shot(num_micro=2)(a_run("simclr").first(2), a_batch())
    equal(state.frozen, a_run("simclr").first().frozen)
    assert np.any(state.params["encoder"]["layers"]["qkv"][lora.B])


def test_a_step_that_is_not_finite_keeps_a_b_and_base():
    state = a_run("simclr").first()
    batch = a_batch()
    batch["views"] = np.where(batch["id"][:, None, None, None, None] == 3, np.float32(np.nan), batch["views"])
    new, metrics = a_run("simclr").one_shot()(state, batch)
    equal((new.params, new.frozen), (state.params, state.frozen))
    assert float(metrics["skipped"]) == 1


def test_a_folder_of_checkpoints_holds_what_was_trained_and_checksums_of_the_base(tmp_path):
    state, _ = after_two("simclr")
    large = np.random.default_rng(0).normal(size=(1 << 18,)).astype(np.float32)  # a megabyte that no file can shorten
    state = state._replace(frozen={**state.frozen, "text": {"kernel": jnp.asarray(large)}})
    store = Checkpoints(tmp_path)
    store.save(2, state, position={"at": 1}, config={}, score=None)
    store.wait()
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 300_000
    saved = saved_types(tmp_path, 2)
    assert not [path for path in saved if "frozen" in path or (path.endswith("kernel") and "encoder" in path)]
    shapes = [re.findall(r"\d+", kind.partition("[")[2]) for path, kind in saved.items() if path.startswith("params/")]
    trained = [math.prod(map(int, shape)) for shape in shapes]
    assert sum(trained) == sum(x.size for x in jax.tree.leaves(state.params))
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    found = store.restore_newest(like)
    store.close()
    assert found.frozen == checksums(state.frozen)
    assert found.state.frozen is None
    equal(found.state, state._replace(frozen=None))


def test_a_base_that_is_another_one_than_before_is_refused_with_what_it_was_made_of(monkeypatch):
    state, _ = after_two("simclr")
    found = Restored(2, state._replace(frozen=None), {}, {}, checksums(state.frozen))
    config = resolve({"model": {"encoder": "vit_ti", "pretrained": "other.npz"}, "lora": {"rank": 2}})
    parts = dataclasses.replace(build(a_config()), config=config, base=lambda: state.frozen)
    equal(with_base(found, parts), state)
    other = {**state.frozen["encoder"], "position": state.frozen["encoder"]["position"] + 1e-6}
    parts = dataclasses.replace(parts, base=lambda: {"encoder": other})
    known = parts
    message = r"checkpoint 2 was trained beside other frozen parameters than model.pretrained = 'other.npz' gives: "
    with pytest.raises(ConfigError, match=message + "encoder/position differs"):
        with_base(found, parts)
    monkeypatch.setenv("XLA_FLAGS", "--xla_x=1")
    own = {"text": {"kernel": np.ones(3)}}
    found = found._replace(frozen={**found.frozen, **checksums(own)})
    with_text = {"encoder": state.frozen["encoder"], "text": {"kernel": np.zeros(3)}}
    origin = "other frozen parameters than seed = 0 with jax .* and XLA_FLAGS = '--xla_x=1' .* gives: "
    for frozen, settings, differs in (
        (with_text, config, "text/kernel"),
        ({"encoder": other, **own}, resolve({"lora": {"rank": 2}}), "encoder/position"),
    ):
        parts = dataclasses.replace(known, config=settings, base=lambda frozen=frozen: frozen)
        with pytest.raises(ConfigError, match=f"{origin}{differs} differs"):
            with_base(found, parts)


def test_weights_that_have_moved_are_found_by_a_flag_and_only_where_they_are_read_again():
    both = {"model": {"encoder": "vit_ti", "pretrained": "/old/a.npz"}, "text": {"pretrained": "/old/a.npz"}}
    config = resolve({**both, "lora": {"rank": 2}})
    moved = with_moved(config, Path("/new/a.npz"), None)
    assert (moved.model.pretrained, moved.text.pretrained) == ("/new/a.npz", "/new/a.npz")
    moved = with_moved(config, None, Path("/new/b.npz"))
    assert (moved.model.pretrained, moved.text.pretrained) == ("/old/a.npz", "/new/b.npz")
    with pytest.raises(ConfigError, match=r"--pretrained=/b.npz, but the run holds its weights in its checkpoints"):
        with_moved(resolve(both), Path("/b.npz"), None)
    with pytest.raises(ConfigError, match=r"--text-pretrained=/b.npz, but the run began without text.pretrained"):
        with_moved(resolve({"model": both["model"], "lora": {"rank": 2}}), None, Path("/b.npz"))


def test_settings_of_a_run_name_weights_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = whole_paths(
        resolve({"model": {"encoder": "vit_ti", "pretrained": "a.npz"}, "text": {"pretrained": "~/b"}})
    )
    assert config.model.pretrained == str(tmp_path / "a.npz")
    assert config.text.pretrained == str(Path.home() / "b")


def test_how_much_is_trained_is_printed_before_a_run():
    state = a_run("simclr").first()
    frozen = {"encoder": {"kernel": jnp.zeros((100, 10)), lora.SCALE: jnp.zeros(())}}
    lines = group_table({"dense": {"kernel": jnp.zeros((10, 1))}}, OptimConfig(), frozen).splitlines()
    assert lines[1:] == ["frozen: 1 array, 1,000 numbers", "trained: 10 of 1,010 numbers, 0.99 %"]
    assert group_table(state.params, OptimConfig()).count("\n") == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rank": 2, "targets": "atention"}, r"'atention' is unknown; did you mean 'attention'\?; or a pattern"),
        ({"rank": 2, "targets": "mlp,"}, r"lora.targets = 'mlp,': '' is unknown; known: attention, mlp, conv, patches"),
        ({"targets": "mlp"}, r"lora.targets = 'mlp' is read only with lora.rank above 0; leave it out"),
        ({"alpha": 8.0}, r"lora.alpha = 8.0 is read only with lora.rank above 0; leave it out"),
        ({"rank": -1}, r"lora.rank = -1 is below the smallest valid value 0"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_what_would(values, message):
    with pytest.raises(ConfigError, match=message):
        resolve({"lora": values})


def test_an_optimizer_whose_steps_are_relative_to_a_parameter_of_zero_is_refused():
    with pytest.raises(
        ConfigError, match=r"optim.name = 'lars' moves a parameter by .* lora.rank = 2 .* 'adamw' or 'sgd'"
    ):
        resolve({"lora": {"rank": 2}, "optim": {"name": "lars"}})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            LoraConfig(rank=2, targets="conv"),
            r"'conv' matches no kernel; known are attention, mlp, patches, encoder/la",
        ),
        (
            LoraConfig(rank=2, targets="encoder/*/k"),
            r"'encoder/\*/k' matches no kernel; known are attention, mlp, patc",
        ),
        (
            LoraConfig(rank=17, targets="mlp"),
            r"lora.rank = 17 is above the rank of encoder/layers/mlp1, from 16 to 64 ",
        ),
    ],
)
def test_targets_and_ranks_that_the_network_does_not_have_are_named_with_those_it_has(config, message):
    with pytest.raises(ConfigError, match=message):
        lora.find_kernels(adapted("vit")[0], config)


def test_a_tower_of_which_nothing_would_be_trained_is_named():
    params = {**adapted("vit")[0], "text": {"dense": {"kernel": jnp.zeros((4, 4))}}}
    with pytest.raises(
        ConfigError, match=r"lora.targets = 'mlp' would train nothing of 'text'; its kernels are text/d"
    ):
        lora.find_kernels(params, LoraConfig(rank=2, targets="mlp"))


def a_config(**changes):
    values = {
        "steps": 4,
        "data": {"image_size": 16},
        "model": {"head_hidden": 32, "head_dim": 16},
        "lora": {"rank": 4},
        "batch": {"size": 16},
        "optim": {"warmup_steps": 1, "weight_decay": 0.1},
        "mesh": {"shape": {"data": 1}},
        "eval": {"linear_steps": 5},
        "checkpoint": {"every": 2},
    }
    return resolve(values | changes)


def test_a_run_without_lora_has_nothing_frozen_and_one_with_it_has_the_same_encoder():
    with_it, without = (build(a_config(lora={"rank": rank})) for rank in (4, 0))
    assert without.like.frozen is None
    assert without.base is None
    states = [parts.init_state(0) for parts in (with_it, without)]
    equal(lora.merge(states[0].params, states[0].frozen), states[1].params)
    equal(with_it.base(), states[0].frozen)


def test_a_teacher_in_parts_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("jaxcl.teacher.read_json", lambda _: {"lora": {"rank": 4}})
    student = resolve({"method": "distill", "distill": {"teacher": str(tmp_path)}})
    with pytest.raises(
        ConfigError, match=r"was trained with lora.rank = 4: its checkpoints hold what was trained, and"
    ):
        find_teacher(student, channels=3)


@pytest.mark.slow(reason="a minute: two runs, one of them resumed, and their scores")
def test_a_resumed_run_ends_as_one_that_was_not_stopped_and_is_scored_again_alike(tmp_path, capsys):
    straight, halves = tmp_path / "straight", tmp_path / "halves"
    summary = train(a_config(), straight)
    assert "frozen: " in capsys.readouterr().out
    train(a_config(), halves)
    for file in (halves / CHECKPOINTS).glob("4"):
        file.rename(Path(tmp_path) / "last")
    train(a_config(), halves, resume=True)
    parts, states = build(a_config(), fresh=False), []
    for folder in (straight, halves):
        store = Checkpoints(folder / CHECKPOINTS)
        states.append(with_base(store.restore_newest(parts.like), parts))
        store.close()
    assert int(states[1].step) == 4
    equal(*states)
    assert evaluate(halves)["knn_top1"] == summary["knn_top1"]
    assert summary["trained_param_count"] == sum(x.size for x in jax.tree.leaves(states[0].params))
    with pytest.raises(ConfigError, match=r"lora.rank = 3 \(the run has 4\)"):
        train(a_config(lora={"rank": 3}), halves, resume=True)
