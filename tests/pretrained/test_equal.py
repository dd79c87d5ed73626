"""Published networks say here what they say in the library that they come from, also of images of another size."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest
from loading import a_config, features, say, shrink, two_towers
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
        assert np.std(found) > 0.03
        np.testing.assert_allclose(found, outputs[str(side)], **CLOSE)


def test_both_towers_of_clip_their_projections_and_the_temperature_are_those_of_the_original(original):
    file, outputs = original("hf_clip")
    both = {"pretrained": str(file)}
    for side in (SIDE, OTHER_SIDE):
        networks, variables = two_towers({"flavour": "clip", **both}, {"flavour": "clip_text", **both}, side)
        found = say(networks, variables, ("encoder", "head"), images(side))
        np.testing.assert_allclose(found, outputs[str(side)], **CLOSE)
    found = say(networks, variables, ("text", "text_head"), texts())
    np.testing.assert_allclose(found, outputs["texts"], **CLOSE)
    assert variables["params"]["log_scale"] == open_arrays(file)["logit_scale"]


def test_a_text_tower_of_bert_is_the_mean_over_its_tokens_beside_any_image_tower(original):
    file, outputs = original("hf_bert")
    networks, variables = two_towers({}, {"flavour": "bert", "pretrained": str(file)})
    np.testing.assert_allclose(say(networks, variables, ("text",), texts()), outputs["texts"], **CLOSE)
    others = [variables["params"][part] for part in ("encoder", "head", "text_head", "log_scale")]
    assert {type(leaf) for leaf in jax.tree.leaves(others)} == {jax.ShapeDtypeStruct}


HF_RESNET = {
    r"embedder\.embedder\.convolution": "conv1",
    r"embedder\.embedder\.normalization": "bn1",
    r"encoder\.stages\.(\d)\.layers\.(\d)\.shortcut\.convolution": r"layer\1.\2.downsample.0",
    r"encoder\.stages\.(\d)\.layers\.(\d)\.shortcut\.normalization": r"layer\1.\2.downsample.1",
    r"encoder\.stages\.(\d)\.layers\.(\d)\.layer\.(\d)\.convolution": r"layer\1.\2.conv\3",
    r"encoder\.stages\.(\d)\.layers\.(\d)\.layer\.(\d)\.normalization": r"layer\1.\2.bn\3",
}


def as_torchvision(name):
    """The name of the same array there, where stages and convolutions are counted from 1."""
    for theirs, there in HF_RESNET.items():
        name = re.sub(theirs, there, name)
    up = lambda found: f"{found[1]}{int(found[2]) + 1}"  # noqa: E731
    return re.sub(r"(layer)(\d)", up, re.sub(r"(\.conv|\.bn)(\d)", up, name))


@pytest.mark.parametrize("name", ["hf_resnet_basic", "hf_resnet_bottleneck"])
def test_a_resnet_under_the_names_of_torchvision_and_as_npz_is_the_same(name, tmp_path, monkeypatch):
    shrink(monkeypatch)
    file, outputs = the_fixture(name, tmp_path)
    renamed = {as_torchvision(name): array for name, array in open_arrays(file).items()}
    assert {"conv1.weight", "layer1.0.conv1.weight", "layer4.0.downsample.1.running_var"} <= set(renamed)
    np.savez(tmp_path / "weights.npz", **renamed)
    found = features(a_config(name, tmp_path / "weights.npz"), images(SIDE))
    np.testing.assert_allclose(found, outputs[str(SIDE)], **CLOSE)


def test_the_names_that_transformers_has_in_memory_are_known_too(tmp_path, monkeypatch):
    shrink(monkeypatch)
    file, outputs = the_fixture("hf_vit", tmp_path)
    renamed = {}
    for name, array in open_arrays(file).items():
        name = name.replace("encoder.layer.", "layers.").replace("attention.output.dense", "attention.o_proj")
        name = name.replace("intermediate.dense", "mlp.fc1").replace("output.dense", "mlp.fc2")
        renamed[re.sub(r"attention\.attention\.(\w)\w+", r"attention.\1_proj", name)] = array
    np.savez(tmp_path / "weights.npz", **renamed)
    found = features(a_config("hf_vit", tmp_path / "weights.npz"), images(SIDE))
    np.testing.assert_allclose(found, outputs[str(SIDE)], **CLOSE)


def test_an_onnx_graph_gives_back_the_names_that_the_exporter_took(tmp_path, monkeypatch):
    pytest.importorskip("onnx")
    shrink(monkeypatch)
    _, outputs = the_fixture("hf_dinov2", tmp_path)
    for side in (SIDE, OTHER_SIDE):
        found = features(a_config("hf_dinov2", FIXTURES / "dinov2.onnx", side), images(side))
        np.testing.assert_allclose(found, outputs[str(side)], **CLOSE)
