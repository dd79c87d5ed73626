import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest

from jaxcl.config import ConfigError, DataConfig
from jaxcl.data import fashion_mnist
from jaxcl.data.fashion_mnist import DEBIAN_FOLDER, SHA256, open_fashion_mnist

installed = pytest.mark.skipif(not Path(DEBIAN_FOLDER).is_dir(), reason="apt-get install dataset-fashion-mnist")


def write_small(folder, monkeypatch, counts=(20, 10)):
    """Four IDX files with random pixels, and their sha256 in place of the published ones."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(fashion_mnist, "_TRAIN_IMAGES", counts[0])
    for part, count in zip(("train", "t10k"), counts, strict=True):
        bodies = {
            f"{part}-images-idx3-ubyte.gz": bytes(16) + rng.integers(0, 256, count * 784, dtype=np.uint8).tobytes(),
            f"{part}-labels-idx1-ubyte.gz": bytes(8) + (np.arange(count) % 10).astype(np.uint8).tobytes(),
        }
        for name, body in bodies.items():
            (folder / name).write_bytes(gzip.compress(body, 1))
            monkeypatch.setitem(SHA256, name, fashion_mnist.hashlib.sha256(body).hexdigest())


@installed
def test_the_debian_package_is_the_published_set():
    train, test = open_fashion_mnist(DataConfig())
    assert (len(train), len(test)) == (60_000, 10_000)
    assert train[0].image.shape == (28, 28, 1)
    assert np.bincount([test[i].label for i in range(10_000)]).tolist() == [1000] * 10
    assert train[0].name == "train/0: ankle boot"
    assert (train.ids[-1], test.ids[0], test.ids[-1]) == (59_999, 60_000, 69_999)


def test_files_are_read_from_the_root_and_unpacked_again_in_a_worker(tmp_path, monkeypatch):
    write_small(tmp_path, monkeypatch)
    train, test = open_fashion_mnist(DataConfig(root=str(tmp_path)))
    assert [len(train), len(test)] == [20, 10]
    packed = pickle.dumps(train)
    assert len(packed) < 1000
    assert (pickle.loads(packed)[7].image == train[7].image).all()


def test_a_file_that_is_not_the_published_one_is_refused(tmp_path, monkeypatch):
    write_small(tmp_path, monkeypatch)
    name = "t10k-images-idx3-ubyte.gz"
    (tmp_path / name).write_bytes(gzip.compress(bytes(16 + 7840)))
    with pytest.raises(ConfigError, match=f"{name} is not the published file"):
        open_fashion_mnist(DataConfig(root=str(tmp_path)))


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"no gzip at all", lambda b: b""])
def test_a_damaged_file_is_a_config_error(tmp_path, monkeypatch, damage):
    write_small(tmp_path, monkeypatch)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ConfigError, match=r"train-images-idx3-ubyte.gz"):
        open_fashion_mnist(DataConfig(root=str(tmp_path)))


def test_without_files_the_error_names_both_remedies(tmp_path):
    with pytest.raises(ConfigError, match=r"apt-get install dataset-fashion-mnist.*data.root"):
        open_fashion_mnist(DataConfig(root=str(tmp_path)))
