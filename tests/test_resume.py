"""Going on: what is refused leaves the folder as it was, what goes on says from where and with what."""

import hashlib
import json
import shutil
import signal

import jax
import numpy as np
import pytest
from PIL import Image

from jaxcl import finish
from jaxcl import train as training
from jaxcl.build import build
from jaxcl.checkpoint import Checkpoints
from jaxcl.config import ConfigError, resolve, to_dict
from jaxcl.interrupt import Interrupted
from jaxcl.resume import begin, check_resumable, saved_config
from jaxcl.teacher import _config_of


def settings(**changes):
    values = {
        "steps": 6,
        "data": {"image_size": 16},
        "model": {"head_hidden": 8, "head_dim": 4},
        "queue": {"size": 24},
        "batch": {"size": 16},
        "optim": {"warmup_steps": 1},
        "mesh": {"shape": {"data": 1}},
    }
    for section, change in changes.items():
        values[section] = {**values.get(section, {}), **change} if isinstance(change, dict) else change
    return resolve(values)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a run that was saved at steps 2 and 6, without a step being computed."""
    workdir, config = tmp_path_factory.mktemp("saved") / "run", settings()
    parts = build(config)
    loader = training._open_loader(parts)
    state = jax.tree.map(lambda like: jax.device_put(np.ones(like.shape, like.dtype), like.sharding), parts.like)
    checkpoints = Checkpoints(workdir / "checkpoints")
    for step in (2, 6):
        state = state._replace(step=jax.device_put(np.int32(step)))
        position = loader.position() | {"next_batch": step}
        checkpoints.save(step, state, position=position, config=to_dict(config), score=None)
    checkpoints.close()
    (workdir / "config.json").write_text(json.dumps(to_dict(config)))
    (workdir / "metrics.jsonl").write_text("".join(f'{{"step": {n}, "loss": 2.0}}\n' for n in range(1, 7)) + '{"st')
    return workdir


@pytest.fixture
def a_copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "run")


def content(folder):
    """Every file with a hash of its bytes."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def damage(step):
    (step / "state" / "_METADATA").write_text("{")


def other_data(folder):
    file = folder / "checkpoints" / "6" / "data" / "metadata"
    position = json.loads(file.read_text())
    file.write_text(json.dumps(position | {"data": "0" * 64}))
    shutil.rmtree(folder / "checkpoints" / "6" / "checksums")


def other_settings(folder):
    changed = to_dict(settings(model={"head_dim": 5}))
    (folder / "config.json").write_text(json.dumps(changed))


@pytest.mark.parametrize(
    ("prepare", "config", "message"),
    [
        (lambda _: None, {"loss": {"temperature": 0.3}}, r"loss.temperature = 0.3 \(the run has 0.2\)"),
        (lambda _: None, {"steps": 4}, "steps = 4, but the newest checkpoint is of step 6; the smallest valid value"),
        (other_settings, {"model": {"head_dim": 5}}, r"params/head/dense2/bias is float32\[4\], not float32\[5\]"),
        (other_data, {}, "training images of data.name=emoji are not those of before"),
        (
            lambda f: [damage(f / "checkpoints" / n) for n in "26"],
            {},
            "6 is damaged .*; checkpoints/2 is damaged .*: there is no",
        ),
        (lambda f: (f / "config.json").unlink(), {"loss": {"temperature": 0.3}}, r"temperature = 0.3 \(the run has"),
    ],
    ids=["settings", "fewer_steps", "arrays", "data", "damaged", "without_config_json"],
)
def test_a_refused_resume_leaves_the_folder_bitwise_as_it_was(a_copy, prepare, config, message):
    prepare(a_copy)
    before = content(a_copy)
    with pytest.raises(ConfigError, match=message):
        training.train(settings(**config), a_copy, resume=True)
    assert content(a_copy) == before


@pytest.mark.parametrize(("was", "now"), [(True, "blocks"), (False, "none")])
def test_a_run_from_before_remat_had_names_is_read_in_the_terms_of_today(a_copy, was, now):
    saved = json.loads((a_copy / "config.json").read_text())
    assert saved["model"]["remat"] == "none"
    saved["model"]["remat"] = was
    (a_copy / "config.json").write_text(json.dumps(saved))
    assert saved_config(a_copy)["model"]["remat"] == now
    assert _config_of(a_copy, "it").model.remat == now
    if not was:
        assert check_resumable(a_copy, settings()) == 6


def begun(workdir, config):
    """Where a run begins, with its first state left out and its loader."""
    steps_before = check_resumable(workdir, config)
    parts = build(config)
    parts = parts.__class__(**{**vars(parts), "init_state": lambda seed: parts.like})
    loader, checkpoints = training._open_loader(parts), Checkpoints(workdir / "checkpoints")
    state, first = begin(parts, loader, checkpoints, workdir, steps_before=steps_before)
    checkpoints.close()
    return state, first, loader


