"""Images for evaluation: every readable one exactly once, in order, as the whole image or as two fixed crops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import grain
import numpy as np
from jaxtyping import Int32, UInt8

from jaxcl.config import AugmentConfig, DataConfig
from jaxcl.data.ahead import read_ahead
from jaxcl.data.bad import BadImages
from jaxcl.data.crops import VIEWS, centre_view, random_views, view_draws
from jaxcl.data.loader import Batch
from jaxcl.data.record import BadImage, Source

EVAL_EPOCH = 2**31 - 1  # of the crops: one that no training run reaches


class EvalImages(NamedTuple):
    """All readable images of a split, in memory."""

    images: UInt8[np.ndarray, "n h w c"]
    labels: Int32[np.ndarray, " n"]
    ids: Int32[np.ndarray, " n"]
    names: tuple[str, ...]


class EvalViews(NamedTuple):
    """Two crops of every readable image of a split, in memory."""

    views: UInt8[np.ndarray, "n 2 h w c"]
    ids: Int32[np.ndarray, " n"]


class EvalReader(NamedTuple):
    """Reads the images at some positions; those that cannot be read are left out."""

    source: Source
    image_size: int
    augment: AugmentConfig | None
    seed: int

    def __call__(self, positions: np.ndarray) -> Batch:
        """Whole images, or their two crops if there are augmentation settings."""
        records, bad = [], []
        for i in positions:
            try:
                records.append(self.source[int(i)])
            except BadImage:
                bad.append(self.source.ids[i])
        ids = np.array([record.id for record in records], np.int32)
        said = {"caption": np.array([record.caption for record in records], np.str_)}
        return {
            **(said if self.source.has_captions else {}),
            "images": self._pixels([record.image for record in records], ids),
            "id": ids,
            "label": np.array([record.label for record in records], np.int32),
            "name": np.array([record.name for record in records], np.str_),
            "bad": np.array(bad, np.int32),
        }

    def _pixels(self, images: list[np.ndarray], ids: np.ndarray) -> np.ndarray:
        """What an encoder is shown."""
        size, augment = self.image_size, self.augment
        shape = (size, size, self.source.channels)
        if augment is None:
            out = np.empty((len(images), *shape), np.uint8)
            for row, image in enumerate(images):
                out[row] = centre_view(image, size)
            return out
        out = np.empty((len(images), VIEWS, *shape), np.uint8)
        draws = view_draws(self.seed, EVAL_EPOCH, ids)
        for row, image in enumerate(images):
            out[row] = random_views(image, draws[row], size, config=augment)
        return out


def eval_batches(
    source: Source,
    *,
    config: DataConfig,
    batch: int = 512,
    augment: AugmentConfig | None = None,
    seed: int = 0,
    bad: BadImages | None = None,
) -> Iterator[Batch]:
    """Every readable image exactly once, in order, a batch at a time: memory does not grow with the set.

    Args:
        source: a split.
        config: `image_size`, `workers`, `max_bad_fraction`.
        batch: images read at once; a batch is shorter where images are unreadable, and at the end.
        augment: for two crops of each image, with keys that training never uses; None: the whole image, its shorter
            side scaled to `image_size`, its centre cut out.
        seed: of the crops.
        bad: where unreadable images are counted, for example a loader's, so that none is named twice; None: only here.

    Yields:
        Dicts: `images` uint8 `[b, H, W, C]`, with `augment` `[b, 2, H, W, C]`; int32 `[b]` `id` and `label` (-1: none);
        strings `[b]` `name` and, where the source has them, `caption`; int32 `bad`, the ids left out.

    Raises:
        ConfigError: more unreadable images than `max_bad_fraction` allows.
    """
    reader = EvalReader(source, config.image_size, augment, seed)
    bad = BadImages(source, config.max_bad_fraction) if bad is None else bad
    chunks = grain.MapDataset.range(len(source)).batch(batch, drop_remainder=False).map(reader)
    iterator = read_ahead(chunks, config.workers)
    try:
        for chunk in iterator:
            bad.note(chunk["bad"])
            yield chunk
    finally:
        iterator.close()


def eval_images(source: Source, *, config: DataConfig, batch: int = 512, bad: BadImages | None = None) -> EvalImages:
    """All readable images of a split as one array: `n * image_size² * channels` bytes; see `eval_batches`.

    Args:
        source: a split.
        config: the data settings.
        batch: images read at once.
        bad: where unreadable images are counted.

    Returns:
        Images, labels, ids and names, in order of id.
    """
    chunks = list(eval_batches(source, config=config, batch=batch, bad=bad))
    return EvalImages(
        images=_join(chunks, "images"),
        labels=_join(chunks, "label"),
        ids=_join(chunks, "id"),
        names=tuple(name for chunk in chunks for name in chunk["name"].tolist()),
    )


def eval_views(
    source: Source,
    *,
    config: DataConfig,
    augment: AugmentConfig,
    seed: int,
    batch: int = 512,
    bad: BadImages | None = None,
) -> EvalViews:
    """Two crops of every readable image, always the same for a seed, and never seen in training; see `eval_batches`.

    Args:
        source: a split.
        config: the data settings.
        augment: size and shape of the crops.
        seed: of the run.
        batch: images read at once.
        bad: where unreadable images are counted.

    Returns:
        Views and ids, in order of id.
    """
    chunks = list(eval_batches(source, config=config, batch=batch, augment=augment, seed=seed, bad=bad))
    return EvalViews(_join(chunks, "images"), _join(chunks, "id"))


def _join(chunks: list[Batch], field: str) -> np.ndarray:
    """One field of all chunks."""
    return np.concatenate([chunk[field] for chunk in chunks])
