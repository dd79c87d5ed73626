"""Loaded here, published networks say what they say in the library that they come from, also of images of another size."""

import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from loading import SETTINGS, a_config, features, shrink, two_towers
from originals import ORIGINALS, OTHER_SIDE, SIDE, images, make, texts

from jaxcl.pretrained import open_arrays

FIXTURES = Path(__file__).parent / "fixtures"
IMAGE = sorted(set(ORIGINALS) - {"hf_bert", "hf_clip"})
CLOSE = dict(rtol=0, atol=1e-4)


def the_fixture(name, folder):
    with np.load(FIXTURES / f"{name}_outputs.npz") as outputs:
        return FIXTURES / f"{name}.safetensors", {key: outputs[key] for key in outputs}


def made_now(name, folder):
    pytest.importorskip("torch")
    pytest.importorskip("timm" if name.startswith("timm") else "transformers")
    file = folder / f"{name}.safetensors"
    return file, {str(key): value for key, value in make(name, file).items()}


@pytest.fixture(params=[the_fixture, made_now], ids=lambda source: source.__name__)
def original(request, tmp_path, monkeypatch):
    shrink(monkeypatch)
    return lambda name: request.param(name, tmp_path)


@pytest.mark.parametrize("name", IMAGE)
def test_features_equal_those_of_the_original_at_both_sizes(name, original):
    file, outputs = original(name)
    for side in (SIDE, OTHER_SIDE):
        found = features(a_config(name, file, side), images(side))
        assert np.std(found) > 0.1
        np.testing.assert_allclose(found, outputs[str(side)], **CLOSE)


def test_both_towers_of_clip_their_projections_and_the_temperature_are_those_of_the_original(original):
    file, outputs = original("hf_clip")
    both = {"pretrained": str(file)}
    for side in (SIDE, OTHER_SIDE):
        method, variables = two_towers({"flavour": "clip", **both}, {"flavour": "clip_text", **both}, side)
        image = method.towers.image(variables["params"], variables["batch_stats"], images(side))
        np.testing.assert_allclose(image, outputs[str(side)], **CLOSE)
    text = method.towers.text(variables["params"], variables["batch_stats"], texts())
    np.testing.assert_allclose(text, outputs["texts"], **CLOSE)
    assert variables["params"]["log_scale"] == open_arrays(file)["logit_scale"]


def test_a_text_tower_of_bert_is_the_mean_over_its_tokens_beside_any_image_tower(original):
    file, outputs = original("hf_bert")
    method, variables = two_towers({}, {"flavour": "bert", "pretrained": str(file)})
    _, random = two_towers({}, {"flavour": "bert"})
    tower = method.init.__closure__  # the text tower alone, without its head
    del tower
    from jaxcl.config import resolve
    from jaxcl.models import make_text_tower
    from loading import TEXT

    config = resolve({"method": "clip", "text": {**TEXT, "flavour": "bert"}})
    module = make_text_tower(config.text, config.model, vocab=113)
    found = module.apply({"params": variables["params"]["text"]}, texts())
    np.testing.assert_allclose(found, outputs["texts"], **CLOSE)
    for part in ("encoder", "head", "text_head"):
        jax.tree.map(np.testing.assert_array_equal, variables["params"][part], random["params"][part])