def test_a_damaged_newest_checkpoint_costs_the_steps_behind_the_one_before(a_copy):
    damage(a_copy / "checkpoints" / "6")
    with pytest.warns(
        UserWarning, match=r"checkpoints/6 is damaged .*: going back to step 2; it is now checkpoints/dam"
    ):
        state, first, loader = begun(a_copy, settings())
    assert (first, int(state.step), loader.position()["next_batch"]) == (2, 2, 2)


def test_a_setting_that_the_version_which_began_the_run_did_not_have_counts_as_its_default(a_copy):
    saved = json.loads((a_copy / "config.json").read_text())
    assert saved["queue"].pop("sample") is None
    assert saved["loss"].pop("skip_hardest") == 0.0
    (a_copy / "config.json").write_text(json.dumps(saved))
    assert check_resumable(a_copy, settings()) == 6
    with pytest.raises(ConfigError, match=r"loss.skip_hardest = 0.1 \(the run has 0.0\)"):
        check_resumable(a_copy, settings(loss={"skip_hardest": 0.1, "top_k": 8}))


def test_other_steps_are_a_new_schedule_for_all_that_is_scheduled(a_copy):
    queue, loss = {"start": 8, "schedule": "cosine"}, {"temperature_schedule": "linear", "temperature_end": 0.1}
    (a_copy / "config.json").write_text(json.dumps(to_dict(settings(queue=queue, loss=loss))))
    follow = "the learning rate, loss.temperature, queue.size$"
    with pytest.warns(UserWarning, match=rf"steps = 9 \(the run has 6\): a new schedule for {follow}"):
        begun(a_copy, settings(steps=9, queue=queue, loss=loss))


def test_without_a_checkpoint_the_old_log_is_kept_under_another_name(a_copy):
    log = (a_copy / "metrics.jsonl").read_bytes()
    shutil.rmtree(a_copy / "checkpoints")
    with pytest.warns(UserWarning, match=r"there is no checkpoint: .* the old log is now metrics.jsonl.1$"):
        _, first, _ = begun(a_copy, settings())
    assert first == 0
    assert not (a_copy / "metrics.jsonl").exists()
    assert (a_copy / "metrics.jsonl.1").read_bytes() == log


def test_settings_are_found_in_the_newest_checkpoint_where_config_json_is_gone(a_copy, tmp_path):
    (a_copy / "config.json").unlink()
    assert resolve(saved_config(a_copy)) == settings()
    assert saved_config(tmp_path / "nowhere") is None


def test_sigterm_while_the_trained_encoder_is_scored_frees_the_folder(a_copy, monkeypatch):
    monkeypatch.setattr(training, "finish", lambda *_: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Interrupted, match=r"saved, but not scored; python -m jaxcl.evaluate --workdir=") as stop:
        training.train(settings(), a_copy, resume=True)
    assert stop.value.code == 143
    assert not (a_copy / ".lock").exists()


def test_evaluate_takes_the_devices_that_are_there_and_the_settings_of_a_checkpoint(a_copy, monkeypatch):
    (a_copy / "config.json").unlink()
    seen = []
    monkeypatch.setattr(training, "finish", lambda parts, state, *_: seen.append((parts, state)) or {})
    training.evaluate(a_copy)
    (a_copy / "config.json").write_text(json.dumps(to_dict(settings(mesh={"shape": {"data": 16}}))))
    training.evaluate(a_copy)
    assert [parts.mesh.shape["data"] for parts, _ in seen] == [1, 8]
    for _, state in seen:
        assert all(np.all(np.asarray(leaf) == 1) for leaf in jax.tree.leaves(state._replace(step=np.int32(1))))


def test_a_damaged_summary_of_before_is_replaced(tmp_path):
    (tmp_path / "summary.json").write_text('{"wall_sec')
    assert finish._wall_seconds_before(tmp_path) is None


def test_a_batch_of_the_probes_is_at_most_the_images():
    assert build(settings(eval={"batch": 2**31 - 1})).config.eval.batch == 1519


def test_held_out_images_of_which_none_can_be_read_are_an_error_before_anything_is_written(tmp_path):
    for name, whole in (("train/a.png", True), ("train/b.png", True), ("test/c.png", False)):
        file = tmp_path / "images" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20)).save(file)
        file.write_bytes(file.read_bytes()[: None if whole else 40])
    with pytest.raises(
        ConfigError, match=r"^data.name=folder:.*images: none of 1 held-out images can be read; .*c.png"
    ):
        training.train(settings(data={"name": f"folder:{tmp_path / 'images'}"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
