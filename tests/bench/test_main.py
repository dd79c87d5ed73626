"""The command: its flags, its JSON, its one-line errors."""

import json
import subprocess
import sys

import pytest

from jaxcl.bench import deviceless, loss, step
from jaxcl.bench.__main__ import main
from jaxcl.bench.rows import Row

ROWS = [Row("strip, top 64", 8192, 128, 64, "float32", "forward + backward", 462.3, 12 << 20)]


def test_help_answers_without_loading_jax():
    code = "import sys; sys.modules['jax'] = None; from jaxcl.bench.__main__ import main; main(['loss', '--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--json" in done.stdout
    assert "--quick" in done.stdout


@pytest.mark.parametrize(
    "arguments", [[], ["speed"], ["loss", "--fast"], ["loss", "--target=toaster"], ["methods", "--seeds=a"]]
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_json_is_one_object_with_device_versions_date_and_rows(monkeypatch, capsys):
    monkeypatch.setattr(loss, "loss_rows", lambda scale, say: ROWS)
    assert main(["loss", "--json", "--quick"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert {"device", "versions", "date", "rows"} <= set(read)
    assert read["quick"] is True
    assert read["rows"][0]["N"] == 8192
    assert "jax" in read["versions"]


def test_the_table_begins_with_the_machine_and_ends_with_the_count_of_bars(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(loss, "loss_rows", lambda scale, say: asked.append(scale) or ROWS)
    assert main(["loss"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert asked == [loss.FULL]
    assert "jax" in lines[0]
    assert lines[-1] == "0 bars met, 0 not met, 0 not judged."


def test_steps_are_measured_by_the_same_table(monkeypatch, capsys):
    monkeypatch.setattr(step, "step_rows", lambda scale, say: ROWS)
    assert main(["step", "--json", "--quick"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["N"] == 8192


def test_the_table_of_methods_can_be_shown_without_training(tmp_path, capsys):
    assert main(["methods", f"--runs={tmp_path}", "--show", "--rows=BYOL"]) == 0
    assert "| method |" in capsys.readouterr().out


def test_a_target_without_the_compiler_for_it_says_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setattr(deviceless, "has_cuda", lambda: False)
    assert main(["loss", "--target=h200"]) == 2
    err = capsys.readouterr().err
    assert "pip install --no-deps jax-cuda12-plugin==" in err
    assert err.count("\n") == 1
