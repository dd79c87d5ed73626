"""Presets for machines that are not here: each builds and takes a step on virtual devices, with a few images."""

import functools
import io

import jax
import numpy as np
import pytest
from compile_options import FAST_COMPILE
from PIL import Image

from jaxcl.build import build
from jaxcl.config import load_config, resolve
from jaxcl.data import make_loader
from jaxcl.methods import traits

tfds = pytest.importorskip("tensorflow_datasets")

# what a CPU can do: everything else is the preset's
SMALL = ["data.image_size=32", "data.workers=0", "batch.size=32", "model.dtype=float32"]
HEAD = ["model.head_hidden=64"]
PRESETS = {
    "low_memory_4x8gb": (
        "imagenet2012",
        4,
        [*HEAD, "batch.micro=16", "queue.size=64", "loss.top_k=7", "loss.tail_samples=5"],
    ),
    "eight_gpu": ("imagenet2012", 8, [*HEAD, "batch.micro=16", "queue.size=64", "queue.start=16"]),
    "imagenet_resnet50": ("imagenet2012", 8, [*HEAD, "queue.size=64"]),
    "cifar100_vit_b32": ("cifar100", 1, [*HEAD, "loss.top_k=5", "loss.tail_samples=5"]),
    "clip_vit_b32": ("", 2, ["text.length=12"]),
}
SMALLER = ["low_memory_4x8gb", "cifar100_vit_b32", "clip_vit_b32"]
TRACED = pytest.mark.slow(reason="a ResNet-50 takes a while even to trace")


class Tiny(tfds.core.GeneratorBasedBuilder):
    """Forty-eight images to train on and eight to test by, with the features of the set whose name it takes."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        label = tfds.features.ClassLabel(num_classes=4)
        features = {"image": tfds.features.Image(shape=(None, None, 3)), "label": label}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(48), "validation": self._generate_examples(8)}

    def _generate_examples(self, count):
        for i in range(count):
            file = io.BytesIO()
            pixels = np.random.default_rng(i).integers(0, 256, (32, 40, 3), np.uint8)
            Image.fromarray(pixels).save(file, "PNG")
            file.seek(0)
            yield i, {"image": file, "label": i % 4}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("tfds"))
    with tfds.core.registered.skip_registration():
        for name in {data for data, *_ in PRESETS.values() if data}:
            builder = type("TinyOf", (Tiny,), {"name": name})(data_dir=folder, file_format="array_record")
            builder.download_and_prepare()
    return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A folder of images with their captions."""
    folder = tmp_path_factory.mktemp("pairs")
    for i in range(60):
        pixels = np.random.default_rng(i).integers(0, 256, (32, 40, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    (folder / "captions.tsv").write_text("".join(f"{i}.png\tpicture {i}\n" for i in range(60)))
    return str(folder)


def parts_of(preset, data_dir, pairs):
    name, devices, changes = PRESETS[preset]
    where = f"data.root={data_dir}" if name else f"data.name=folder:{pairs}"
    config = resolve(load_config(f"configs/{preset}.py:smoke", [*SMALL, *changes, where, f"mesh.shape.data={devices}"]))
    parts = build(config)
    loader = make_loader(
        parts.splits.train,
        config=config.data,
        augment=config.augment,
        batch=config.batch.size,
        seed=config.seed,
        views=traits(config.method).views,
        tokenizer=parts.tokenizer,
    )
    batch = next(loader)
    loader.close()
    batch.pop("bad")
    return parts, batch


@pytest.mark.parametrize("preset", [*SMALLER, *(pytest.param(p, marks=TRACED) for p in PRESETS if p not in SMALLER)])
def test_a_preset_builds_and_its_step_has_the_shapes_of_its_state(preset, data_dir, pairs):
    parts, batch = parts_of(preset, data_dir, pairs)
    after, metrics = jax.eval_shape(parts.train_step, parts.like, batch)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), parts.like)
    assert {"loss", "grad_norm", "learning_rate"} <= set(metrics)


@pytest.mark.slow(reason="half a minute and more: an encoder compiled over virtual devices")
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_takes_a_step_on_virtual_devices(preset, data_dir, pairs, monkeypatch):
    parts, batch = parts_of(preset, data_dir, pairs)
    with monkeypatch.context() as quick:  # or LLVM has minutes of a ResNet-50's first weights
        quick.setattr(jax, "jit", functools.partial(jax.jit, compiler_options=FAST_COMPILE))
        state, batch = parts.init_state(0), parts.place(batch)
    before = jax.device_get(state.params)
    step = parts.train_step.lower(state, batch).compile(FAST_COMPILE)
    for _ in range(2):  # of MoCo the first one meets an empty queue: there is no loss
        state, metrics = step(state, batch)
    metrics = jax.device_get(metrics)
    assert np.isfinite(metrics["loss"])
    assert metrics["loss"] > 0
    assert metrics["grad_norm"] > 0
    assert int(state.updates) == 2
    assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(state.params), strict=True))
