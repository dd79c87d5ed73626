"""Ctrl-C and SIGTERM as a flag that a loop polls, so that a run saves before it ends."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """A run ended early on request, its state saved.

    Attributes:
        signum: of the signal that asked.
        code: the exit code that shells expect.
        resumable: steps are left that `--resume` would go on with.
    """

    def __init__(self, message: str, signum: int, *, resumable: bool = False) -> None:
        super().__init__(message)
        self.signum = signum
        self.code = 128 + signum
        self.resumable = resumable


class Interrupt:
    """While entered, the first signal only sets `requested`; the second ends the process at once.

    Outside the main thread, where Python allows no handlers, nothing is caught and `requested` stays None.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        del frame
        if self.requested is not None:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        self.requested = signum
        name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
        print(
            f"\n{name}: finishing what is under way, then saving; once more to end at once", file=sys.stderr, flush=True
        )


@contextlib.contextmanager
def stopping(message: str) -> Iterator[None]:
    """While entered, Ctrl-C or SIGTERM raises `Interrupted` where it stands, so that files are closed and locks freed.

    Args:
        message: of the exception. Outside the main thread, where Python allows no handlers, nothing is caught.
    """

    def stop(signum: int, frame: FrameType | None) -> None:
        del frame
        raise Interrupted(message, signum)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {signum: signal.signal(signum, stop) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
