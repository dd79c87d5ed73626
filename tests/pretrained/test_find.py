"""What does not fit is an error before anything compiles, with the first arrays named; a part only when asked for."""

import json
import shutil
from collections import Counter

import jax
import numpy as np
import pytest
from loading import a_config, features, shapes_of, shrink, two_towers
from originals import OTHER_SIDE, SIDE, images
from test_equal import FIXTURES

from jaxcl.config import ConfigError, resolve, to_dict
from jaxcl.pretrained import find_weights, open_arrays, random_parts
from jaxcl.pretrained.files import Arrays


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    shrink(monkeypatch)


def look(config):
    return find_weights(config, shapes_of(config)[1])


def changed(tmp_path, change, name="hf_vit"):
    """A file like an original, changed."""
    arrays = dict(open_arrays(FIXTURES / f"{name}.safetensors"))
    change(arrays)
    np.savez(tmp_path / "weights.npz", **arrays)
    return tmp_path / "weights.npz"


def drop(arrays):
    del arrays["layernorm.bias"]


def drop_one(arrays):
    del arrays["encoder.layer.1.output.dense.bias"]


def cut(arrays):
    arrays["layernorm.weight"] = arrays["layernorm.weight"][:-1]


def add(arrays):
    for number in range(4):
        arrays[f"encoder.extra.{number}"] = np.zeros(3, np.float32)


def count(arrays):
    arrays["layernorm.weight"] = np.arange(8)


def transpose_one(arrays):
    name = "encoder.layer.1.output.dense.weight"
    arrays[name] = arrays[name].T


def flatten_one(arrays):
    arrays["encoder.layer.1.output.dense.weight"] = arrays["encoder.layer.1.output.dense.weight"].reshape(-1)


def stray(arrays):
    arrays["encoder.layer.2.layernorm_before.weight"] = np.ones(8, np.float32)


def gap(arrays):
    for name in [name for name in arrays if "layer.1." in name]:
        arrays[name.replace("layer.1.", "layer.3.")] = arrays.pop(name)


def deeper(arrays):
    for name in [name for name in arrays if "layer.1." in name]:
        arrays[name.replace("layer.1.", "layer.2.")] = arrays[name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop, r": layernorm.bias is missing \(params/encoder/norm/bias\) \(model"),
        (drop_one, r": encoder.layer.1.output.dense.bias is missing \(params/encoder/layers/mlp2/bias\) \(model"),
        (cut, r": params/encoder/norm/scale is float32\[7\], not float32\[8\] \(from layernorm.weight\) \(model"),
        (
            transpose_one,
            r": params/encoder/layers/mlp2/kernel of layer 1 is float32\[8, 32\], not float32\[32, 8\] "
            r"\(from encoder.layer.1.output.dense.weight\) \(model",
        ),
        (flatten_one, r": params/encoder/layers/mlp2/kernel of layer 1 is float32\[256\], not float32\[32, 8\]"),
        (stray, r": encoder.layer.2.layernorm_before.weight is not expected \(model"),
        (gap, r": encoder.layer.1.layernorm_before.weight is missing .*; .* is missing .* and 29 more"),
        (
            add,
            r"encoder.extra.0 is not expected; encoder.extra.1 .*; encoder.extra.2 is not expected and 1 more",
        ),
        (count, r"params/encoder/norm/scale is int64\[8\], not float32\[8\]"),
        (deeper, r": encoder.layer.2.\S+ is not expected; .* is not expected and 13 more"),
    ],
)
def test_arrays_that_are_missing_unexpected_or_misshaped_are_named(tmp_path, change, message):
    file = changed(tmp_path, change)
    with pytest.raises(ConfigError, match=rf"model.pretrained = '.*weights.npz', ViT of Hugging Face.*{message}"):
        look(a_config("hf_vit", file))


def test_a_part_is_taken_only_when_asked_for_and_the_share_is_printed(tmp_path, capsys):
    config = a_config("hf_vit", changed(tmp_path, cut), allow_partial=True)
    leaves = look(config)()["params"]["encoder"]
    assert "scale" not in leaves["norm"]
    assert "bias" in leaves["norm"]
    total = sum(leaf.size for leaf in jax.tree.leaves(shapes_of(config)[1]))
    said = capsys.readouterr().out
    assert f"{100 * (total - 8) / total:.4g} % of the numbers wanted; params/encoder/norm/scale is float32[7]" in said


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (np.nan, "a NaN or an infinity"),
        (-np.inf, "a NaN or an infinity"),
        (np.float64(1e200), "numbers too large for float32"),
    ],
)
@pytest.mark.parametrize("partial", [False, True])
def test_a_number_that_is_not_finite_ends_the_run_before_it_begins(tmp_path, number, message, partial):
    name = "encoder.layer.1.output.dense.weight"

    def spoil(arrays):
        arrays[name] = np.array(arrays[name], np.float64)
        arrays[name][3, 2] = number

    with pytest.raises(ConfigError, match=rf"model.pretrained = '.*weights.npz': {name} has {message}$"):
        look(a_config("hf_vit", changed(tmp_path, spoil), allow_partial=partial))


