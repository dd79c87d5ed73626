"""The length of a queue by validation: when the score stalls the next length is tried, and what helped is kept."""

from __future__ import annotations

from typing import NamedTuple

STALL = 2  # scores in a row without a new best
TRIAL = 2  # scores that a new length gets


class _Trial(NamedTuple):
    """A length on trial: what it replaced, the best score so far, and the scores that are left to it."""

    before: int
    best: float
    left: int


class QueueLength:
    """What the scores so far say about the newest rows of a queue that should count.

    After `STALL` scores without a new best it tries twice the length, and where that is too long or did not help, half
    of it. Whatever is tried has `TRIAL` scores to beat the best one before; otherwise the length goes back. The same
    scores always lead to the same length, so that a resumed run replays them.

    Args:
        start: rows to begin with.
        size: rows of the queue.

    >>> length = QueueLength(start=64, size=256)
    >>> [length.see(score) and length.rows for score in (0.5, 0.6, 0.6, 0.6)]
    [None, None, None, 128]
    """

    def __init__(self, *, start: int, size: int) -> None:
        self.rows = start
        self._size = size
        self._best, self._stalled = float("-inf"), 0
        self._trial: _Trial | None = None
        self._failed: set[int] = set()

    def see(self, score: float) -> str | None:
        """Takes the next score.

        Args:
            score: of the validation, larger is better.

        Returns:
            What was decided, in a sentence; None where the length stays.
        """
        if self._trial is not None:
            return self._judge(self._trial._replace(best=max(self._trial.best, score), left=self._trial.left - 1))
        self._stalled = 0 if score > self._best else self._stalled + 1
        self._best = max(self._best, score)
        lengths = [rows for rows in (2 * self.rows, self.rows // 2) if self._may(rows)]
        if self._stalled < STALL or not lengths:
            return None
        self._trial, before = _Trial(self.rows, float("-inf"), TRIAL), self.rows
        self.rows = lengths[0]
        return f"the score stalls at {self._best:.4f}: trying queue length {self.rows} instead of {before}"

    def _may(self, rows: int) -> bool:
        """Whether a length is one to try."""
        return 1 <= rows <= self._size and rows not in self._failed

    def _judge(self, trial: _Trial) -> str | None:
        """Ends a trial that is over."""
        self._trial = trial
        if trial.left:
            return None
        self._trial, self._stalled, before = None, 0, self._best
        if trial.best > before:
            self._best, self._failed = trial.best, {trial.before}
            return f"queue length {self.rows} helped ({before:.4f} → {trial.best:.4f}): it stays"
        self._failed.add(self.rows)
        tried, self.rows = self.rows, trial.before
        return f"queue length {tried} did not help ({before:.4f} → {trial.best:.4f}): back to {self.rows}"
