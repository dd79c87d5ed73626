"""Curves of the log as SVG text that lives inside a page and takes its colours from it."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

INK = "#010203"  # stands for the page's text colour while matplotlib draws
COLOURS = ("#2f7de1", "#e07b39", "#3f9d63", "#a05bc4")  # readable on white and on near black
MAX_POINTS = 2000  # of one curve; more are thinned out


def curve(metrics: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str | None:
    """Draw metrics over the steps.

    Args:
        metrics: rows with `step`; a missing or None value leaves a gap.
        names: of the metrics in one figure.

    Returns:
        An `<svg>` element without scripts or references; None where none of the metrics has a value.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator

    series = {name: points for name in names if (points := _points(metrics, name))}
    if not series:
        return None
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": names[0], "font.family": "sans-serif"}
    style["text.parse_math"] = False
    inks: dict[Any, Any] = dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK
    )
    with rc_context({**style, **inks}):
        figure = Figure(figsize=(5.6, 2.6), layout="constrained")
        axes = figure.add_subplot()
        for colour, (name, points) in zip(COLOURS * len(series), series.items(), strict=False):
            axes.plot(
                *zip(*points, strict=True),
                color=colour,
                linewidth=1.6,
                marker="o" if len(points) < 12 else None,
                label=name,
            )
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=INK, alpha=0.12, linewidth=0.8)
        if len(series) > 1:
            axes.legend(frameon=False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if all("bytes" in name for name in series):
            axes.yaxis.set_major_formatter(EngFormatter(unit="B"))
        _widen_constant(axes, [value for points in series.values() for _, value in points])
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    return _inline(drawn.getvalue(), label=", ".join(series))


def _widen_constant(axes: Any, values: Sequence[float]) -> None:
    """A curve that never moves gets an axis of the size of its value, not one that makes noise of nothing."""
    finite = [value for value in values if math.isfinite(value)]
    if finite and min(finite) == max(finite):
        low, high = min(0.0, finite[0]), max(0.0, finite[0]) if finite[0] else 1.0
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))


def _points(metrics: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """Steps and values of the rows that have the metric, thinned out evenly; NaN where it was not finite."""
    rows = [(row["step"], row[name]) for row in metrics if isinstance(row.get(name, ""), int | float | None)]
    if all(value is None for _, value in rows):
        return []
    return [(step, math.nan if value is None else value) for step, value in rows[:: -(-len(rows) // MAX_POINTS)]]


def _inline(drawn: str, *, label: str) -> str:
    """Keep the element itself, without the header, the metadata and the fixed size."""
    body = re.sub(r"<metadata>.*?</metadata>", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    body = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", body).replace(INK, "currentColor")
    body = re.sub(r'(<svg[^>]*?)\swidth="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?)\sheight="[^"]*"', r"\1", body, count=1)
    return body.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1).strip()
