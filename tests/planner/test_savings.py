"""Which settings are tried, and what is said of them."""

import pytest

from jaxcl.config import Config
from jaxcl.planner.plan import Row, with_settings
from jaxcl.planner.savings import REMAT, candidates, find_savings
from jaxcl.planner.table import savings_text

ALL = dict.fromkeys(
    ("activations", "batch", "gradients", "optimizer", "queue", "similarity_and_selection", "parameters", "other"), 100
)


def row(config, peak=1000):
    return Row(config, 1, 1, peak, "step", 2000, 0, ALL, [], 0.0, None)


def named(config, parts=ALL):
    return [name for settings in candidates(config, parts) for name in settings]


def test_only_what_changes_something_and_is_allowed_is_tried():
    plain = named(Config())
    assert "batch.mode" in plain
    assert "lora.rank" in plain
    assert "model.remat" not in plain  # no ViT
    assert "loss.impl" not in plain  # it is strip already
    assert "queue.dtype" not in plain
    vit = named(with_settings(Config(), {"model.encoder": "vit_ti"}))
    assert "model.remat" in vit
    assert "model.remat" not in named(with_settings(Config(), {"model.encoder": "vit_ti", "model.remat": REMAT}))
    assert "lora.rank" not in named(with_settings(Config(), {"optim.name": "lars"}))  # a rule refuses it
    assert "loss.block_size" not in named(Config(method="byol"))  # nothing reads it


def test_the_most_promising_part_comes_first():
    config = with_settings(Config(), {"model.encoder": "vit_ti", "loss.impl": "dense", "model.dtype": "bfloat16"})
    assert named(config, ALL | {"similarity_and_selection": 10_000})[0] == "loss.impl"
    assert named(config, ALL | {"activations": 10_000})[0] == "batch.mode"
    assert named(config, ALL | {"optimizer": 10_000})[0] == "lora.rank"


def test_the_three_that_save_most_are_named_with_flags_to_paste():
    config = with_settings(Config(), {"model.encoder": "vit_ti", "loss.impl": "dense"})
    peaks = iter([900, 100, 1100, None, 500, 950, 950, 950])
    found = find_savings(row(config), lambda configs: [next(peaks) for _ in configs], seconds=1e9, clock=lambda: 0.0)
    assert [saving.saved_bytes for saving in found.best] == [900, 500, 100]
    assert (found.tried, found.left) == (len(candidates(config, ALL)), 0)
    assert all(part.startswith("--config.") for saving in found.best for part in saving.flags.split())


def test_no_candidate_is_begun_that_would_take_too_long():
    now = iter(range(0, 1000, 10))
    found = find_savings(row(Config()), lambda configs: [1] * len(configs), seconds=35, clock=lambda: next(now))
    assert (found.tried, found.left) == (2, 2)


@pytest.mark.parametrize("mode", ["accumulate", "cached"])
def test_every_candidate_is_a_config(mode):
    config = with_settings(Config(), {"batch.mode": mode, "batch.micro": 8, "batch.size": 16})
    for settings in candidates(config, ALL):
        assert with_settings(config, settings) != config


def test_nothing_is_begun_when_the_time_is_up():
    found = find_savings(row(Config()), lambda configs: [1] * len(configs), seconds=-5, clock=lambda: 0.0)
    assert (found.best, found.tried, found.left) == ([], 0, 4)
    assert "more than --seconds=3 tries 4" in savings_text(found, 3)
