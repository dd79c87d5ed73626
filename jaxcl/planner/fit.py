"""The largest batch that fits, in few tries: memory is close to linear in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

TRIES = 16  # a secant needs four or five
FINE = 64  # the result is exact to a share of 1/64
GROWTH, LEAP = 4, 16  # a batch that fits is followed by one so many times as large, and at most so many


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
    """Searches by secant, and by halves where that does not get on.

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
    halve = False
    while len(known) < TRIES:
        if low is None and high == smallest:
            return Fit(None, unit, len(known))
        step = unit * max((low or smallest) // FINE // unit, 1)
        before = None if low is None or high is None else high - low
        if before is not None and before <= step:
            break
        guess = _between(None if halve else _secant(known, limit), low, high, step)
        guess = max(guess // unit * unit, smallest)
        low, high = (guess, high) if fits(guess) else (low, guess)
        # no line leads to the limit where memory is flat, bends, or is refused
        halve = before is not None and low is not None and high is not None and 2 * (high - low) > before
    return Fit(low, (high or 2 * (low or unit)) - (low or 0), len(known))


def _secant(known: dict[int, int | None], limit: int) -> int | None:
    """Where the line through the two peaks nearest the limit meets it; None: there is no such line."""
    points = sorted((abs(peak - limit), size, peak) for size, peak in known.items() if peak is not None)[:2]
    if len(points) < 2:
        return None
    (_, a, at), (_, b, bt) = points
    return None if at == bt else int(a + (limit - at) * (b - a) / (bt - at))


def _between(guess: int | None, low: int | None, high: int | None, step: int) -> int:
    """The next batch to try: a guess where there is one, a step away from what is known, in the middle where not."""
    if high is None:
        return GROWTH * (low or 0) if guess is None else max(min(guess, LEAP * (low or 0)), (low or 0) + step)
    if low is None:
        return high // 2 if guess is None else min(guess, high // 2)
    middle = math.isqrt(low * high)
    return max(min(middle if guess is None else guess, high - step), low + step)
