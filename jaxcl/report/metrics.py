"""The log of a run: metrics.jsonl and TensorBoard events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from jaxcl.report.files import plain, replace

METRICS = "metrics.jsonl"


class MetricsWriter:
    """Writes metrics.jsonl, one line a log step, and the same scalars as TensorBoard events.

    Every line is valid JSON and flushed: a number that is NaN or infinite is written as null. TensorBoard gets the
    finite ones only. A half-written last line of a killed run is dropped on opening.

    Args:
        workdir: existing folder of the run.
    """

    def __init__(self, workdir: Path) -> None:
        self._workdir = Path(workdir)
        self._path = self._workdir / METRICS
        self._purge_step: int | None = None
        self._events: Any = None
        self._keep(lambda row: True)
        self._file = self._path.open("a", encoding="utf-8")

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append one line.

        Args:
            step: real updates so far.
            metrics: scalars by name, `loss` among them.

        Raises:
            ValueError: if there is no loss.
        """
        if "loss" not in metrics:
            raise ValueError(f"metrics has {sorted(metrics)}; every line needs loss")
        row = {"step": int(step), **{name: plain(value) for name, value in metrics.items() if name != "step"}}
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float):
                self._scalars().add_scalar(name, value, step)

    def truncate_after(self, step: int) -> None:
        """Forget the lines of later steps, as a resumed run writes them again.

        Args:
            step: the last one that stays; TensorBoard hides later events once the next line is written.
        """
        self._file.close()
        self._keep(lambda row: row["step"] <= step)
        self._file = self._path.open("a", encoding="utf-8")
        self._purge_step = step + 1

    def close(self) -> None:
        """Flush and close both files."""
        self._file.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _keep(self, wanted: Any) -> None:
        """Rewrite the file in one move with the complete lines that are wanted."""
        if self._path.exists():
            lines = [line for line, row in _rows(self._path) if wanted(row)]
            replace(self._path, "".join(line + "\n" for line in lines))

    def _scalars(self) -> Any:
        """TensorBoard's writer, opened with the first line."""
        if self._events is None:
            from tensorboardX import SummaryWriter

            suffix = (
                f".{time.time_ns()}"  # the name has only seconds, and a quick resume would overwrite the first file
            )
            self._events = SummaryWriter(
                str(self._workdir), purge_step=self._purge_step, flush_secs=10, filename_suffix=suffix
            )
        return self._events


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """Read the lines of metrics.jsonl; incomplete ones are left out.

    Args:
        workdir: folder of a run.

    Returns:
        One dictionary a line, each with `step`; empty where there is no file.
    """
    path = Path(workdir) / METRICS
    return [row for _, row in _rows(path)] if path.exists() else []


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each complete line that is a row, and the row."""
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and type(row.get("step")) is int and all(map(_is_number, row.values())):
            yield line, row


def _is_number(value: Any) -> bool:
    """Whether a value of a line is a number, or the null that stands for one that is not finite."""
    return value is None or type(value) in (int, float)
