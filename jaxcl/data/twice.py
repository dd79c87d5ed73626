"""Training batches that are never in memory: their micro-batches are read when they are needed, which is twice."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grain
import numpy as np

from jaxcl.config import ConfigError
from jaxcl.data.ahead import read_ahead
from jaxcl.data.loader import Batch, BatchReader, Loader
from jaxcl.portions import Portions

PASSES = 2  # of a cached step over its images: encode and replay
_KEPT, _SUMS = ("id", "label"), "sums"


def _checksums(micro: Batch) -> np.ndarray:
    """Of the views of each image."""
    return np.array([zlib.crc32(views.tobytes()) for views in micro["views"]], np.uint32)


class Twice:
    """One batch: gone through a first and a second time, it yields the same micro-batches, bit for bit.

    Args:
        stream: of micro-batches; those of this batch come next, once for each pass.
        portions: of the batch.
        note: is told the field "bad" of each micro-batch.
        name: of the data set, for messages.
    """

    def __init__(self, stream: Iterator[Batch], portions: Portions, note: Callable[[Any], None], name: str) -> None:
        self._stream, self._portions, self._note, self._name = stream, portions, note, name
        self._seen: list[Batch] = []
        self._left = PASSES

    def __iter__(self) -> Iterator[Batch]:
        """The micro-batches of one pass, in order; a pass that was begun is gone through to its end.

        Raises:
            RuntimeError: a third pass.
            ConfigError: an image could be read in one pass, and not in the other, or its pixels are others.
        """
        if not self._left:
            raise RuntimeError(f"a batch that is not in memory can be gone through {PASSES} times")
        self._left -= 1
        for number in range(self._portions.count):
            micro = next(self._stream)
            if len(self._seen) == number:
                self._note(micro["bad"])
                self._seen.append({name: micro[name] for name in _KEPT} | {_SUMS: _checksums(micro)})
            else:
                self._check(micro, self._seen[number])
            yield micro

    def __getitem__(self, name: str) -> np.ndarray:
        """The ids or labels of all rows in the order of the batch, once they have been gone through: [B]."""
        rows = np.concatenate([micro[name] for micro in self._seen])
        places = np.arange(len(rows))
        taken = [self._portions.take(places, n, self._portions.images(n)) for n in range(self._portions.count)]
        ordered = np.empty_like(rows)
        ordered[np.concatenate(taken)] = rows
        return ordered

    def _check(self, micro: Batch, first: Batch) -> None:
        """The gradient of an image must not meet another image."""
        ids = zip(micro["id"].tolist(), first["id"].tolist(), strict=True)
        changes = [f"where image {before} was, there is {now}" for now, before in ids if now != before]
        changed = micro["id"][_checksums(micro) != first[_SUMS]]
        changes += [f"image {number} has other pixels" for number in changed.tolist()]
        if changes:
            raise ConfigError(
                f"data.name={self._name} changed while a step read it twice: {changes[0]}; "
                "batch.images = 'host' reads each image once"
            )


@dataclass
class MicroReader:
    """Reads a micro-batch by its number in an endless row of passes; picklable, and pure but for the disk.

    Attributes:
        order: positions of the images of each batch, over all processes.
        reader: of images, and the rows of this process.
        portions: of a batch.
    """

    order: grain.MapDataset
    reader: BatchReader
    portions: Portions
    _last: tuple[int, Any] = field(default=(-1, None), repr=False)  # positions of the batch that was asked for last

    def __call__(self, number: int, _: Any = None) -> Batch:
        """The rows of this process of micro-batch `number`, of which each batch has `PASSES` times `portions.count`."""
        batch, turn = divmod(int(number), PASSES * self.portions.count)
        known, rows = self._last
        if known != batch:
            rows = self.order[batch][self.reader.rows]
            self._last = batch, rows
        turn %= self.portions.count
        return self.reader.read(batch, self.portions.take(rows, turn, self.portions.images(turn)))


class LoaderOfMicroBatches(Loader):
    """An endless iterator of batches of which no more than some micro-batches are in memory.

    It reads ahead into the second pass and into the next batch; go through each batch before asking for the next.
    """

    def __init__(self, order: grain.MapDataset, reader: BatchReader, *, portions: Portions, **given: Any) -> None:
        """Nothing is read yet.

        Args:
            order: as `Loader` has it.
            reader: as well.
            portions: of a batch.
            **given: the rest.
        """
        super().__init__(order, reader, **given)
        self._portions = portions

    def __next__(self) -> Any:
        if self._iterator is None:
            read = MicroReader(self._order, self._reader, self._portions)
            numbered = grain.MapDataset.range(1).repeat().map_with_index(read)
            first = self._next * PASSES * self._portions.count
            self._iterator = read_ahead(numbered[first:], self._workers)
        self._next += 1
        return Twice(self._iterator, self._portions, self.bad.note, self._source_name)
