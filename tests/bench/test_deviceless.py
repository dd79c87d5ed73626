"""Programs for a GPU that is not attached."""

import pytest

from jaxcl.bench import deviceless
from jaxcl.bench.deviceless import Compiled, compile_for, deviceless_table, read_target
from jaxcl.config import ConfigError
from jaxcl.planner.targets import has_cuda


def test_a_target_is_a_name_or_a_file(monkeypatch, tmp_path):
    monkeypatch.setattr(deviceless, "has_cuda", lambda: True)
    text = read_target("h200")
    assert "NVIDIA H200" in text
    copy = tmp_path / "mine.txtpb"
    copy.write_text(text)
    assert read_target(str(copy)) == text


@pytest.mark.parametrize("name", ["h300", "none.txtpb", ""])
def test_another_target_is_an_error_that_names_those_there_are(name):
    with pytest.raises(ConfigError, match=r"--target=.* must be one of a100-40gb"):
        read_target(name)


def test_the_table_has_memory_and_kernels():
    row = Compiled("strip, top 64", 8192, 512, 64, "float32", 1, 12 << 20, 44 << 20, {"__gpu$TopK": 1}, 2.0)
    barred = row._replace(devices=32, bar=10 << 20, met=False)
    lines = deviceless_table([row, barred]).splitlines()
    assert lines[1].split() == ["strip,", "top", "64", "8192", "512", "1", "12.0", "44.0", "1", "__gpu$TopK"]
    assert "[temp ≤ 10 MiB: NOT MET]" in lines[2]


@pytest.mark.skipif(not has_cuda(), reason="needs jax-cuda12-plugin and jax-cuda12-pjrt, 478 MB")
def test_the_loss_compiles_for_a_gpu_and_needs_less_than_the_dense_one():
    rows = compile_for(read_target("h200"), quick=True)
    assert rows[0].name == "dense, all negatives"
    assert all(row.temp_bytes > 0 for row in rows)
    assert {row.devices for row in rows} == {1, 4}
    assert any("sort" in row.kernels or "__gpu$TopK" in row.kernels for row in rows if row.k)
