"""Five rows of one comparison, as a table, a file and a plot."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from jaxcl.config import ConfigError, resolve
from jaxcl.planner import versus as comparison
from jaxcl.planner.pytorch import FAKE, TorchRow
from jaxcl.planner.torch_tower import Shape
from jaxcl.planner.versus import OURS, Peak, draw, ours, planned, shape_of, table, versus

GIB = 2**30
CONFIG = resolve(
    {
        "data": {"image_size": 32},
        "model": {
            "encoder": "vit_ti",
            "patch": 8,
            "pool": "mean",
            "head_hidden": 10,
            "head_dim": 6,
            "dtype": "bfloat16",
        },
        "batch": {"size": 64, "micro": 16, "mode": "cached", "images": "host"},
        "loss": {"block_size": 32},
    }
)


def plan(config):
    """A made-up peak, by which one sees what was asked for."""
    if config.loss.impl == "dense" and config.batch.size > 1000:
        raise ConfigError("it does not fit")
    return config.batch.size * (4 if config.batch.mode == "accumulate" else 1) * GIB


def test_all_ways_have_the_same_images_and_differ_in_how_the_step_takes_them():
    ways = ours(CONFIG, 512)
    assert tuple(ways) == OURS
    assert {config.batch.size for config in ways.values()} == {256}
    facts = [(c.loss.impl, c.batch.mode, c.batch.micro, c.batch.images, c.loss.block_size) for c in ways.values()]
    assert facts == [
        ("dense", "accumulate", None, "device", None),
        ("strip", "accumulate", None, "device", 32),
        ("strip", "cached", 16, "host", 32),
    ]
    assert {config.model for config in ways.values()} == {CONFIG.model}


@pytest.mark.parametrize("n", [4, 6, 34, 66, 130])
def test_no_micro_batch_is_a_single_image(n):
    batch = ours(CONFIG, n)["JAX cached"].batch
    assert batch.size == n // 2
    assert batch.size % batch.micro != 1


@pytest.mark.parametrize("n", [3, 2, 511])
def test_an_n_that_the_views_do_not_divide_is_refused(n):
    with pytest.raises(ConfigError, match=rf"--embeddings={n} is not 2 views of 2 images or more"):
        ours(CONFIG, n)


def test_the_tower_in_pytorch_has_the_sizes_of_ours():
    expected = Shape(32, 8, 192, 12, 3, 768, 6, (10,), 3, "mean")
    assert shape_of(CONFIG) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "not model.encoder = 'conv'; vit_ti, vit_s or vit_b"),
        ({"model": {"encoder": "vit_b", "flavour": "clip"}}, "not model.flavour = 'clip'"),
        ({"model": {"encoder": "vit_b"}, "lora": {"rank": 4}}, "without lora.rank = 4"),
        ({"model": {"encoder": "vit_b", "head_norm_out": True}}, "without model.head_norm_out = True"),
    ],
)
def test_what_the_baseline_does_not_have_is_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        shape_of(resolve(changes))


def test_what_does_not_fit_is_a_point_without_a_number():
    peaks = planned(CONFIG, plan, [8, 4096], how="made up")
    assert peaks[:2] == [Peak("JAX dense", 8, 16 * GIB, "made up"), Peak("JAX dense", 4096, None, "it does not fit")]
    assert [peak.peak_bytes for peak in peaks[2:]] == [16 * GIB, 8192 * GIB, 4 * GIB, 2048 * GIB]


def test_a_number_stands_in_its_row_and_column():
    peaks = [Peak("JAX dense", 8, 3 * GIB, "here"), Peak("PyTorch dense", 16, 5 * GIB, FAKE)]
    assert table(peaks).splitlines() == [
        "peak GiB    JAX dense   PyTorch dense",
        "       8         3.00               –",
        "      16            –            5.00",
        "JAX: here; PyTorch: fake tensors",
    ]


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_plot_has_every_row_and_every_card(tmp_path, ending):
    peaks = planned(CONFIG, plan, [8, 4096], how="made up")
    draw(peaks, tmp_path / f"a.{ending}", cards={"8 GB": 8 * GIB})
    if ending == "png":
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
        return
    text = "".join(ElementTree.parse(tmp_path / "a.svg").getroot().itertext())
    for word in (*OURS, "8 GB", "4,096", "peak GiB"):
        assert word in text


def test_everything_is_written_and_pytorch_is_asked_for_the_same_step(tmp_path, monkeypatch):
    asked = {}

    def torch_rows(embeddings, **options):
        asked.update(options)
        return [TorchRow("dense", n, n * GIB, {}, FAKE) for n in embeddings]

    monkeypatch.setattr(comparison, "torch_rows", torch_rows)
    monkeypatch.setattr(comparison, "check_installed", lambda: None)
    peaks = versus(CONFIG, plan, embeddings=[8, 64], how="made up", folder=tmp_path / "deep" / "out")
    assert [peak.name for peak in peaks[::2]] == [*OURS, "PyTorch dense"]
    assert (asked["micro"], asked["temperature"], asked["snapshots"]) == (32, 0.2, tmp_path / "deep" / "out")
    saved = json.loads((tmp_path / "deep" / "out" / "versus.json").read_text())
    assert [Peak(**row) for row in saved] == peaks
    assert (tmp_path / "deep" / "out" / "versus.svg").exists()
