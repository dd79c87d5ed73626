"""The devices that a step can be planned for."""

import os

import pytest

from jaxcl.config import ConfigError
from jaxcl.planner import targets
from jaxcl.planner.targets import ALIASES, cards, find_target, known_targets, read_card

GIB = 1 << 30
CLAIMED = {
    "rtx3060-12gb": 12,
    "rtx3070-8gb": 8,
    "rtx3090-24gb": 24,
    "t4-16gb": 16,
    "a100-40gb": 40,
    "a100-80gb": 80,
    "h100-80gb": 80,
    "h200-141gb": 141,
}


@pytest.fixture
def with_cuda(monkeypatch):
    monkeypatch.setattr(targets, "has_cuda", lambda: True)
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)


@pytest.mark.parametrize(("name", "gib"), CLAIMED.items())
def test_a_card_has_its_memory_its_rates_and_a_text(with_cuda, name, gib):
    target = find_target(name)
    assert 0.9 * gib < target.memory_bytes / GIB <= gib
    assert target.limit_bytes == int(0.75 * target.memory_bytes)
    assert target.kind == "cuda"
    assert target.rates.products["float32"] <= target.rates.products["tf32"] <= target.rates.products["float16"]
    assert "cuda_compute_capability" in read_card(name)


def test_every_card_is_tested():
    assert sorted(CLAIMED) == cards()


def test_a_turing_card_has_no_matrix_units_for_bfloat16(with_cuda):
    assert not find_target("t4-16gb").bfloat16
    assert find_target("rtx3060-12gb").bfloat16


def test_a_short_name_is_the_same_card(with_cuda):
    assert find_target("h200") == find_target(ALIASES["h200"])


def test_a_file_of_ones_own_is_a_target_without_public_rates(with_cuda, tmp_path):
    path = tmp_path / "mine.txtpb"
    path.write_text(read_card("t4-16gb"))
    target = find_target(str(path))
    assert target.memory_bytes == find_target("t4-16gb").memory_bytes
    assert target.rates is None


def test_an_unknown_target_is_an_error_that_lists_the_known_ones():
    with pytest.raises(
        ConfigError, match=r"--target=rtx3070 is unknown; did you mean 'rtx3070-8gb'; known: a1"
    ) as error:
        find_target("rtx3070")
    assert all(name in str(error.value) for name in known_targets())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"has no device_memory_size, major, memory_bandwidth"),
        (
            b"gpu_device_info { memory_bandwidth: 5 }",
            r"has no device_memory_size, major; jaxcl/planner/targets has some",
        ),
        (b"\xff\xfe\x00", "cannot be read as text"),
    ],
)
def test_a_file_that_is_no_card_is_an_error_that_says_what_it_lacks(with_cuda, tmp_path, content, message):
    path = tmp_path / "mine.txtpb"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        find_target(str(path))


def test_an_empty_name_is_no_target():
    with pytest.raises(ConfigError, match=r"--target= is empty; known: a100-40gb"):
        find_target("")


def test_no_device_of_this_machine_is_taken_whatever_the_environment_says(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    targets.use_cpu()
    assert os.environ["JAX_PLATFORMS"] == "cpu"


@pytest.mark.parametrize("name", ["a100-80gb", "v5e"])
def test_without_its_compiler_a_target_is_planned_for_the_cpu_and_the_note_has_the_command(monkeypatch, name):
    monkeypatch.setattr(targets, "has_cuda", lambda: False)
    monkeypatch.setattr(targets, "has_tpu", lambda: False)
    target = find_target(name)
    assert target.kind == "cpu"
    assert "pip install" in target.note
    assert target.name == name


def test_without_a_name_and_a_compiler_it_is_this_cpu(monkeypatch):
    monkeypatch.setattr(targets, "has_cuda", lambda: False)
    target = find_target(None)
    assert (target.name, target.kind, target.share) == ("cpu", "cpu", 1.0)
    assert "pip install" in target.note


def test_the_share_of_a_card_is_what_the_environment_says(with_cuda, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    assert find_target("t4-16gb").share == 0.9
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "most")
    with pytest.raises(ConfigError, match="XLA_PYTHON_CLIENT_MEM_FRACTION=most is not a share"):
        find_target("t4-16gb")
