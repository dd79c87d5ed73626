"""A folder of images, nested as it comes: labelled by its first-level folders, or not at all."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from jaxcl.config import ConfigError, DataConfig
from jaxcl.data.captions import read_captions
from jaxcl.data.decode import HEAD_BYTES, decode_image, image_format, to_grey
from jaxcl.data.record import Record, Splits, hold_out

# A file called so is meant to be an image, and counts as a bad one if it is none; any other is looked into.
_JPEG = (".jpg", ".jpeg", ".jpe", ".jfif")
_OTHER = (".png", ".apng", ".gif", ".bmp", ".dib", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
_SUFFIXES = frozenset(_JPEG + _OTHER)
_TEST_NAMES = ("test", "val", "validation")


class FolderSource:
    """Some of the images of a folder."""

    captions_at_hand = True

    def __init__(
        self,
        root: Path,
        paths: Sequence[str],
        ids: np.ndarray,
        labels: Sequence[int],
        captions: Sequence[str],
        *,
        classes: tuple[str, ...],
        protocol: str,
        max_pixels: int,
        channels: int = 3,
    ):
        self.name = f"folder:{root}"
        self.channels = channels
        self.classes = classes
        self.protocol = protocol
        self.ids = ids
        self.has_captions = bool(captions)
        self._root = root
        self._paths = paths
        self._labels = labels
        self._captions = captions
        self._max_pixels = max_pixels

    def __len__(self) -> int:
        return len(self._paths)

    def listing(self) -> Iterable[str]:
        """Path and class of each image."""
        return (f"{path} {label}" for path, label in zip(self._paths, self._labels, strict=True))

    def __getitem__(self, index: int) -> Record:
        path = self._paths[index]
        whole = self._root / path
        image = decode_image(whole, _printable(str(whole)), max_pixels=self._max_pixels)
        image = to_grey(image) if self.channels == 1 else image
        return Record(image, self._labels[index], int(self.ids[index]), _printable(path), self.caption_of(index))

    def caption_of(self, index: int) -> str:
        """What the table says of an image; empty without a table."""
        return self._captions[index] if self.has_captions else ""


def open_folder(path: str, config: DataConfig, *, captions: bool = False) -> Splits:
    """A folder of images as a data set.

    Labels: the first-level folders, if every image lies in one and there are at least two. Split: `train/` beside
    `test/`, `val/` or `validation/` if both have images, and labels then count inside them; otherwise by sha256 of
    the relative path. Hidden files and folders are passed over.

    Args:
        path: the folder; `~` is expanded.
        config: `holdout` and `max_pixels`.
        captions: whether records carry those of `captions.tsv` or `captions.csv` in the folder, if there is one.

    Returns:
        Training and held-out images; ids are positions in the sorted list of all relative paths.

    Raises:
        ConfigError: no such path, not a folder, no image in it, or a single one; an image without a caption.
    """
    root, paths = _find_images(path, f"data.name=folder:{path}")
    test_name = _test_folder(paths)
    if test_name is None:
        held = hold_out([os.fsencode(p) for p in paths], config.holdout, f"folder:{path}")
        depth, rule = 0, f"{config.holdout:g} held out by sha256 of the relative path"
        sides = [[i for i in range(len(paths)) if i not in held], sorted(held)]
    else:
        depth, rule = 1, f"split by its folders train/ and {test_name}/"
        sides = [[i for i, p in enumerate(paths) if p.startswith(f"{side}/")] for side in ("train", test_name)]
    labels = _labels(paths, [i for side in sides for i in side], depth)
    classes = tuple(sorted(set(labels.values())))
    number = {label: i for i, label in enumerate(classes)}
    kind = f"labelled by {len(classes)} folders" if classes else "unlabelled"
    said = read_captions(root, [paths[i] for side in sides for i in side]) if captions else {}
    sources = [
        FolderSource(
            root,
            [paths[i] for i in side],
            np.array(side, np.int32),
            [number[labels[i]] if labels else -1 for i in side],
            [said[paths[i]] for i in side] if said else [],
            classes=classes,
            protocol=f"{len(paths)} images of a folder, {kind}, {rule}",
            max_pixels=config.max_pixels,
        )
        for side in sides
    ]
    return Splits(*sources)


def open_images(path: str, *, called: str, max_pixels: int, channels: int = 3) -> FolderSource:
    """All images of a folder and of those below it, without splits or labels.

    Args:
        path: the folder; `~` is expanded.
        called: what asks for it in an error, such as a flag.
        max_pixels: of one image, above which it is not decoded.
        channels: 3, or 1 for images in grey.

    Returns:
        The images, sorted by their relative path; ids are their positions.

    Raises:
        ConfigError: no such path, not a folder, or no image in it.
    """
    root, paths = _find_images(path, called)
    return FolderSource(
        root,
        paths,
        np.arange(len(paths), dtype=np.int32),
        [-1] * len(paths),
        [],
        classes=(),
        protocol=f"{len(paths)} images of a folder",
        max_pixels=max_pixels,
        channels=channels,
    )


def _find_images(path: str, called: str) -> tuple[Path, list[str]]:
    """A folder, and the relative paths, with "/", of all files in it that are or claim to be images, sorted."""
    try:
        root = Path(path).expanduser().absolute()
        paths = _image_paths(root, called)
    except (OSError, RuntimeError) as error:  # RuntimeError: ~ of nobody
        raise ConfigError(f"{called}: this folder cannot be read: {error}") from error
    if not paths:
        raise ConfigError(f"{called}: there is no image in this folder or below it")
    return root, paths


def _image_paths(root: Path, called: str) -> list[str]:
    """Those paths, of which there may be none."""
    if not root.exists():
        raise ConfigError(f"{called}: there is no such folder")
    if not root.is_dir():
        raise ConfigError(f"{called}: this is a file, not a folder")
    files = (name for folder in _folders(root, called) for name in _files(folder))
    return sorted(os.path.relpath(name, root).replace(os.sep, "/") for name in files if _is_candidate(name))


def _folders(root: Path, called: str) -> Iterator[str]:
    """The folder and all below it, through links but never twice, so that a link to a parent ends."""
    seen = set()
    for folder, below, _ in os.walk(root, followlinks=True, onerror=functools.partial(_cannot_list, called)):
        facts = os.stat(folder)
        if (facts.st_dev, facts.st_ino) in seen:
            below.clear()
            continue
        seen.add((facts.st_dev, facts.st_ino))
        below[:] = sorted(name for name in below if not name.startswith("."))
        yield folder


def _files(folder: str) -> Iterator[str]:
    """The files directly in a folder, without hidden ones."""
    with os.scandir(folder) as entries:
        yield from (e.path for e in entries if not e.name.startswith(".") and e.is_file())


def _cannot_list(called: str, error: OSError) -> None:
    """Stop at a folder that may not be read, rather than train on half of the images."""
    raise ConfigError(f"{called}: {error.filename} cannot be listed: {error.strerror}")


def _is_candidate(path: str) -> bool:
    """Whether a file is called like an image or starts like one."""
    if os.path.splitext(path)[1].lower() in _SUFFIXES:
        return True
    try:
        with open(path, "rb") as file:
            return image_format(file.read(HEAD_BYTES)) is not None
    except OSError:
        return False


def _printable(path: str) -> str:
    """A path with the bytes that are no UTF-8, and line ends, written as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace").replace("\n", "\\n")


def _test_folder(paths: Sequence[str]) -> str | None:
    """The folder that holds the test images, if there is also one called train."""
    first = {path.split("/", 1)[0] for path in paths if "/" in path}
    return next((name for name in _TEST_NAMES if name in first), None) if "train" in first else None


def _labels(paths: Sequence[str], positions: Sequence[int], depth: int) -> dict[int, str]:
    """The folder at this depth of each image; empty if one image has none, or all have the same."""
    parts = {i: paths[i].split("/") for i in positions}
    if any(len(part) < depth + 2 for part in parts.values()):
        return {}
    labels = {i: part[depth] for i, part in parts.items()}
    return labels if len(set(labels.values())) >= 2 else {}
