import gzip

import jax
import jax.numpy as jnp
import pytest

from jaxcl.profiling import MEMORY, Profile


@pytest.fixture
def trace(monkeypatch):
    """What the profiler was asked to do, instead of doing it."""
    asked = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder, profiler_options: asked.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: asked.append("stop"))
    monkeypatch.setattr(jax.profiler, "save_device_memory_profile", lambda file: asked.append("memory"))
    return asked


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (1, 9, [1, "start", 2, 3, 4, "stop", "memory", 5, 6, 7, 8, 9]),
        (8, 9, [8, "start", 9, "stop", "memory"]),
        (9, 9, ["start", 9, "stop", "memory"]),
    ],
)
def test_three_steps_behind_the_one_that_compiles_are_traced_as_far_as_there_are_any(
    tmp_path, trace, first, last, expected
):
    profile = Profile(tmp_path, first=first, last=last)
    for number in range(first, last + 1):
        with profile.step(number):
            trace.append(number)
    assert trace == expected


def test_a_step_that_fails_ends_the_trace_and_is_heard_of(tmp_path, trace):
    profile = Profile(tmp_path, first=1, last=9)
    with pytest.raises(ValueError, match="lost"), profile.step(2):
        raise ValueError("lost")
    assert trace == ["start", "stop"]


def test_without_a_folder_nothing_is_traced_or_written(tmp_path, trace):
    profile = Profile(None, first=1, last=9)
    for number in range(1, 10):
        with profile.step(number):
            pass
    assert trace == []


def test_both_files_are_there_and_can_be_read(tmp_path, capsys):
    profile = Profile(tmp_path / "profile", first=1, last=3)
    held = jnp.ones((512, 512))
    for number in range(1, 4):
        with profile.step(number):
            (held @ held).block_until_ready()
    with gzip.open(tmp_path / "profile" / MEMORY) as file:
        assert len(file.read()) > 100
    traces = list((tmp_path / "profile").glob("plugins/profile/*/*.trace.json.gz"))
    with gzip.open(traces[0]) as file:
        assert b"traceEvents" in file.read()
    assert list((tmp_path / "profile").glob("plugins/profile/*/*.xplane.pb"))
    said = capsys.readouterr().out
    assert "profile of steps 2 to 3:" in said
    assert f"pprof -http=localhost:8080 {tmp_path / 'profile' / MEMORY}" in said
