"""Training batches in an order that is given: the rows of this process, cropped, resumable at any batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import grain
import numpy as np

from jaxcl.config import AugmentConfig, ConfigError, DataConfig
from jaxcl.data.ahead import read_ahead
from jaxcl.data.bad import BadImages, read_or_replace
from jaxcl.data.crops import VIEWS, random_views, view_draws
from jaxcl.data.record import Source, caption_fingerprint, fingerprint
from jaxcl.data.tokens import Tokenizer

Batch = dict[str, np.ndarray]


class BatchReader(NamedTuple):
    """Reads this process's rows of the batch with a given number; picklable, and pure but for the disk."""

    source: Source
    image_size: int
    augment: AugmentConfig
    seed: int
    batches_per_epoch: int
    rows: slice
    views: int = VIEWS
    tokenizer: Tokenizer | None = None

    def __call__(self, number: int, positions: np.ndarray) -> Batch:
        """The rows of this process."""
        return self.read(number, positions[self.rows])

    def read(self, number: int, positions: np.ndarray) -> Batch:
        """The views of each image, of which any that cannot be read is replaced, and perhaps its caption.

        Args:
            number: of the batch in which the images are.
            positions: [b] of the images in the source.

        Returns:
            As `make_loader`, with b rows.
        """
        epoch = number // self.batches_per_epoch
        pairs = [read_or_replace(self.source, int(i), seed=self.seed, epoch=epoch) for i in positions]
        ids = np.array([record.id for record, _ in pairs], np.int32)
        draws = view_draws(self.seed, epoch, ids)[:, : self.views]
        size = self.image_size
        views = np.empty((len(pairs), self.views, size, size, self.source.channels), np.uint8)
        for row, (record, _) in enumerate(pairs):
            views[row] = random_views(record.image, draws[row], size, config=self.augment)
        tokens = {"tokens": self.tokenizer([record.caption for record, _ in pairs])} if self.tokenizer else {}
        return {
            **tokens,
            "views": views,
            "id": ids,
            "label": np.array([record.label for record, _ in pairs], np.int32),
            "epoch": np.full(len(pairs), epoch, np.int32),
            "bad": np.array([bad for _, bad in pairs], np.int32),
        }


class Loader(Iterator[Batch]):
    """An endless iterator of training batches; make one with `make_loader`.

    Attributes:
        batches_per_epoch: full batches in one pass over the data; what is left over differs from epoch to epoch.
        bad: the unreadable images met so far.
    """

    def __init__(self, order: grain.MapDataset, reader: BatchReader, *, batch: int, config: DataConfig, bad: BadImages):
        """Nothing is read yet.

        Args:
            order: endless; positions of the images of each batch, over all processes.
            reader: of the rows of this process.
            batch: images in a batch, over all processes.
            config: `workers`.
            bad: ledger of unreadable images.
        """
        self.batches_per_epoch = reader.batches_per_epoch
        self.bad = bad
        self._order, self._reader = order, reader
        self._facts = {"batch_size": batch, "images": len(reader.source), "seed": reader.seed}
        self._source_name = reader.source.name
        self._prints = {"data": fingerprint(reader.source)}
        if reader.tokenizer:
            self._prints["tokenizer"] = reader.tokenizer.fingerprint
            captions = caption_fingerprint(reader.source)
            self._prints |= {"captions": captions} if captions else {}
        self._workers = config.workers
        self._next = 0
        self._iterator: grain.DatasetIterator | None = None

    def __next__(self) -> Batch:
        if self._iterator is None:
            self._iterator = read_ahead(self._order.map_with_index(self._reader)[self._next :], self._workers)
        batch = next(self._iterator)
        self._next += 1
        self.bad.note(batch["bad"])
        return batch

    def position(self) -> dict[str, Any]:
        """Where reading has got to, for a checkpoint; the same for any number of workers and processes.

        Returns:
            Something JSON can hold: the number of the next batch, what the order depends on, and the bad ids so far.
        """
        return {"next_batch": self._next, **self._facts, **self._prints, "bad": sorted(self.bad.ids)}

    def restore(self, position: dict[str, Any]) -> None:
        """Go on from a position, bit for bit.

        Args:
            position: from `position()`, of this or an earlier run.

        Raises:
            ConfigError: the batch size, the seed or the data set have changed, and with them the order; or the captions
                or their tokenizer.
        """
        for name, value in self._facts.items():
            if position.get(name) != value:
                raise ConfigError(
                    f"the data cannot go on where the checkpoint stopped: {name} is {value}, was {position.get(name)}"
                )
        what = {
            "data": f"the training images of data.name={self._source_name} are not those of before (their ids, names "
            "or classes)",
            "captions": f"the captions of data.name={self._source_name} are not those of before",
            "tokenizer": "the file of text.tokenizer is not that of before",
        }
        for name, own in self._prints.items():
            if position.get(name, own) != own:  # versions before these fingerprints saved none
                raise ConfigError(f"the data cannot go on where the checkpoint stopped: {what[name]}")
        self.close()
        self._next = int(position["next_batch"])
        self.bad.ids = set(position["bad"])

    def close(self) -> None:
        """End threads and worker processes; the loader starts them again if it is asked for more."""
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None
