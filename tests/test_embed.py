"""The command: from a run and a folder to a file, with every mistake in one line."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxcl import trained as opened
from jaxcl.embed import main


@pytest.fixture
def given(tmp_path, monkeypatch):
    """The flags of a run whose encoder is not there, and what it was asked for."""
    (tmp_path / "images").mkdir()
    asked = []

    def encode_folder(trained, images, **options):
        asked.append((images, options))
        return ["a.png", "b/c.png"], np.eye(2, 3, dtype=np.float32), 1

    monkeypatch.setattr(opened, "open_trained", lambda workdir: opened.Trained(None, 40, 3, None, None, None))
    monkeypatch.setattr(opened, "encode_folder", encode_folder)
    return [f"--workdir={tmp_path}", f"--images={tmp_path / 'images'}", f"--out={tmp_path / 'out.csv'}"], asked


def test_it_writes_a_row_a_file_and_says_what_it_did(given, tmp_path, capsys):
    flags, asked = given
    assert main(flags) == 0
    assert (tmp_path / "out.csv").read_text() == "path,f0,f1,f2\na.png,1.0,0.0,0.0\nb/c.png,0.0,1.0,0.0\n"
    said = "out.csv: 2 images, 3 numbers each, of step 40; 1 could not be read and is left out"
    assert said in capsys.readouterr().out
    assert asked == [(tmp_path / "images", {"layer": "features", "batch": None})]
    assert main(flags) == 2
    assert "add --overwrite to replace it" in capsys.readouterr().err
    assert main([*flags, "--overwrite", "--layer=embedding", "--batch=9"]) == 0
    assert asked[1:] == [(tmp_path / "images", {"layer": "embedding", "batch": 9})]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "the following arguments are required: --workdir, --images, --out"),
        (["--out=x.json"], "the formats are .parquet, .csv, .npz"),
        (["--out="], "argument --out: it is empty, and names a file"),
        (["--workdir="], "argument --workdir: no folder is named; . is the one that you are in"),
        (["--images=/nowhere"], "--images=/nowhere is not a folder"),
        (["--batch=0"], "argument --batch: '0' is not a number of images, 1 or more"),
        (["--layer=logits"], "invalid choice: 'logits'"),
        (["--batch=2", "--batch=3"], "--batch is given 2 times"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_and_code_2(tmp_path, capsys, flags, message):
    named = {flag.partition("=")[0] for flag in flags}
    usual = [f"--workdir={tmp_path}", f"--images={tmp_path}", f"--out={tmp_path / 'out.csv'}"]
    rest = [flag for flag in usual if flag.partition("=")[0] not in named] if flags else []
    assert main([*flags, *rest]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1


def test_help_answers_without_jax_and_without_a_device():
    code = "import sys; sys.modules['jax'] = None\nfrom jaxcl.embed import main\nmain(['--help'])\n"
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    assert "--images" in done.stdout
