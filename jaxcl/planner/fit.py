"""The largest batch that fits, in few tries: memory is close to linear in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

TRIES = 12  # a secant needs four or five
FINE = 64  # the result is exact to a share of 1/64


class Fit(NamedTuple):
    """What was found.

    Attributes:
        size: the largest batch that fits; None: not even the smallest does.
        step: a batch larger by so much does not.
        tries: batches that were compiled.
    """

    size: int | None
    step: int
    tries: int


def largest(peak_of: Callable[[int], int | None], limit: int, *, start: int, unit: int, smallest: int) -> Fit:
    """Searches by secant, then by halves where that does not get on.

    Args:
        peak_of: from a batch to its peak in bytes, which does not fall; None: refused, so it does not fit.
        limit: bytes that may be used.
        start: a batch to begin with.
        unit: batches are multiples of it.
        smallest: batch that is tried, a multiple of it.

    Returns:
        A batch that fits, beside one larger by `step`, a multiple of `unit`, that does not.

    >>> largest(lambda size: 10 * size, 1005, start=8, unit=4, smallest=4)
    Fit(size=100, step=4, tries=4)
    """
    known: dict[int, int | None] = {}

    def fits(size: int) -> bool:
        if size not in known:
            known[size] = peak_of(size)
        peak = known[size]
        return peak is not None and peak <= limit

    size = max(start // unit * unit, smallest)
    low, high = (size, None) if fits(size) else (None, size)
    while len(known) < TRIES:
        if low is None and high == smallest:
            return Fit(None, unit, len(known))
        step = unit * max((low or smallest) // FINE // unit, 1)
        if low is not None and high is not None and high - low <= step:
            break
        guess = _guess(known, limit, low, high, step)
        guess = max(guess // unit * unit, smallest)
        low, high = (guess, high) if fits(guess) else (low, guess)
    return Fit(low, (high or 2 * (low or unit)) - (low or 0), len(known))


def _guess(known: dict[int, int | None], limit: int, low: int | None, high: int | None, step: int) -> int:
    """The next batch to try, between one that fits and one that does not, and by a step away from both."""
    points = sorted((abs(peak - limit), size, peak) for size, peak in known.items() if peak is not None)[:2]
    guess = 2 * (low or 0)
    if len(points) == 2:
        (_, a, at), (_, b, bt) = points
        guess = int(a + (limit - at) * (b - a) / (bt - at)) if bt != at else guess
    if low is None:
        return min(guess or high or 0, (high or 0) // 2)
    top = 16 * low if high is None else high - step
    return max(min(guess, top), low + step)