def test_a_file_with_the_network_twice_is_refused_with_what_stands_before_each(tmp_path):
    def double(arrays):
        for name in list(arrays):
            arrays[f"teacher.{name}"] = arrays[name]
            arrays[f"student.{name}"] = arrays.pop(name)

    message = "it holds the ViT of Hugging Face 2 times, with names that begin with student. and teacher.: save one"
    with pytest.raises(ConfigError, match=message):
        look(a_config("hf_vit", changed(tmp_path, double)))


def test_a_file_without_arrays_says_so(tmp_path):
    np.savez(tmp_path / "weights.npz")
    with pytest.raises(ConfigError, match="it holds no arrays; those of image tower of CLIP"):
        look(a_config("hf_vit", tmp_path / "weights.npz"))


def test_each_array_of_a_file_is_read_once_when_it_is_looked_into(monkeypatch):
    reads, read = Counter(), Arrays.__getitem__
    monkeypatch.setattr(Arrays, "__getitem__", lambda self, name: reads.update([name]) or read(self, name))
    look(a_config("hf_vit", FIXTURES / "hf_vit.safetensors"))
    del reads["embeddings.cls_token"]  # the first, which the type checker of the tests reads at every call
    assert len(reads) == 37
    assert set(reads.values()) == {1}


def test_a_name_before_all_arrays_is_found_and_what_stands_outside_is_another_network(tmp_path, capsys):
    def nest(arrays):
        for name in list(arrays):
            arrays[f"model.vit.{name}"] = arrays.pop(name)
        arrays["decoder.weight"] = np.zeros((2, 2), np.float32)

    found = features(a_config("hf_vit", changed(tmp_path, nest)), images(SIDE))
    with np.load(FIXTURES / "hf_vit_outputs.npz") as outputs:
        np.testing.assert_allclose(found, outputs[str(SIDE)], atol=1e-4)
    assert "left out: model.vit.pooler" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("hf_vit", dict(flavour="plain"), r"ViT of Hugging Face, which needs model.flavour = 'hf', not 'plain'"),
        ("hf_clip", dict(flavour="dinov2"), r"image tower of CLIP.*, which needs model.flavour = 'clip'"),
        (
            "hf_resnet_basic",
            dict(encoder="vit_ti", stem="small"),
            r"its arrays \(embedder.*and .* more\) have the names of none of image tower of CLIP of Hugging Face, "
            r"ViT of Hugging Face, DINOv2 of Hugging Face, image tower of CLIP in timm, DINOv2 of timm, ViT of timm",
        ),
        ("hf_vit", dict(encoder="conv", flavour="plain"), r"no published weights of model.encoder = 'conv'"),
        (
            "hf_resnet_basic",
            dict(stem="small"),
            r"stem_conv/kernel is float32\[7, 7, 3, 2\], not float32\[3, 3",
        ),
        ("hf_resnet_basic", dict(norm="group"), r"missing"),
        ("hf_vit", dict(pool="mean"), r"params/encoder/position is float32\[1, 17, 8\].*cls_token is not expected"),
        (
            "hf_vit",
            dict(patch=8),
            r"patches/kernel is float32\[48, 8\], not float32\[192, 8\].* \(model.patch = 4 is theirs\)",
        ),
    ],
)
def test_settings_that_the_weights_were_not_made_for_are_named(name, changes, message):
    with pytest.raises(ConfigError, match=message):
        look(a_config(name, FIXTURES / f"{name}.safetensors", **changes))


@pytest.mark.parametrize(
    ("key", "value"), [("num_attention_heads", 4), ("hidden_act", "gelu_new"), ("layer_norm_eps", 1e-5)]
)
def test_a_setting_that_no_shape_shows_is_read_from_the_file_beside(tmp_path, key, value):
    shutil.copy(FIXTURES / "hf_vit.safetensors", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 2, "hidden_act": "gelu"}))
    config = a_config("hf_vit", tmp_path)
    assert look(config) is not None
    (tmp_path / "config.json").write_text(json.dumps({key: value}))
    with pytest.raises(ConfigError, match=rf"config.json beside it says {key} = "):
        look(config)


