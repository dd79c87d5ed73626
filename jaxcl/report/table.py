"""The result of a run in short: accuracies beside their floors, and the figures of the run."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxcl.report.words import duration, number, percent

WIDTH = 80
COLUMNS = ("encoder", "raw pixels", "random encoder", "chance")
CAPTION_COLUMNS = ("towers", "colours", "chance")
CAPTION_ROWS = (
    ("image → text", "image_to_text_top1"),
    ("  among 5", "image_to_text_top5"),
    ("text → image", "text_to_image_top1"),
    ("  among 5", "text_to_image_top5"),
)


def summary_table(summary: Mapping[str, Any], workdir: Path | None = None) -> str:
    """Short table of a finished run, at most 80 columns: accuracies beside their floors, then the figures of the run.

    Args:
        summary: contents of summary.json; missing and None values are shown as a dash.
        workdir: folder of the run, to say where the files are.

    Returns:
        Several lines without a final newline.
    """
    row = "{:<15}{:>10}{:>14}{:>18}{:>10}".format
    lines = [title(summary), "", row("", *COLUMNS)]
    lines += [row(name, *map(percent, values)) for name, values in accuracies(summary)]
    if retrieval(summary):
        lines += ["", row("", *CAPTION_COLUMNS, "")]
        lines += [row(name, *map(percent, values), "").rstrip() for name, values in retrieval(summary)]
    lines += ["", *textwrap.wrap(verdict(summary), WIDTH), ""]
    lines += [f"{name:<22}{value}" for name, value in figures(summary)]
    if summary.get("protocol"):
        text = "; ".join(f"{name} {value}" for name, value in protocol(summary))
        lines += textwrap.wrap(f"{'protocol':<22}{text}", WIDTH, subsequent_indent=" " * 22)
    if workdir is not None:
        lines.append(f"{'report':<22}{Path(workdir) / 'report.html'}")
        lines.append(f"{'curves':<22}tensorboard --logdir {shlex.quote(str(workdir))}")
    return "\n".join(lines)


def accuracies(summary: Mapping[str, Any]) -> list[tuple[str, list[float | None]]]:
    """Rows of the result: name, then encoder, raw pixels, random encoder, chance."""
    images = (summary.get("protocol") or {}).get("test_images")
    rows = [
        ("linear probe", "linear_top1", "floor_pixels_top1", "floor_random_top1", summary.get("chance_top1")),
        ("kNN", "knn_top1", "floor_pixels_knn_top1", "floor_random_knn_top1", summary.get("chance_top1")),
        (
            "view retrieval",
            "view_retrieval_top1",
            "floor_pixels_view_retrieval",
            "floor_random_view_retrieval",
            1 / images if images else None,
        ),
    ]
    return [(name, [*map(summary.get, keys), chance]) for name, *keys, chance in rows]


def retrieval(summary: Mapping[str, Any]) -> list[tuple[str, list[float | None]]]:
    """Rows of retrieval between images and captions: name, then towers, bag of colours, chance; none without it."""
    rows = [(name, key) for name, key in CAPTION_ROWS if f"chance_{key}" in summary]
    return [
        (name, [summary.get(f"{prefix}{key}") for prefix in ("", "floor_colours_", "chance_")]) for name, key in rows
    ]


def verdict(summary: Mapping[str, Any]) -> str:
    """A sentence on the encoder against its floors, and one on captions against theirs."""
    return " ".join([_on_encoder(summary), *_on_captions(summary)])


def _on_captions(summary: Mapping[str, Any]) -> list[str]:
    """A sentence on image → text, if there is any."""
    for _, (towers, colours, chance) in retrieval(summary)[:1]:
        if towers is not None and colours is not None and chance is not None:
            gaps = [_gap(100 * (towers - floor)) for floor in (colours, chance)]
            return [f"Image → text is {gaps[0]} a bag of colours and {gaps[1]} chance."]
    return []


def _on_encoder(summary: Mapping[str, Any]) -> str:
    """One sentence on the encoder against its floors."""
    for name, (encoder, pixels, random, _) in accuracies(summary)[::2]:
        if encoder is None or pixels is None or random is None:
            continue
        gaps = [_gap(100 * (encoder - floor)) for floor in (pixels, random)]
        images = (summary.get("protocol") or {}).get("test_images")
        error = 100 * math.sqrt(encoder * (1 - encoder) / images) if images else None
        doubt = f"; standard error {error:.1f} points on {images:,} test images" if error else ""
        return f"The encoder's {name} is {gaps[0]} raw pixels and {gaps[1]} a random encoder{doubt}."
    return "Nothing was scored beside its floors."


def _gap(points: float) -> str:
    """A distance in percentage points, in words."""
    shown = f"{abs(points):.1f}"
    return "level with" if shown == "0.0" else f"{shown} points {'above' if points > 0 else 'below'}"


def figures(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each figure of the run."""
    get = summary.get
    rows = [
        ("loss", f"{number(get('loss_first'), 4)} → {number(get('loss_last'), 4)}"),
        ("steps", number(get("steps"))),
        ("images/s", number(get("images_per_second"))),
        ("negatives per anchor", number(get("negatives_per_anchor"))),
        ("parameters", number(get("param_count"))),
        ("devices", number(get("devices"))),
        ("wall time", duration(get("wall_seconds"))),
        *([("device-days", number(days, 3))] if (days := device_days(summary)) else []),
    ]
    if lost := get("nonfinite_steps"):
        what = "all: nothing was learned" if lost == get("steps") else "skipped"
        rows += [("non-finite steps", f"{lost:,} ({what})")]
    rows += [("unreadable images", f"{get('bad_images'):,} (replaced)")] if get("bad_images") else []
    return rows


def device_days(summary: Mapping[str, Any]) -> float | None:
    """Days of training times devices, by the images and the speed, so that a resumed run counts whole.

    None for less than an hour, whose days say nothing.

    >>> device_days({"images_per_second": 10.0, "devices": 8, "protocol": {"epochs": 2.0, "train_images": 432000}})
    8.0
    """
    asked, speed = summary.get("protocol") or {}, summary.get("images_per_second")
    images = (asked.get("epochs") or 0) * (asked.get("train_images") or 0)
    seconds = images / speed if speed else 0
    return seconds * (summary.get("devices") or 1) / 86_400 if seconds >= 3600 else None


def protocol(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each part of the protocol."""
    parts = (summary.get("protocol") or {}).items()
    called = {"k": "kNN k", "temperature": "kNN temperature"}
    return [(called.get(name, name.replace("_", " ")), str(value)) for name, value in parts if value is not None]


def title(summary: Mapping[str, Any]) -> str:
    """Method and data."""
    return f"{summary.get('method') or 'jaxcl'} on {summary.get('data') or 'unnamed data'}"
