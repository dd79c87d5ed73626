"""Fashion-MNIST: 60,000 + 10,000 gray images of clothes, 28 x 28, from four IDX files or a prepared TFDS set."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from jaxcl.config import ConfigError, DataConfig
from jaxcl.data.record import Record, Splits
from jaxcl.data.tfds import find_prepared, open_tfds

DEBIAN_FOLDER = "/usr/share/datasets/fashion-mnist"
CLASSES: tuple[str, ...] = (
    "t-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
# sha256 of the unpacked files, so that a number reported for Fashion-MNIST is one on Fashion-MNIST.
SHA256 = {
    "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_TRAIN_IMAGES = 60_000


class FashionMnistSource:
    """One split, unpacked in memory."""

    name = "fashion_mnist"
    classes = CLASSES
    channels = 1
    has_captions = False
    protocol = "Fashion-MNIST, the official split of 60,000 and 10,000 images"

    def __init__(self, folder: Path, part: str, first_id: int):
        self._folder = folder
        self._part = part
        self._load()
        self.ids = np.arange(first_id, first_id + len(self._labels), dtype=np.int32)

    def __len__(self) -> int:
        return len(self._labels)

    def listing(self) -> Iterable[str]:
        """The class of each image."""
        return map(str, self._labels.tolist())

    def __getitem__(self, index: int) -> Record:
        label = int(self._labels[index])
        image_id = int(self.ids[index])
        return Record(self._images[index], label, image_id, f"{self._part}/{index}: {CLASSES[label]}")

    def __getstate__(self) -> dict[str, Any]:
        return {"_folder": self._folder, "_part": self._part, "ids": self.ids}  # not 47 MB through a pipe

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._load()

    def _load(self) -> None:
        """Unpack images and labels."""
        self._labels = _unpack(self._folder / f"{self._part}-labels-idx1-ubyte.gz", 8)
        pixels = _unpack(self._folder / f"{self._part}-images-idx3-ubyte.gz", 16)
        self._images = pixels.reshape(-1, 28, 28, 1)


def open_fashion_mnist(config: DataConfig) -> Splits:
    """The official split of Fashion-MNIST.

    Args:
        config: `root` is the folder of the IDX files, or a TFDS data_dir; empty: that of the Debian package.

    Returns:
        60,000 training and 10,000 test images; ids 0 to 69,999, training first.

    Raises:
        ConfigError: there are no files, with both remedies; or a file is not the published one.
    """
    folder = Path(config.root or DEBIAN_FOLDER)
    if all((folder / file).is_file() for file in SHA256):
        return Splits(FashionMnistSource(folder, "train", 0), FashionMnistSource(folder, "t10k", _TRAIN_IMAGES))
    if find_prepared("fashion_mnist", config.root) is not None:
        return open_tfds("fashion_mnist", config)
    raise ConfigError(
        f"data.name=fashion_mnist: no {next(iter(SHA256))} in {folder}; install it (apt-get install "
        "dataset-fashion-mnist), or set data.root to the folder of the four IDX files or of a prepared TFDS set"
    )


def _unpack(path: Path, header: int) -> np.ndarray:
    """The bytes after an IDX header, once their sha256 is the published one."""
    try:
        unpacked = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise ConfigError(f"data.name=fashion_mnist: {path} cannot be read: {error}") from error
    found = hashlib.sha256(unpacked).hexdigest()
    if found != SHA256[path.name]:
        raise ConfigError(
            f"data.name=fashion_mnist: {path} is not the published file: sha256 of the unpacked bytes is "
            f"{found[:16]}…, expected {SHA256[path.name][:16]}…"
        )
    return np.frombuffer(unpacked, np.uint8, offset=header)
