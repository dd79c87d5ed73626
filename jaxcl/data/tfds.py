"""Any prepared TFDS data set, read as array_record without TensorFlow."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxcl.config import ConfigError, DataConfig
from jaxcl.data.decode import decode_image
from jaxcl.data.record import BadImage, Record, Splits, hold_out

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_TEST_SPLITS = ("test", "validation")


class _Features(NamedTuple):
    """The names of the features that are read."""

    image: str
    label: str | None
    caption: str | None


class TfdsSource:
    """Some of the images of one prepared split."""

    captions_at_hand = False

    def __init__(
        self,
        builder: Any,
        split: str,
        features: _Features,
        positions: np.ndarray,
        first_id: int,
        *,
        protocol: str,
        max_pixels: int,
    ):
        import tensorflow_datasets as tfds

        image, label, caption = features
        # Bytes come undecoded, so that one decoder and one pixel limit serve every source.
        decoders = {image: tfds.decode.SkipDecoding()}
        self.name = f"tfds:{builder.info.name}"
        self.classes = tuple(builder.info.features[label].names) if label else ()
        self.has_captions = caption is not None
        self.channels = 1 if builder.info.features[image].shape[-1] == 1 else 3
        self.protocol = protocol
        self.ids = (first_id + positions).astype(np.int32)
        self._examples = builder.as_data_source(split=split, decoders=decoders)
        self._split = split
        self._features = features
        self._positions = positions
        self._max_pixels = max_pixels

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> Record:
        name = f"{self._split}/{self._positions[index]}"
        image, label, _ = self._features
        example = self._example(index, name)
        pixels = decode_image(bytes(example[image]), f"{self.name} {name}", max_pixels=self._max_pixels)
        number = int(example[label]) if label else -1
        return Record(pixels[..., : self.channels], number, int(self.ids[index]), name, self._said(example))

    def caption_of(self, index: int) -> str:
        """What the text feature says of an image, which is read and not decoded."""
        return self._said(self._example(index, f"{self._split}/{self._positions[index]}"))

    def _said(self, example: dict[str, Any]) -> str:
        """The caption of an example; empty where none is asked for."""
        caption = self._features.caption
        return bytes(example[caption]).decode("utf-8", "replace") if caption else ""

    def has_labels(self) -> bool:
        """Whether the first image has a class: the test split of ImageNet has -1 throughout."""
        label = self._features.label
        return label is not None and int(self._example(0, "first")[label]) >= 0

    def _example(self, index: int, name: str) -> dict[str, Any]:
        """What TFDS has at a position, with the image still in bytes."""
        try:
            return self._examples[int(self._positions[index])]
        except Exception as error:  # whatever array_record says of a damaged file
            raise BadImage(f"{self.name} {name}", " ".join(str(error).split())) from error


def open_tfds(name: str, config: DataConfig, *, captions: bool = False) -> Splits:
    """A TFDS set that has been prepared as array_record.

    Trains on `train`; evaluates on `test`, or on `validation` where there is no test split or it has no labels, or
    on a hold-out of `train`.

    Args:
        name: as TFDS spells it: `cifar10`, `cifar10:3.0.2`, `name/config`, `name/config:1.0.0`.
        config: `root` is the data_dir; empty: $TFDS_DATA_DIR or ~/tensorflow_datasets. `caption` is a text feature.
        captions: whether records carry that feature.

    Returns:
        Both splits; ids number the training split, then the other.

    Raises:
        ConfigError: not prepared, or not as array_record, with the line that prepares it; no image in it; no train; no
            such text in it.
    """
    folder = find_prepared(name, config.root)
    if folder is None:
        raise ConfigError(_not_prepared(name, config.root))
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(folder)
    features = _features_of(name, builder.info.features, config.caption if captions else None)
    if "train" not in builder.info.splits:
        raise ConfigError(f"data.name=tfds:{name} has no split called train, only {', '.join(builder.info.splits)}")
    make = _maker(name, builder, features, config)
    train = np.arange(builder.info.splits["train"].num_examples)
    for split in _TEST_SPLITS:
        if builder.info.splits.get(split) and builder.info.splits[split].num_examples:
            rule = f"its own splits train and {split}"
            test = make(split, np.arange(builder.info.splits[split].num_examples), len(train), rule)
            if features.label is None or test.has_labels():
                return Splits(make("train", train, 0, rule), test)
    held = sorted(hold_out([str(i).encode() for i in train], config.holdout, f"tfds:{name}"))
    rule = f"{config.holdout:g} of its split train held out by sha256 of the position"
    return Splits(make("train", np.delete(train, held), 0, rule), make("train", train[held], 0, rule))


def find_prepared(name: str, root: str | None) -> Path | None:
    """The folder of a prepared set, of its newest version if none is asked for; None if there is none."""
    path, _, version = name.partition(":")
    folder = _data_dir(root) / path
    found = sorted(_versions(folder), key=lambda v: tuple(map(int, v.name.split("."))))
    if not found and folder.is_dir():
        configs = [child for child in sorted(folder.iterdir()) if child.is_dir() and list(_versions(child))]
        if len(configs) > 1:
            names = ", ".join(f"tfds:{path}/{child.name}" for child in configs)
            raise ConfigError(f"data.name=tfds:{name} has several configurations: {names}")
        return find_prepared(f"{path}/{configs[0].name}:{version}", root) if configs else None
    return next((v for v in reversed(found) if version in ("", v.name)), None)


def _versions(folder: Path) -> Iterator[Path]:
    """The prepared versions directly below a folder."""
    if folder.is_dir():
        yield from (v for v in folder.iterdir() if _VERSION.fullmatch(v.name) and (v / "dataset_info.json").is_file())


def _data_dir(root: str | None) -> Path:
    """Where TFDS keeps prepared sets."""
    return Path(root or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def _prepare_line(name: str, root: str | None) -> str:
    """What to type."""
    return f"pip install -e '.[prepare]' && tfds build {name} --file_format=array_record --data_dir={_data_dir(root)}"


def _not_prepared(name: str, root: str | None) -> str:
    """What is missing, what it may have been meant to be, and how to get it."""
    folder = _data_dir(root)
    prepared = sorted(child.name for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []
    nearest = difflib.get_close_matches(name, prepared, 1, 0.5)
    hint = f"; did you mean tfds:{nearest[0]}?" if nearest else ""
    return f"data.name=tfds:{name} is not prepared in {folder}{hint}; to prepare it: {_prepare_line(name, root)}"


def _features_of(name: str, features: Any, caption: str | None) -> _Features:
    """The feature that is the image, and the one that is its class, by name or by being the only one; the caption."""
    import tensorflow_datasets as tfds

    def only(kind: type, usual: str) -> str | None:
        names = [key for key, feature in features.items() if isinstance(feature, kind)]
        return usual if usual in names else names[0] if len(names) == 1 else None

    image = only(tfds.features.Image, "image")
    if image is None:
        raise ConfigError(f"data.name=tfds:{name} has no feature `image`, nor a single one that is; only {[*features]}")
    texts = [key for key, feature in features.items() if isinstance(feature, tfds.features.Text)]
    if caption is not None and caption not in texts:
        offered = f"only {', '.join(texts)}" if texts else "nor any other"
        raise ConfigError(f"data.caption = {caption!r}: tfds:{name} has no such text feature, {offered}")
    return _Features(image, only(tfds.features.ClassLabel, "label"), caption)


def _maker(name: str, builder: Any, features: _Features, config: DataConfig) -> Any:
    """A function that makes the source of one split."""

    def make(split: str, positions: np.ndarray, first_id: int, rule: str) -> TfdsSource:
        protocol = f"TFDS {builder.info.full_name}, {rule}"
        try:
            return TfdsSource(
                builder, split, features, positions, first_id, protocol=protocol, max_pixels=config.max_pixels
            )
        except (NotImplementedError, ValueError) as error:  # TFDS: this file format has no random access
            line = _prepare_line(name, config.root)
            raise ConfigError(
                f"data.name=tfds:{name} is prepared as {builder.info.file_format.value}, and only array_record can be "
                f"read without TensorFlow; to prepare it: {line}"
            ) from error

    return make
