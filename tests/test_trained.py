"""A run is opened without its images, on the devices that are here, and encodes a folder as it sees images itself."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from jaxcl.build import build
from jaxcl.checkpoint import Checkpoints
from jaxcl.config import ConfigError, MeshConfig, MeshShape, resolve, to_dict
from jaxcl.data import Splits
from jaxcl.data.crops import centre_view
from jaxcl.models import make_head
from jaxcl.trained import Unseen, encode_folder, open_trained
from jaxcl.workdir import write_json

SMALL = {
    "data": {"image_size": 16},
    "model": {"head_hidden": 8, "head_dim": 4},
    "batch": {"size": 8},
    "mesh": {"shape": {"data": 1}},
    "eval": {"batch": 3},
}
KINDS = {
    "simclr": {},
    "lora": {"lora": {"rank": 2}},
    "clip": {"method": "clip", "text": {"length": 8, "width": 8, "depth": 1, "heads": 2}},
    "supcon of grey images": {"method": "supcon", "data": {"image_size": 16, "name": "fashion_mnist"}},
}


def a_run(folder, changes):
    """A folder with a checkpoint of a first state whose small matrices are not zero, and that state."""
    config = resolve({**SMALL, **changes})
    unseen = Unseen(config, 1 if config.data.name == "fashion_mnist" else 3)
    parts = build(config, splits=Splits(unseen, unseen))
    state = parts.init_state(3)
    if state.frozen is not None:
        state = state._replace(params=jax.tree.map(lambda x: x + 0.1, state.params), frozen=parts.base())
    store = Checkpoints(folder / "checkpoints")
    store.save(5, state, position={}, config=to_dict(config), score=None)
    store.close()
    write_json(folder / "config.json", to_dict(config))
    return parts, state


def a_folder(path, count=7):
    rng = np.random.default_rng(1)
    for number in range(count):
        file = path / ("deep/er" if number % 2 else "") / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (18, 20, 3), np.uint8)).save(file)
    return path


def pixels_of(folder, names, channels):
    read = [Image.open(folder / name).convert("L" if channels == 1 else "RGB") for name in names]
    return np.stack([centre_view(np.asarray(image).reshape(18, 20, channels), 16) for image in read])


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_those_of_the_encoder_that_was_saved(tmp_path, kind):
    parts, state = a_run(tmp_path / "run", KINDS[kind])
    trained = open_trained(tmp_path / "run")
    names, vectors, skipped = encode_folder(trained, a_folder(tmp_path / "images"))
    assert names == ["0.png", "2.png", "4.png", "6.png", "deep/er/1.png", "deep/er/3.png", "deep/er/5.png"]
    assert (trained.step, skipped) == (5, 0)
    assert trained.channels == parts.splits.test.channels
    expected = parts.encoder(state)(jnp.asarray(pixels_of(tmp_path / "images", names, trained.channels)))
    np.testing.assert_allclose(vectors, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a run and images, and the state of the run."""
    folder = tmp_path_factory.mktemp("trained")
    _, state = a_run(folder / "run", {})
    a_folder(folder / "images")
    return folder, jax.device_get(state)


@pytest.fixture
def run(made):
    """The folder."""
    return made[0]


def test_eight_devices_say_what_one_does(run, tmp_path):
    one = encode_folder(open_trained(run / "run"), run / "images")
    settings = resolve({**SMALL, "mesh": {"shape": {"data": 8}}})
    shutil.copytree(run / "run", tmp_path / "run")
    write_json(tmp_path / "run" / "config.json", to_dict(settings))
    trained = open_trained(tmp_path / "run")
    assert trained.mesh.size == 8
    eight = encode_folder(trained, run / "images")
    assert eight[0] == one[0]
    np.testing.assert_allclose(eight[1], one[1], rtol=1e-4, atol=1e-6)


def test_a_run_of_more_devices_than_there_are_is_opened_on_these(run, tmp_path):
    config = resolve(SMALL)
    config = dataclasses.replace(config, mesh=MeshConfig(MeshShape(data=64)))
    shutil.copytree(run / "run", tmp_path / "run")
    write_json(tmp_path / "run" / "config.json", to_dict(config))
    assert open_trained(tmp_path / "run").mesh.size == 8


def test_the_batch_changes_nothing_and_embeddings_are_unit_vectors_of_the_head(made):
    run, state = made
    trained = open_trained(run / "run")
    _, features, _ = encode_folder(trained, run / "images")
    _, small, _ = encode_folder(trained, run / "images", layer="embedding", batch=2)
    _, large, _ = encode_folder(trained, run / "images", layer="embedding", batch=100)
    np.testing.assert_allclose(small, large, rtol=1e-5, atol=1e-6)
    assert small.shape == (7, 4)
    variables = {"params": state.params["head"], "batch_stats": state.batch_stats["head"]}
    expected = make_head(trained.config.model).apply(variables, jnp.asarray(features))
    np.testing.assert_allclose(small, expected / np.linalg.norm(expected, axis=1)[:, None], rtol=1e-3, atol=1e-5)


def test_images_that_cannot_be_read_are_left_out_named_and_counted(run, tmp_path, caplog):
    shutil.copytree(run / "images", tmp_path / "images")
    for number in range(12):
        (tmp_path / "images" / f"bad{number:02}.jpg").write_text("not an image")
    names, vectors, skipped = encode_folder(open_trained(run / "run"), tmp_path / "images")
    assert (len(names), len(vectors), skipped) == (7, 7, 12)
    said = [record.getMessage() for record in caplog.records]
    assert sum("bad" in line and "not an image" in line for line in said) == 10
    assert "more than 10 unreadable images; the rest are only counted" in said
    for name in names:
        (tmp_path / "images" / name).unlink()
    with pytest.raises(ConfigError, match=r"--images=.*images: none of 12 images can be read"):
        encode_folder(open_trained(run / "run"), tmp_path / "images")


def test_nothing_in_the_folder_of_the_run_changes(run):
    def listing():
        return sorted((str(path), path.stat().st_mtime_ns) for path in (run / "run").rglob("*"))

    before = listing()
    open_trained(run / "run")
    assert listing() == before


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere", "nowhere is not a folder"), ("empty", "empty holds no run"), ("begun", "begun has no checkpoint yet")],
)
def test_a_folder_without_a_checkpoint_is_named(tmp_path, name, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun").mkdir()
    write_json(tmp_path / "begun" / "config.json", to_dict(resolve({})))
    with pytest.raises(ConfigError, match=message):
        open_trained(tmp_path / name)


def test_other_settings_than_those_of_the_checkpoint_are_named(run, tmp_path):
    shutil.copytree(run / "run", tmp_path / "run")
    other = resolve({**SMALL, "model": {**SMALL["model"], "head_dim": 5}})
    write_json(tmp_path / "run" / "config.json", to_dict(other))
    with pytest.raises(ConfigError, match=r"does not fit this configuration: .*head"):
        open_trained(tmp_path / "run")