@pytest.mark.parametrize(
    ("name", "leaf", "grey"),
    [("hf_vit", "patches", (16, 8)), ("hf_resnet_basic", "stem_conv", (7, 7, 1, 2))],
)
def test_grey_images_for_weights_of_colours_are_told_of_the_setting_that_makes_three_channels(name, leaf, grey):
    config = a_config(name, FIXTURES / f"{name}.safetensors")
    like = shapes_of(config)[1]
    like["params"]["encoder"][leaf]["kernel"] = jax.ShapeDtypeStruct(grey, np.float32)
    with pytest.raises(ConfigError, match=r"\(data.statistics = 'half', .* makes three channels of grey images\)$"):
        find_weights(config, like)


def test_taking_a_part_is_offered_to_a_run_that_begins_and_not_to_one_that_goes_on(tmp_path):
    config = a_config("hf_vit", changed(tmp_path, cut))
    for fresh in (True, False):
        with pytest.raises(ConfigError) as error:
            find_weights(config, shapes_of(config)[1], fresh=fresh)
        assert ("allow_partial" in str(error.value)) == fresh


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (
            {"architecture": "vit_base_patch32_clip_224"},
            "architecture = 'vit_base_patch32_clip_224', which has the act",
        ),
        (
            {"architecture": "vit_base_patch32_clip_quickgelu_224", "model_args": {"act_layer": "gelu"}},
            "activation gelu",
        ),
        ({"architecture": "vit_base_patch32_clip_quickgelu_224"}, None),
        ({"architecture": "vit_base_patch32_clip_224", "model_args": {"act_layer": "quick_gelu"}}, None),
    ],
)
def test_a_clip_that_timm_ran_with_another_activation_is_refused(tmp_path, saved, message):
    shutil.copy(FIXTURES / "timm_clip.safetensors", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(saved))
    config = a_config("timm_clip", tmp_path)
    if message is None:
        assert look(config) is not None
    else:
        with pytest.raises(ConfigError, match=rf"config.json beside it says .*{message}"):
            look(config)


def test_a_clip_without_a_file_that_tells_its_activation_is_taken_with_a_note(tmp_path, capsys):
    shutil.copy(FIXTURES / "timm_clip.safetensors", tmp_path)
    for beside, said in ((None, True), ({"architecture": "vit_clip_quickgelu"}, False)):
        if beside:
            (tmp_path / "config.json").write_text(json.dumps(beside))
        look(a_config("timm_clip", tmp_path))()
        assert ("says which activation it was trained with; model.flavour = 'clip'" in capsys.readouterr().out) == said


@pytest.mark.parametrize("beside", ["[1]", "5", '"a"', "{", "null"])
def test_settings_beside_that_cannot_be_read_are_one_line(tmp_path, beside):
    shutil.copy(FIXTURES / "hf_vit.safetensors", tmp_path)
    (tmp_path / "config.json").write_text(beside)
    with pytest.raises(ConfigError, match=r"config.json cannot be read: (Expecting|it holds a \w+, not settings)"):
        look(a_config("hf_vit", tmp_path))


