"""A run starts from the weights, its momentum encoder too, while the random encoder of the floors stays random."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from loading import SIDE, a_config, shrink
from test_equal import FIXTURES

from jaxcl import train as training
from jaxcl.build import build
from jaxcl.config import ConfigError, load_config, resolve, to_dict


def a_run(file, **changes):
    config = to_dict(a_config("hf_dinov2", file, SIDE))
    config |= {"method": "byol", "batch": {"size": 8}, "steps": 2, "optim": {"warmup_steps": 1}}
    config["mesh"] = {"shape": {"data": 1}}
    return resolve(config | changes)


def test_the_first_state_and_its_target_hold_the_weights_and_the_floor_does_not(monkeypatch, capsys):
    shrink(monkeypatch)
    parts = build(a_run(FIXTURES / "hf_dinov2.safetensors"))
    assert "hf_dinov2" not in capsys.readouterr().out  # looked into, not read
    state = parts.init_state(0)
    assert "encoder from" in capsys.readouterr().out
    for params in (state.params, state.target):
        assert np.abs(params["encoder"]["cls"]).max() > 0.1  # random ones are zeros
    jax.tree.map(np.testing.assert_array_equal, state.params["encoder"], state.target["encoder"])
    assert not np.any(parts.untrained(0).args[0]["encoder"]["cls"])


def test_weights_that_are_gone_end_a_new_run_but_not_one_that_has_a_checkpoint(monkeypatch):
    shrink(monkeypatch)
    config = a_run("gone.safetensors")
    with pytest.raises(ConfigError, match=r"model.pretrained = 'gone.safetensors': gone.safetensors is neither"):
        build(config)
    assert build(config, fresh=False).config is not None


def test_the_config_that_begins_with_weights_says_where_to_get_them_and_its_smoke_needs_none():
    path = f"{Path(__file__).parents[2]}/configs/pretrained.py"
    with pytest.raises(
        ConfigError, match=r"model.pretrained is empty, .* name their file, such as model.safetensors of"
    ):
        build(resolve(load_config(path)))
    for variant in (":short", ""):
        with pytest.raises(ConfigError, match=r"model.pretrained is empty"):
            build(resolve(load_config(f"{path}{variant}", ["model.pretrained="])))
    assert build(resolve(load_config(f"{path}:smoke"))).config.model.flavour == "plain"


def saves(self, state, first):
    """A step that changes nothing, and its checkpoint."""
    position = self._loader.position()
    self._checkpoints.save(first + 1, state, position=position, config=to_dict(self._config), score=None)
    return state


def test_a_run_beside_frozen_weights_that_moved_goes_on_and_is_scored_with_them_and_with_no_others(
    monkeypatch, tmp_path, capsys
):
    shrink(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training.Fit, "run", saves)
    monkeypatch.setattr(training, "finish", lambda parts, state, *_: {"frozen": state.frozen})
    old, new, run = tmp_path / "old.safetensors", tmp_path / "new.safetensors", tmp_path / "run"
    shutil.copy(FIXTURES / "hf_dinov2.safetensors", old)
    small = {"method": "simclr", "lora": {"rank": 2}, "steps": 3}
    first = training.train(a_run("old.safetensors", **small), run)
    assert "random" not in capsys.readouterr().out
    assert json.loads((run / "config.json").read_text())["model"]["pretrained"] == str(old)
    old.rename(new)
    with pytest.raises(
        ConfigError, match=r"model.pretrained = '.*old.safetensors': .* is neither .*; where it lies now says"
    ):
        training.evaluate(run)
    scored = training.evaluate(run, pretrained=new)
    jax.tree.map(np.testing.assert_array_equal, scored["frozen"], first["frozen"])
    training.train(a_run("new.safetensors", **small), run, resume=True)
    assert json.loads((run / "config.json").read_text())["model"]["pretrained"] == str(new)
    shutil.copy(FIXTURES / "timm_dinov2.safetensors", old)
    with pytest.raises(ConfigError, match=r"other frozen parameters than model.pretrained = '.*old.*' gives: encoder/"):
        training.train(a_run("old.safetensors", **small), run, resume=True)


def test_a_run_says_that_its_frozen_encoder_is_random(monkeypatch, tmp_path, capsys):
    shrink(monkeypatch)
    monkeypatch.setattr(training.Fit, "run", saves)
    monkeypatch.setattr(training, "finish", lambda *_: {})
    config = {"model": {"encoder": "vit_ti", "head_hidden": 8, "head_dim": 4}, "lora": {"rank": 2}, "steps": 3}
    training.train(a_run("left.out", method="simclr", **config), tmp_path / "run")
    assert "encoder: random weights (model.pretrained is empty), which lora.rank = 2 freezes" in capsys.readouterr().out
