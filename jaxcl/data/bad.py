"""Unreadable images: replaced where they are read, named and counted where the run is led."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

import numpy as np
from jaxtyping import Int32

from jaxcl.config import ConfigError
from jaxcl.data.crops import uniforms
from jaxcl.data.record import BadImage, Record, Source, position_of

_LOG = logging.getLogger(__name__)
_NAMED = 10  # warnings in full; after that only the total
_MAX_TRIES = 1000


def read_or_replace(source: Source, position: int, *, seed: int, epoch: int) -> tuple[Record, int]:
    """Read an image, or the first readable one of an order drawn from (seed, epoch, id): the same on every machine.

    Args:
        source: the split.
        position: of the image in it.
        seed: of the run.
        epoch: how often the data have been seen.

    Returns:
        The record, and the id of the unreadable image that it replaces (-1: none).

    Raises:
        ConfigError: none of 1,000 images (or of all) can be read.
    """
    try:
        return source[position], -1
    except BadImage as error:
        reason = error
    bad = int(source.ids[position])
    for other in _other_positions(len(source), position, uniforms(seed, epoch, source.ids[[position]], 2)[0, 0]):
        try:
            return source[other], bad
        except BadImage as error:
            reason = error
    tried = min(_MAX_TRIES, len(source))
    raise ConfigError(f"data.name={source.name}: none of {tried} images could be read; the last one was {reason}")


def check_readable(source: Source) -> None:
    """Raises where none of the images can be read; usually the first one can, and no other is tried.

    Args:
        source: a split.

    Raises:
        ConfigError: none of 1,000 images (or of all) can be read.
    """
    reason: BadImage | None = None
    for position in range(min(_MAX_TRIES, len(source))):
        try:
            source[position]
        except BadImage as error:
            reason = error
        else:
            return
    tried = min(_MAX_TRIES, len(source))
    raise ConfigError(
        f"data.name={source.name}: none of {tried} held-out images can be read; the last one was {reason}"
    )


def _other_positions(count: int, position: int, draws: np.ndarray) -> Iterable[int]:
    """Every other position once (up to 1,000), from a drawn start in drawn steps coprime to the count."""
    start, step = (int(x * count) for x in draws)
    step = max(1, step)
    while math.gcd(step, count) > 1:
        step += 1
    walk = ((start + i * step) % count for i in range(min(count, _MAX_TRIES)))
    return (other for other in walk if other != position)


class BadImages:
    """The unreadable images met so far: each is named once, and too many of them end the run."""

    def __init__(self, source: Source, max_fraction: float):
        self.ids: set[int] = set()
        self._source = source
        self._max_fraction = max_fraction
        self._allowed = max(1, int(max_fraction * len(source)))  # one is always allowed, in however small a set

    def __len__(self) -> int:
        return len(self.ids)

    def note(self, ids: Int32[np.ndarray, " n"]) -> None:
        """Take in the ids of unreadable images; negative ones and those known already change nothing.

        Args:
            ids: for example the field `bad` of a batch.

        Raises:
            ConfigError: there are more than `max_bad_fraction` of the set, and more than one.
        """
        for image_id in sorted(set(ids.tolist()) - self.ids - {-1}):
            self.ids.add(image_id)
            reason = self._why(image_id)
            if len(self.ids) <= _NAMED:
                _LOG.warning("unreadable image, replaced or left out: %s", reason)
            if len(self.ids) == _NAMED + 1:
                _LOG.warning("more than %d unreadable images; the rest are only counted", _NAMED)
            if len(self.ids) > self._allowed:
                raise ConfigError(
                    f"{len(self.ids)} of {len(self._source)} images cannot be read, more than data.max_bad_fraction="
                    f"{self._max_fraction} allows ({self._allowed}); the last one was {reason}"
                )

    def _why(self, image_id: int) -> str:
        """Name and reason, found by reading it once more: a batch carries numbers only."""
        try:
            record = self._source[position_of(self._source, image_id)]
        except BadImage as error:
            return str(error)
        return f"{record.name}: failed once, and could be read the second time"
