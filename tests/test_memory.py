"""The command."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from jaxcl import memory
from jaxcl.planner.targets import has_cuda, has_tpu
from jaxcl.report import progress

CONFIG = f"--config={Path(__file__).parents[1] / 'configs' / 'simclr_stream.py'}"
SMALL = ["--config.data.image_size=16", "--config.batch.size=16", "--config.queue.size=0", "--config.loss.top_k=8"]
SMALL += [f"--config.augment.{name}_prob=0" for name in ("blur", "jitter", "grayscale")]  # less to compile
HOSTED = ["--config.batch.mode=cached", "--config.batch.micro=8", "--config.batch.images=host"]


def run(capsys, *flags):
    code = memory.main([CONFIG, *SMALL, *flags])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_json_is_an_array_with_a_row_for_each_number_of_embeddings(capsys):
    code, out, _ = run(capsys, *HOSTED, "--target=cpu", "--embeddings=32,64", "--seconds=0", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["embeddings"] for row in rows] == [32, 64]
    for row in rows:
        assert {"embeddings", "peak_bytes", "host_bytes", "fits", "parts", "programs"} <= set(row)
        assert row["fits"] is True
        assert sum(row["parts"].values()) == row["peak_bytes"]
        assert [program["name"] for program in row["programs"]] == ["encode", "loss", "replay", "update"]


def test_the_table_says_parts_programs_time_and_what_would_save(capsys):
    code, out, _ = run(capsys, "--target=cpu", "--seconds=100")
    assert code == 0
    for word in ("N = 32 embeddings", "peak, a device", "parameters", "activations", "host", "program", "TFLOP"):
        assert word in out
    assert "compiled" in out.splitlines()[-1] or "would save" in out


@pytest.mark.slow(
    reason="half a minute: a search compiles a dozen steps; tests of planner/fit have a search without them"
)
def test_the_batch_that_is_found_fits_and_a_step_more_does_not(capfd, monkeypatch):
    from jaxcl.planner import targets

    def plan_of(size, *flags):
        _, out, _ = run(capfd, "--target=cpu", "--seconds=0", "--json", f"--config.batch.size={size}", *flags)
        return json.loads(out)[0]

    limit = plan_of(40)["peak_bytes"] + 1000
    small = targets._this_cpu("")._replace(memory_bytes=limit)
    monkeypatch.setattr(targets, "_this_cpu", lambda note: small)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0)
    _, out, said = run(capfd, "--target=cpu", "--seconds=0", "--json", "--fit")
    fit = json.loads(out)[0]["fit"]
    assert fit["size"] > 16
    assert said.count("--fit: compiling with batch.size = ") == fit["tries"]
    assert plan_of(fit["size"])["fits"]
    assert not plan_of(fit["size"] + fit["step"])["fits"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--target=rtx3070"], "--target=rtx3070 is unknown; did you mean 'rtx3070-8gb'; known: a100-40gb"),
        (["--embeddings=many"], "--embeddings=many is not a list of whole numbers"),
        (["--embeddings=33", "--target=cpu"], "--embeddings=33 is not a multiple of the 2 views"),
        (["--devices=0"], "--devices=0: at least 1"),
        (["--seconds=-5"], "argument --seconds: '-5' is not a number of seconds, 0 or more"),
        (["--seconds=nan"], "argument --seconds: 'nan' is not a number of seconds, 0 or more"),
        (["--target=cpu", "--config.data.name=imagenet"], "data.name='imagenet' is not one of emoji, fashion_mnist"),
        (["--config.loss.tempratur=1"], "unknown setting 'loss.tempratur'; did you mean 'loss.temperature'"),
        (["--targt=cpu"], "unrecognized arguments: --targt=cpu"),
        (["--target=cpu", "--target=v5e"], "--target is given 2 times"),
        (["--out=plots"], "--out=plots is the folder of --vs=torch, which is not asked for"),
        (["--vs=torch", "--fit"], "--fit and --vs=torch are two questions"),
        (["--vs=torch", "--target=cpu"], "--vs=torch compares a plain ViT, not model.encoder = 'conv'"),
    ],
)
def test_a_mistake_is_one_line(capsys, flags, message):
    code, _, error = run(capsys, *flags)
    assert code == 2
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_pytorch_stands_beside_it(capsys, tmp_path):
    vit = ["--config.model.encoder=vit_ti", "--config.model.patch=8", "--config.model.head_norm=False"]
    code, out, error = run(capsys, *vit, "--target=cpu", "--vs=torch", "--embeddings=32", f"--out={tmp_path / 'vs'}")
    assert code == 0, error
    for name in ("JAX dense", "JAX streaming", "JAX cached", "PyTorch dense", "PyTorch cached"):
        assert name in out
    assert (tmp_path / "vs" / "versus.svg").stat().st_size > 1000
    assert len(json.loads((tmp_path / "vs" / "versus.json").read_text())) == 5


def test_help_answers_without_jax():
    code = "import sys; sys.modules['jax'] = None; from jaxcl.memory import main; main(['--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "--embeddings" in done.stdout, done.stderr


@pytest.mark.skipif(not has_cuda(), reason="needs jax-cuda12-plugin and jax-cuda12-pjrt, 478 MB")
def test_a_step_is_planned_for_a_card_that_is_not_there(capsys):
    code, out, _ = run(capsys, *HOSTED, "--target=rtx3070-8gb", "--seconds=0", "--json")
    (row,) = json.loads(out)
    assert code == 0
    assert (row["backend"], row["fits"]) == ("cuda", True)
    assert sum(row["parts"].values()) == row["peak_bytes"]


@pytest.mark.skipif(not has_tpu(), reason="needs libtpu")
def test_a_step_is_planned_for_a_tpu_that_is_not_there(capsys):
    code, out, _ = run(capsys, *HOSTED, "--target=v5e", "--seconds=0", "--json")
    (row,) = json.loads(out)
    assert code == 0
    assert (row["backend"], row["fits"]) == ("tpu", True)
