"""The table of methods: mean and deviation over seeds beside the floors, and what it was to show."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from jaxcl.bench.contest import ALL, FIVE, ROWS, Contestant, Trial

Found = Mapping[str, Sequence[tuple[Trial, Mapping[str, Any]]]]
FIGURES = ("linear_top1", "knn_top1", "view_retrieval_top1")
FLOORS = (
    ("raw pixels", ("floor_pixels_top1", "floor_pixels_knn_top1", "floor_pixels_view_retrieval")),
    ("random encoder", ("floor_random_top1", "floor_random_knn_top1", "floor_random_view_retrieval")),
)
# what k = 5 % may lose against all negatives, in points
MARGIN = 0.5


def contest_table(rows: Sequence[Contestant], found: Found) -> str:
    """The table in Markdown.

    Args:
        rows: of the table.
        found: by row, its runs that have ended with their summaries.

    Returns:
        Several lines without a final newline.
    """
    lines = [
        "| method | temperature | steps | minutes | linear probe | kNN | view retrieval | seeds |",
        "|---|---|---|---|---|---|---|---|",
        *(_line(row, found[row.name]) for row in rows if found.get(row.name)),
    ]
    summaries = [summary for runs in found.values() for _, summary in runs]
    lines += [_floor(name, keys, summaries) for name, keys in FLOORS if summaries]
    return "\n".join(lines)


def as_json(found: Found) -> list[dict[str, Any]]:
    """Every run of the table as plain values.

    Args:
        found: by row, its runs that have ended with their summaries.

    Returns:
        An object a run: method, seed, temperature, the command, the summary.
    """
    return [
        dict(
            method=name,
            seed=trial.seed,
            temperature=trial.temperature,
            command=" ".join(["python -m jaxcl.main", *trial.arguments]),
            summary=dict(summary),
        )
        for name, runs in found.items()
        for trial, summary in runs
    ]


def requirements(found: Found) -> list[str]:
    """What the table was to show, each with its figures and a verdict.

    Args:
        found: by row, its runs that have ended with their summaries.

    Returns:
        A line each; where runs are missing it is not judged.
    """
    dense, every, five = "SimCLR, dense", ALL, FIVE
    sampled = "SimCLR, 5 % + sampled tail"
    linear, retrieval = FIGURES[0], FIGURES[2]
    lines = [
        _within(found, every, dense, linear, "linear probe"),
        _margin(found, five, every),
        _within(found, sampled, every, linear, "linear probe"),
        _within(found, sampled, every, retrieval, "view retrieval"),
    ]
    return lines + _above_floors(found)


def _line(row: Contestant, runs: Sequence[tuple[Trial, Mapping[str, Any]]]) -> str:
    """One row."""
    summaries = [summary for _, summary in runs]
    temperature = runs[0][0].temperature
    minutes = statistics.mean(_minutes(summary) for summary in summaries)
    shown = "" if temperature is None else f"{temperature:g}"
    figures = " | ".join(_spread([summary[key] for summary in summaries]) for key in FIGURES)
    return f"| {row.name} | {shown} | {summaries[0]['steps']} | {minutes:.1f} | {figures} | {len(runs)} |"


def _floor(name: str, keys: Sequence[str], summaries: Sequence[Mapping[str, Any]]) -> str:
    """The row of a floor, over all runs: it depends on the seed alone."""
    by_seed = {summary["protocol"]["seed"]: summary for summary in summaries}
    figures = " | ".join(_spread([summary[key] for summary in by_seed.values()]) for key in keys)
    return f"| *{name}* | | | | {figures} | {len(by_seed)} |"


def _minutes(summary: Mapping[str, Any]) -> float:
    """Minutes of training without the first step, which compiles."""
    protocol = summary["protocol"]
    return protocol["epochs"] * protocol["train_images"] / summary["images_per_second"] / 60


def _spread(values: Sequence[float]) -> str:
    """Mean ± sample deviation in percent.

    >>> _spread([0.87, 0.89])
    '88.0 ± 1.4'
    """
    mean = f"{100 * statistics.mean(values):.1f}"
    return f"{mean} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else mean


def _values(found: Found, name: str, key: str) -> list[float]:
    """A figure of all seeds of a row."""
    return [summary[key] for _, summary in found.get(name, ())]


def _within(found: Found, name: str, other: str, key: str, what: str) -> str:
    """Whether two rows differ by no more than their seeds do: by at most twice the standard error of the difference."""
    a, b = _values(found, name, key), _values(found, other, key)
    said = f"{name} against {other}, {what}"
    if min(len(a), len(b)) < 2:
        return f"{said}: not judged, it needs two seeds of both"
    difference = 100 * (statistics.mean(a) - statistics.mean(b))
    noise = 200 * (statistics.variance(a) / len(a) + statistics.variance(b) / len(b)) ** 0.5
    verdict = "met" if abs(difference) <= noise else "NOT MET"
    return f"{said}: {difference:+.2f} points, noise of the seeds ± {noise:.2f}: {verdict}"


def _margin(found: Found, name: str, other: str) -> str:
    """Whether a row is at most `MARGIN` points below another."""
    a, b = (_values(found, row, FIGURES[0]) for row in (name, other))
    said = f"{name} at most {MARGIN} points below {other}, linear probe"
    if not a or not b:
        return f"{said}: not judged, a run is missing"
    difference = 100 * (statistics.mean(a) - statistics.mean(b))
    return f"{said}: {difference:+.2f} points: {'met' if difference >= -MARGIN else 'NOT MET'}"


def _above_floors(found: Found) -> list[str]:
    """Whether linear probe and kNN of every method are above both floors; which steps of a sweep are not."""
    below: dict[bool, list[str]] = {False: [], True: []}
    steps = {row.name for row in ROWS if row.once}
    for name, runs in found.items():
        for figure, what, *floors in (
            (FIGURES[0], "linear probe", FLOORS[0][1][0], FLOORS[1][1][0]),
            (FIGURES[1], "kNN", FLOORS[0][1][1], FLOORS[1][1][1]),
        ):
            summaries = [summary for _, summary in runs]
            if summaries and any(_mean(summaries, figure) <= _mean(summaries, floor) for floor in floors):
                below[name in steps].append(f"{name} ({what})")
    said = "every method above both floors"
    if not any(found.values()):
        return [f"{said}: not judged, there is no run"]
    sweep = f"; of the sweep's steps below a floor: {', '.join(below[True])}" if below[True] else ""
    return [f"{said}: {'NOT MET by ' + ', '.join(below[False]) if below[False] else 'met'}{sweep}"]


def _mean(summaries: Sequence[Mapping[str, Any]], key: str) -> float:
    """Over seeds."""
    return statistics.mean(summary[key] for summary in summaries)
