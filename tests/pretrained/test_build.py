"""A run starts from the weights, its momentum encoder too, while the random encoder of the floors stays random."""

from pathlib import Path

import jax
import numpy as np
import pytest
from loading import SIDE, a_config, shrink
from test_equal import FIXTURES

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
