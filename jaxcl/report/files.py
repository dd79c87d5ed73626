"""Small files that other programs read: plain JSON, written in one move."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_summary(workdir: Path, summary: Mapping[str, Any]) -> None:
    """Write summary.json in one move; a number that is not finite becomes null.

    Args:
        workdir: existing folder of the run.
        summary: plain values, or scalars of numpy or JAX.
    """
    replace(Path(workdir) / "summary.json", json.dumps(plain(summary), indent=2, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Values that JSON knows; a number that is not finite becomes None."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # scalars and arrays of numpy and JAX
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def replace(path: Path, text: str) -> None:
    """Write a file in one move, so that a reader sees the old or the new one."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)
