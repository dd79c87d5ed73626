"""The PyTorch baseline has the same loss and gradients, and its memory is what PyTorch's own tracker counts."""

import json
import sys

import numpy as np
import pytest

from jaxcl.config import ConfigError
from jaxcl.losses import infonce
from jaxcl.planner import pytorch
from jaxcl.planner.pytorch import TorchRow, cached_backward, make_step, nt_xent, torch_rows
from jaxcl.planner.torch_tower import Shape, embed, make_tower

SHAPE = Shape(image_size=16, patch=8, width=24, depth=2, heads=3, mlp=96, head_dim=6, head_hidden=(10,))
VIT_B = dict(image_size=224, patch=32, width=768, depth=12, heads=12, mlp=3072, head_dim=512)
GIB = 2**30


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="needs the extra torch")


def test_the_loss_is_nt_xent(torch):
    z = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    groups = np.arange(12) // 2
    expected = infonce(z, z, groups, groups, temperature=0.3, exclude_diagonal=True).loss.mean()
    assert float(nt_xent(torch.tensor(z), 0.3)) == pytest.approx(float(expected), rel=1e-5)


def test_cached_gradients_are_those_of_the_whole_batch_at_once(torch):
    shape = SHAPE._replace(head_hidden=())  # batch norm would see micro-batches
    images = torch.randint(0, 256, (10, 3, 16, 16), dtype=torch.uint8)
    tower = make_tower(shape)

    def encode(images):
        return embed(tower, images, shape)

    def gradient():
        found = [parameter.grad.clone() for parameter in tower.parameters()]
        tower.zero_grad()
        return found

    nt_xent(encode(images), 0.2).backward()
    whole = gradient()
    arrive, arrived = lambda start, count: images[start : start + count], torch.zeros(10, 6)
    cached_backward(encode, arrive, arrived, micro=4, temperature=0.2)
    for one, other in zip(whole, gradient(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("variant", pytorch.VARIANTS)
def test_a_step_with_numbers_moves_every_parameter_that_the_loss_knows(torch, monkeypatch, variant):
    made, make = [], make_tower
    monkeypatch.setattr(pytorch, "make_tower", lambda shape: made.append(make(shape)) or made[-1])
    step = make_step(variant, 6, SHAPE, micro=4, temperature=0.2, device="cpu")
    before = [parameter.detach().clone() for parameter in made[0].parameters()]
    step(None)
    moved = [not torch.equal(one, other) for one, other in zip(before, made[0].parameters(), strict=True)]
    assert all(moved)
    assert all(parameter.grad is None for parameter in made[0].parameters())


def test_a_vit_b_takes_what_was_measured_by_hand(torch):
    """Without the optimizer's state, 0.65 GiB, N = 2,048 took 30.6 GiB, 29.0 of it activations."""
    (row,) = torch_rows([2048], **VIT_B, variants=["dense"])
    assert row.how == pytorch.FAKE
    assert row.peak_bytes / GIB == pytest.approx(30.6 + 0.65, rel=0.02)
    assert row.parts["activation"] / GIB == pytest.approx(29.0, rel=0.04)
    parameters = 2**30 * 0.33
    assert row.parts["parameter"] == pytest.approx(parameters, rel=0.02)
    assert row.parts["optstate"] == pytest.approx(2 * parameters, rel=0.02)
    assert sum(row.parts.values()) == row.peak_bytes


def test_dense_grows_with_n_and_cached_by_its_matrix_alone(torch, tmp_path):
    told = []
    rows = torch_rows([64, 128, 2048], **SHAPE._asdict(), micro=16, snapshots=tmp_path, tell=told.append)
    peaks = {(row.variant, row.embeddings): row.peak_bytes for row in rows}
    assert list(peaks) == [(variant, n) for variant in ("dense", "cached") for n in (64, 128, 2048)]
    assert peaks["dense", 128] - peaks["dense", 64] > 0.9 * 64 * 16 * 16 * 3
    assert peaks["cached", 128] < peaks["dense", 128]
    assert 2 <= (peaks["cached", 2048] - peaks["cached", 128]) / (4 * 2048**2) < 4
    assert told[0] == "PyTorch dense, N = 64"
    snapshot = json.loads((tmp_path / "pytorch_cached_128.json").read_text())
    assert snapshot["peak_bytes"] == peaks["cached", 128] == sum(snapshot["parts"].values())


@pytest.mark.parametrize("n", [7, 2])
def test_an_n_that_has_no_pairs_is_refused(torch, n):
    with pytest.raises(ConfigError, match=rf"--embeddings={n} is no even number of 4 or more"):
        torch_rows([n], **SHAPE._asdict())


def test_without_pytorch_what_to_install_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r"--vs=torch needs PyTorch: pip install 'jaxcl\[torch\]'"):
        torch_rows([8], **SHAPE._asdict())


def test_a_gpu_that_is_full_is_a_row_without_a_number_and_its_snapshot_is_kept(torch, tmp_path, monkeypatch):
    done = []

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    for name in ("reset_peak_memory_stats", "empty_cache", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **options: done.append(options))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda file: done.append(file))
    monkeypatch.setattr(pytorch, "make_step", full)
    rows = torch_rows([8], **SHAPE._asdict(), variants=["dense"], snapshots=tmp_path)
    assert rows == [TorchRow("dense", 8, None, {}, "a GPU")]
    assert done[1:] == [str(tmp_path / "pytorch_dense_8.pickle"), {"enabled": None}]
