"""What a data source is: a random-access list of images, with labels, stable ids and names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32, UInt8

from jaxcl.config import ConfigError


class BadImage(Exception):
    """An image that cannot be read: its name and why, so that a reader can report it and go on."""

    def __init__(self, name: str, reason: str):
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class Record(NamedTuple):
    """One image of a source."""

    image: UInt8[np.ndarray, "h w c"]  # c: the channels of the source, or 4 (with alpha) where it asks for a background
    label: int  # number of the class, -1 without one
    id: int  # the same in every run, and unique over both splits
    name: str  # what a person would call it: a path, an emoji's name
    caption: str = ""  # what the image shows, in words; empty without captions


@runtime_checkable
class Source(Protocol):
    """A split of a data set, picklable so that worker processes can read it.

    `source[i]` raises `BadImage` for an image that cannot be read.
    """

    name: str
    classes: tuple[str, ...]  # empty: no labels
    channels: int  # of a view: 1 or 3
    has_captions: bool  # whether each record carries one
    protocol: str  # one plain line: what the images are and how they were split
    ids: Int32[np.ndarray, " n"]  # increasing; ids[i] is the id of source[i], known without reading it

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Record: ...


@runtime_checkable
class Listed(Protocol):
    """A source that knows the name and the class of each image without reading it."""

    def listing(self) -> Iterable[str]:
        """One line an image, in order."""
        ...


@runtime_checkable
class Captioned(Protocol):
    """A source that has a caption of each image without decoding it."""

    captions_at_hand: bool  # whether without reading anything

    def caption_of(self, index: int) -> str:
        """That of `source[index]`; `BadImage` where it cannot be read."""
        ...


def caption_fingerprint(source: Source) -> str | None:
    """All captions of a split, in order.

    Args:
        source: a split.

    Returns:
        sha256 in hexadecimal digits; None where each of them would have to be read.
    """
    if not isinstance(source, Captioned) or not source.captions_at_hand:
        return None
    digest = hashlib.sha256()
    for index in range(len(source)):
        digest.update(source.caption_of(index).encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def fingerprint(source: Source) -> str:
    """What a split consists of, without reading an image: its ids, and the names and classes that are known.

    Args:
        source: a split.

    Returns:
        sha256 in hexadecimal digits.
    """
    digest = hashlib.sha256(np.ascontiguousarray(source.ids, np.int64).tobytes())
    if isinstance(source, Listed):
        for line in source.listing():
            digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


class Splits(NamedTuple):
    """The images to train on, and those held out for evaluation."""

    train: Source
    test: Source


def position_of(source: Source, image_id: int) -> int:
    """The position in a source of the image with this id."""
    return int(np.searchsorted(source.ids, image_id))


def hold_out(keys: Sequence[bytes], fraction: float, name: str) -> frozenset[int]:
    """The positions to hold out, drawn by hash: an image stays on its side whatever is added or removed around it.

    Args:
        keys: what identifies each item for ever, for example its relative path.
        fraction: share of the items to hold out, rounded down, but at least one.
        name: the data set, for the message.

    Returns:
        Positions in `keys`: those with the smallest sha256.

    Raises:
        ConfigError: fewer than two items.

    >>> sorted(hold_out([b"a", b"b", b"c", b"d"], 0.5, "letters"))
    [2, 3]
    """
    if len(keys) < 2:
        raise ConfigError(f"data.name={name}: {len(keys)} image, and a hold-out needs at least 2")
    order = sorted(range(len(keys)), key=lambda i: hashlib.sha256(keys[i]).digest())
    count = min(max(1, int(fraction * len(keys))), len(keys) - 1)
    return frozenset(order[:count])
