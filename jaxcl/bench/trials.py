"""Runs trainings one after the other, each as the command a person would type, unless it is done or under way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxcl.bench.contest import ROWS, Contestant, Trial, choices, finals, order
from jaxcl.config import ConfigError
from jaxcl.workdir import CONFIG, SUMMARY, read_json

Run = Callable[[Trial], None]
SCORE = "linear_top1"


def result(trial: Trial) -> dict[str, Any] | None:
    """What `summary.json` of a run holds; None where it has not ended."""
    return read_json(trial.folder / SUMMARY) if (trial.folder / SUMMARY).is_file() else None


def train(trial: Trial) -> None:
    """Runs `python -m jaxcl.main` with a trial's arguments, and continues what was interrupted.

    Args:
        trial: whose folder receives the run, and beside it a log.

    Raises:
        ConfigError: the run failed; its last line.
    """
    resume = ("--resume",) if (trial.folder / CONFIG).exists() else ()
    command = [sys.executable, "-m", "jaxcl.main", *trial.arguments, f"--workdir={trial.folder}", *resume]
    trial.folder.parent.mkdir(parents=True, exist_ok=True)
    log = trial.folder.with_name(f"{trial.folder.name}.log")
    with log.open("a") as file:
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise ConfigError(f"{' '.join(command)} ended with {code}: {lines[-1] if lines else 'no output'}; see {log}")


def choose(row: Contestant, root: Path) -> float | None:
    """The temperature of a row: of the short runs on held-out training images the one of the best linear probe.

    Args:
        row: of the table.
        root: folder of all runs.

    Returns:
        The temperature; None where a run is missing, or the row's config says it.
    """
    if not row.temperatures:
        return None
    trials = choices(next(other for other in ROWS if other.name == row.like), root)
    scores = [found[SCORE] for found in map(result, trials) if found]
    return trials[scores.index(max(scores))].temperature if len(scores) == len(trials) else None


def results(row: Contestant, root: Path, seeds: tuple[int, ...]) -> list[tuple[Trial, dict[str, Any]]]:
    """The finals of a row that have ended.

    Args:
        row: of the table.
        root: folder of all runs.
        seeds: of the table.

    Returns:
        Trials with their summaries.
    """
    trials = _finals(row, root, seeds)
    return [(trial, found) for trial in trials if (found := result(trial)) is not None]


def run_all(
    rows: tuple[Contestant, ...], root: Path, seeds: tuple[int, ...], say: Callable[[str], None], run: Run = train
) -> None:
    """Every run of the table that has not ended yet: first those that choose, then all rows seed by seed.

    Steps of a sweep, which are run once, come after everything else. A second process with the same folder takes what
    the first one has not begun. A run that fails is named, and the rest goes on.

    Args:
        rows: of the table.
        root: folder of all runs.
        seeds: of the table.
        say: receives a line a run.
        run: trains.
    """
    for part in ([row for row in rows if not row.once], [row for row in rows if row.once]):
        for row in [other for other in ROWS if other.name in {row.like for row in part}]:
            for trial in choices(row, root):
                _run(trial, say, run)
        for row, seed in order(part, seeds):
            for trial in _finals(row, root, (seed,)):
                _run(trial, say, run)


def _finals(row: Contestant, root: Path, seeds: tuple[int, ...]) -> list[Trial]:
    """The finals of a row that can be named by now: a chosen temperature and a teacher come first."""
    temperature = choose(row, root)
    if row.temperatures and temperature is None:
        return []
    trials: list[Trial] = []
    for seed in seeds[:1] if row.once else seeds:
        extra: dict[str, Any] = {}
        if row.teacher:
            teacher = next(other for other in ROWS if other.name == row.teacher)
            taught = [trial for trial, _ in results(teacher, root, (seed,))]
            if not taught:
                continue
            extra = {"distill__teacher": str(taught[0].folder)}
        trials += finals(row, root, temperature, (seed,), **extra)
    return trials


def _run(trial: Trial, say: Callable[[str], None], run: Run) -> None:
    """One run, unless it has ended."""
    if result(trial) is not None:
        return
    say(f"{trial.contestant}: {trial.folder.name}")
    try:
        run(trial)
    except ConfigError as error:
        say(f"  {error}")
