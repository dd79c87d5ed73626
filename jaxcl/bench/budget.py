"""A limit of time that work is fitted into: the next piece starts only if one like the last would still end in time."""

from __future__ import annotations

import time
from collections.abc import Callable

GROWTH = 2.0  # the next piece may take this many times as long as the last


class Budget:
    """Seconds that are left.

    >>> Budget(60).allows()
    True
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic):
        """Starts.

        Args:
            seconds: in all.
            clock: seconds.
        """
        self._clock = clock
        self._start = clock()
        self._seconds = seconds
        self._last = 0.0
        self._begun: float | None = None

    def left(self) -> float:
        """Seconds until the limit, negative after it."""
        return self._seconds - self.spent()

    def spent(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start

    def allows(self) -> bool:
        """Begins a piece, which ends the one before, or says that there is no time for it."""
        now = self._clock()
        if self._begun is not None:
            self._last, self._begun = now - self._begun, None
        if self.left() <= GROWTH * self._last:
            return False
        self._begun = now
        return True
