"""Progress of a run and of its evaluation on the screen: one line that changes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import math
import sys
import time
from types import TracebackType
from typing import Any

from tqdm import tqdm

from jaxcl.report.words import duration

LINE_SECONDS = 10.0  # between lines where there is no terminal


class Progress:
    """Shows steps, loss, images/s and time left: a bar on a terminal, otherwise a line every ten seconds.

    Args:
        total: steps of the whole run.
        images_per_step: images of one real update, over all devices.
        first: steps that were done before, in a resumed run.
        stream: where it is shown; None: standard error.
        noun: what a step is called in a line.
    """

    def __init__(
        self,
        total: int,
        *,
        images_per_step: int,
        first: int = 0,
        stream: io.TextIOBase | None = None,
        noun: str = "step",
    ) -> None:
        self._noun = noun
        self._total, self._first, self._done, self._images = total, first, first, images_per_step
        self._stream = stream or sys.stderr
        self._loss: float | None = None
        self._steady: tuple[float, int] | None = None  # when the first step was done: it compiled
        self._spoke = -math.inf
        self._bar: Any = None
        if self._stream.isatty():
            form = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
            self._bar = tqdm(total=total, initial=first, file=self._stream, dynamic_ncols=True, bar_format=form)

    @property
    def images_per_second(self) -> float | None:
        """Rate since the first step, which compiles; None before the second."""
        if self._steady is None or self._done <= self._steady[1]:
            return None
        seconds = time.monotonic() - self._steady[0]
        return (self._done - self._steady[1]) * self._images / seconds if seconds > 0 else None

    def update(self, step: int, *, loss: float | None = None) -> None:
        """Show that `step` steps are done.

        Args:
            step: real updates so far.
            loss: the newest one; None: the last that was given stays.
        """
        self._done, self._loss = step, self._loss if loss is None else float(loss)
        rate = self.images_per_second
        self._steady = self._steady or (time.monotonic(), step)
        facts = [] if self._loss is None else [f"loss {self._loss:.4g}"]
        facts += [] if rate is None else [f"{rate:,.0f} images/s"]
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(facts), refresh=False)
            self._bar.update(step - self._bar.n)
        elif step >= self._total or time.monotonic() - self._spoke >= LINE_SECONDS:
            left = (self._total - step) * self._images / rate if rate else None
            facts += [f"{duration(left)} left"] if left else []
            self._spoke = time.monotonic()
            print(", ".join([f"{self._noun} {step}/{self._total}", *facts]), file=self._stream, flush=True)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Stages:
    """Shows how far something without a known end is: in one line on a terminal, otherwise a line every ten seconds.

    Args:
        stream: where it is shown; None: standard error.
    """

    def __init__(self, stream: io.TextIOBase | None = None) -> None:
        self._stream = stream or sys.stderr
        self._spoke = time.monotonic()  # what takes less than ten seconds says nothing
        self._bar: Any = None
        if self._stream.isatty():
            self._bar = tqdm(file=self._stream, dynamic_ncols=True, leave=False, bar_format="{desc} [{elapsed}]")

    def __call__(self, text: str) -> None:
        """Show what is done, or being done.

        Args:
            text: without a full stop.
        """
        if self._bar is not None:
            self._bar.set_description_str(text)
        elif time.monotonic() - self._spoke >= LINE_SECONDS:
            self._spoke = time.monotonic()
            print(text, file=self._stream, flush=True)

    def __enter__(self) -> Stages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
