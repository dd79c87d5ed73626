"""The GPU check passes on whatever device is there, at tiny sizes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxcl.bench import gpu_check
from jaxcl.bench.programs import ENGINES

SCRIPT = Path(__file__).parents[2] / "launch" / "gpu_check.sh"


def test_it_imports_on_a_machine_with_only_jax_and_numpy():
    code = (
        "import sys\n"
        "for name in ('ml_collections', 'absl', 'grain', 'tensorflow_datasets', 'orbax', 'dm_pix', 'PIL', 'tqdm',\n"
        "             'jaxtyping', 'beartype', 'matplotlib', 'torch', 'chex'):\n"
        "    sys.modules[name] = None\n"
        "import jaxcl.bench.gpu_check, jaxcl.bench.agreement, jaxcl.bench.gpu_rows, jaxcl.bench.gpu_memory\n"
        "import jaxcl.bench.about, jaxcl.bench.budget\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow(reason="half a minute: every engine is compiled as users compile it")
def test_a_dry_run_writes_one_json_with_all_parts(tmp_path, fast_compile):
    environment = {**os.environ, "PYTHON": sys.executable, "OUT": str(tmp_path)}
    environment["XLA_FLAGS"] = " ".join(f"--{name}={value}" for name, value in fast_compile.items())
    done = subprocess.run([SCRIPT, "--dry-run"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    read = json.loads((tmp_path / "gpu_check.json").read_text())
    assert {"device", "versions", "date", "agreement", "gemm_peak_tflops", "rows", "left_out", "memory"} <= set(read)
    assert read["dry_run"] is True
    assert all(verdict["agrees"] for verdict in read["agreement"])
    assert {verdict["engine"] for verdict in read["agreement"]} == set(ENGINES)
    assert read["left_out"] == []
    for row in read["rows"]:
        assert row["error"] is None
        assert row["ms"] > 0
    assert all("no memory statistics" in row["note"] for row in read["memory"])
    assert [(row["what"], row["agrees"], row["bytes_saved"]) for row in read["offload"]] == [
        ("moments", True, None),
        ("queue", True, None),
    ]
    (step,) = read["plan"]
    assert (step["measured"], step["note"]) == (None, None)  # a CPU does not tell
    assert step["planned"] > 0
    assert "comparisons with the definition agree" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["gpu_check.json"]


@pytest.mark.parametrize(("agrees", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_says_whether_every_engine_is_right(monkeypatch, tmp_path, capsys, agrees, code):
    verdict = dict(engine="strip", kind="pairs", k=3, dtype="float32", agrees=agrees)
    result = {"agreement": [verdict], "gemm_peak_tflops": {}, "rows": [], "left_out": ["a program"], "memory": []}
    result["offload"], result["plan"] = "not run: a library is missing", []
    monkeypatch.setattr(gpu_check, "_check", lambda path, folder, dry_run: result)
    assert gpu_check.main([str(tmp_path / "x.json")]) == code
    out = capsys.readouterr().out
    assert ("WRONG: strip" in out) is not agrees
    assert "Left out, because time was short:\n  a program" in out


def test_a_wrong_flag_ends_with_exit_code_2():
    with pytest.raises(SystemExit) as caught:
        gpu_check.main(["--dry"])
    assert caught.value.code == 2
