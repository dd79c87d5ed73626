"""Some images of a source as a source: training images split into those to train on and those to choose settings by."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from jaxcl.data.record import Captioned, Listed, Record, Source, Splits, hold_out


class Subset:
    """The images of a source at some positions, with the ids that they have there."""

    def __init__(self, source: Source, positions: np.ndarray, protocol: str):
        self._source = source
        self._positions = positions
        self.name = source.name
        self.classes = source.classes
        self.channels = source.channels
        self.has_captions = source.has_captions
        self.captions_at_hand = isinstance(source, Captioned) and source.captions_at_hand
        self.protocol = protocol
        self.ids = source.ids[positions]

    def __len__(self) -> int:
        return len(self._positions)

    def listing(self) -> Iterable[str]:
        """What the source says of each; nothing where it has no list."""
        lines = list(self._source.listing()) if isinstance(self._source, Listed) else []
        return (lines[int(position)] for position in self._positions if lines)

    def caption_of(self, index: int) -> str:
        """What the source says of an image; empty where it has no captions."""
        return self._source.caption_of(int(self._positions[index])) if isinstance(self._source, Captioned) else ""

    def __getitem__(self, index: int) -> Record:
        return self._source[int(self._positions[index])]


def hold_out_training(splits: Splits, fraction: float) -> Splits:
    """Holds out a share of the training images to score by in place of the test images, which stay unseen.

    Settings chosen by such a score cost the test images nothing of their worth.

    Args:
        splits: of a data set.
        fraction: share of the training images to hold out, in (0, 1).

    Returns:
        The training images without the held-out ones, and these; who is held out depends on ids alone.

    Raises:
        ConfigError: fewer than two training images.
    """
    train = splits.train
    out = hold_out([str(int(item)).encode() for item in train.ids], fraction, train.name)
    held = np.zeros(len(train), bool)
    held[sorted(out)] = True
    protocol = f"{train.protocol}; {held.sum():,} of its training images held out and scored, its test images unused"
    return Splits(Subset(train, np.flatnonzero(~held), protocol), Subset(train, np.flatnonzero(held), protocol))
