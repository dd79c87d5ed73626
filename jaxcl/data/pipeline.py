"""Training batches by Grain: shuffled by seed, sliced by process, cropped on the host, resumable at any batch."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grain
import numpy as np

from jaxcl.config import AugmentConfig, ConfigError, DataConfig
from jaxcl.data.bad import BadImages, read_or_replace
from jaxcl.data.crops import VIEWS, random_views, view_draws
from jaxcl.data.record import Source, caption_fingerprint, fingerprint
from jaxcl.data.tokens import Tokenizer

Batch = dict[str, np.ndarray]

_BUFFERED_BATCHES = 2


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
        """The views of each image, of which any that cannot be read is replaced, and perhaps its caption."""
        epoch = number // self.batches_per_epoch
        pairs = [read_or_replace(self.source, int(i), seed=self.seed, epoch=epoch) for i in positions[self.rows]]
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

    def __init__(
        self, batches: grain.MapDataset, reader: BatchReader, *, batch: int, config: DataConfig, bad: BadImages
    ):
        self.batches_per_epoch = reader.batches_per_epoch
        self.bad = bad
        self._batches = batches
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
            self._iterator = read_ahead(self._batches[self._next :], self._workers)
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


def make_loader(
    source: Source,
    *,
    config: DataConfig,
    augment: AugmentConfig,
    batch: int,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
    bad: BadImages | None = None,
    views: int = VIEWS,
    tokenizer: Tokenizer | None = None,
) -> Loader:
    """Training batches of random crops of each image, in an order that depends on the seed alone.

    Every epoch is a new permutation, cut into full batches; each process reads its contiguous slice of every batch.
    The batches are the same for any number of workers, and together for any number of processes.

    Args:
        source: the training split.
        config: `image_size`, `workers`, `max_bad_fraction`.
        augment: size and shape of the crops.
        batch: images in a batch, over all processes.
        seed: of the run.
        process_index: which slice is read here.
        process_count: slices in a batch.
        bad: ledger of unreadable images; None: a new one.
        views: crops of each image, 1 or 2; the first does not depend on how many there are.
        tokenizer: of captions, which the source then has; None: no tokens.

    Returns:
        An iterator of dicts: `views` uint8 `[B, V, H, W, C]` and int32 `[B]` `id`, `label` (-1: none), `epoch`, and
        `bad` (id of the unreadable image that this row replaces, -1: none), with B = batch / process_count; with a
        tokenizer also `tokens` int32 `[B, L]`.

    Raises:
        ConfigError: fewer images than one batch, or a batch that the processes cannot share.
    """
    if len(source) < batch:
        raise ConfigError(
            f"batch.size={batch} exceeds the {len(source)} training images of data.name={source.name}; "
            f"the largest valid batch.size is {len(source)}; few images also want queue.size=0 and an empty loss.top_k"
        )
    if batch % process_count:
        lower = batch - batch % process_count
        valid = " or ".join(str(size) for size in (lower, lower + process_count) if 0 < size <= len(source))
        raise ConfigError(f"batch.size={batch} is not divisible by {process_count} processes; nearest valid: {valid}")
    share = batch // process_count
    rows = slice(process_index * share, (process_index + 1) * share)
    order = grain.MapDataset.range(len(source)).seed(seed).shuffle().batch(batch, drop_remainder=True)
    reader = BatchReader(source, config.image_size, augment, seed, len(order), rows, views, tokenizer)
    bad = BadImages(source, config.max_bad_fraction) if bad is None else bad
    return Loader(order.repeat().map_with_index(reader), reader, batch=batch, config=config, bad=bad)


def read_ahead(dataset: grain.MapDataset, workers: int) -> grain.DatasetIterator:
    """Iterate in order while later elements are read: in threads of this process, or in worker processes.

    Args:
        dataset: its elements are whole batches.
        workers: processes; 0: threads of this one.

    Returns:
        An iterator; close it.
    """
    if workers == 0:
        threads = max(1, min(4, (os.cpu_count() or 1) - 1))  # decoding and resizing release the GIL
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads + 1)
        return iter(dataset.to_iter_dataset(options))
    _parse_absl_flags()
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    several = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=_BUFFERED_BATCHES)
    return iter(dataset.to_iter_dataset(options).mp_prefetch(several, worker_init_fn=_start_worker))


def _parse_absl_flags() -> None:
    """Grain reads absl flags when it starts a process, and fails in a program that has not parsed any."""
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


def _start_worker(index: int, count: int) -> None:
    """Leave Ctrl-C and SIGTERM to the main process, which saves first; end when it is gone, however it ended."""
    import multiprocessing

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.join,), daemon=True).start()


def _end_with(wait: Callable[[], None]) -> None:
    """Wait, then end this process at once."""
    wait()
    os._exit(1)