TIMM = ("config.json", {"architecture": "vit", "pretrained_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}})
HALF = ("preprocessor_config.json", {"image_mean": 0.5, "image_std": [0.5, 0.5, 0.5]})
CLIP = ("preprocessor_config.json", {"image_mean": [0.4815, 0.4578, 0.4082], "image_std": [0.2686, 0.2613, 0.2758]})


@pytest.mark.parametrize(
    ("data", "beside", "said"),
    [
        ({}, None, "note: pixels follow data.mean = 0.5 and data.std = 0.25, as no published weights expect them"),
        ({"mean": 0.5, "std": 0.5}, None, None),
        ({"statistics": "imagenet"}, None, None),
        ({"statistics": "half"}, TIMM, None),
        ({"statistics": "half"}, HALF, None),
        ({"mean": 0.5, "std": 0.5}, HALF, None),
        ({"statistics": "imagenet"}, TIMM, "config.json beside the weights says data.statistics = 'half', but pixels"),
        ({"statistics": "half"}, CLIP, "preprocessor_config.json beside the weights says data.statistics = 'clip'"),
        ({}, HALF, "says data.statistics = 'half', but pixels follow data.mean = 0.5 and data.std = 0.25"),
        ({"statistics": "clip"}, ("config.json", {"pretrained_cfg": {"mean": "x"}}), None),
    ],
)
def test_pixels_that_are_not_normalised_as_the_weights_expect_are_told_of(tmp_path, capsys, data, beside, said):
    shutil.copy(FIXTURES / "hf_vit.safetensors", tmp_path)
    if beside:
        (tmp_path / beside[0]).write_text(json.dumps(beside[1]))
    config = to_dict(a_config("hf_vit", tmp_path))
    config = resolve(config | {"data": {"image_size": SIDE, **data}})
    look(config)()
    out = capsys.readouterr().out
    assert said in out if said else "note:" not in out


@pytest.mark.parametrize(
    ("group", "part", "flavour", "example"),
    [
        ("model", "encoder", "dinov2", "facebook/dinov2-small"),
        ("text", "text", "bert", "sentence-transformers/all-Mini"),
    ],
)
def test_a_flavour_of_published_weights_does_not_begin_without_them(group, part, flavour, example):
    encoder = {"encoder": "vit_ti"} if group == "model" else {}
    config, like = resolve({group: {"flavour": flavour, **encoder}}), {"params": {part: {}}}
    message = rf"^{group}.pretrained is empty, but {group}.flavour = '{flavour}' .* model.safetensors of {example}"
    with pytest.raises(ConfigError, match=message):
        find_weights(config, like)
    assert find_weights(config, like, fresh=False) is None


@pytest.mark.parametrize("group", ["model", "text"])
def test_a_path_that_is_empty_is_refused(group):
    with pytest.raises(ConfigError, match=rf"{group}.pretrained = '' is no path; leave it out, or name a file"):
        resolve({group: {"pretrained": ""}})


def test_which_networks_begin_at_random_is_said_and_louder_where_they_stay_so():
    plain = resolve({"text": {"pretrained": "a.npz"}})
    assert random_parts(plain, ["encoder", "head", "text"]) == "encoder: random weights (model.pretrained is empty)"
    said = random_parts(resolve({"lora": {"rank": 2}, "model": {"encoder": "vit_ti"}}), ["encoder", "text"])
    assert "encoder: random weights (model.pretrained is empty), which lora.rank = 2 freezes" in said
    assert "text: random weights (text.pretrained is empty), which lora.rank = 2 freezes" in said
    assert said.endswith("keep the version of jax and XLA_FLAGS")
    both = {"model": {"encoder": "vit_ti", "pretrained": "a.npz"}, "text": {"pretrained": "a.npz"}, "lora": {"rank": 2}}
    assert random_parts(resolve(both), ["encoder", "text"]) == ""


def test_a_text_has_fewer_positions_than_the_original_but_not_more():
    text = {"flavour": "bert", "pretrained": str(FIXTURES / "hf_bert.safetensors")}
    _, variables = two_towers({}, {**text, "length": 9})
    full = two_towers({}, text)[1]["params"]["text"]["position"]
    np.testing.assert_array_equal(variables["params"]["text"]["position"], full[:, :9])
    with pytest.raises(ConfigError, match=r"text.pretrained = .*params/text/position is float32\[1, 12, 8\], not"):
        two_towers({}, {**text, "length": 13})


def test_a_head_of_several_layers_leaves_the_projection_of_clip_out(capsys):
    file = str(FIXTURES / "hf_clip.safetensors")
    _, variables = two_towers({"flavour": "clip", "pretrained": file, "head_layers": 2}, {})
    assert {type(leaf) for leaf in jax.tree.leaves(variables["params"]["head"])} == {jax.ShapeDtypeStruct}
    assert "visual_projection.weight" not in capsys.readouterr().out.partition("left out")[0]


def test_without_a_checkpoint_the_file_must_be_there_and_with_one_it_may_be_gone():
    config = a_config("hf_vit", "nowhere.safetensors", OTHER_SIDE)
    like = shapes_of(config)[1]
    with pytest.raises(ConfigError, match=r"nowhere.safetensors is neither a file nor a folder"):
        find_weights(config, like)
    assert find_weights(config, like, check=False) is not None


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"encoder": "resnet18", "flavour": "clip"}, "model.flavour = 'clip' is read only with a ViT"),
        ({"allow_partial": True}, "model.allow_partial = True is read only with model.pretrained or text.pretrained"),
    ],
)
def test_settings_that_nobody_would_read_are_refused(model, message):
    with pytest.raises(ConfigError, match=message):
        resolve({"model": model})
