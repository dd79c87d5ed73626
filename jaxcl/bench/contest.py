"""The runs behind the table of methods: for each row a config, what it changes, how its temperature is chosen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxcl.config import Config, ConfigError, load_config, resolve, suggestion, to_dict

# a sixth of 60,000 images, as many as the test set has
VALIDATION = 1 / 6
TEMPERATURES = (0.1, 0.2, 0.5)
CHOICE_STEPS = 240
SEEDS = (0, 1, 2)


class Contestant(NamedTuple):
    """A row of the table.

    Attributes:
        name: what a person calls it.
        config: a file in configs/, from the root of the repository.
        changes: dotted settings and their values.
        temperatures: to choose among on held-out training images; empty: that of the config.
        like: the row whose choice of temperature this one shares; empty: its own.
        teacher: the row whose run of the same seed is the teacher; empty: none.
        once: run with the first seed alone, as a step of a sweep and not as a method.
    """

    name: str
    config: str
    changes: Mapping[str, Any]
    temperatures: Sequence[float] = ()
    like: str = ""
    teacher: str = ""
    once: bool = False


class Trial(NamedTuple):
    """One run: whose, its folder and the arguments of `python -m jaxcl.main` that make it."""

    contestant: str
    seed: int
    temperature: float | None
    folder: Path
    arguments: tuple[str, ...]


def simclr(name: str, *, once: bool = False, like: str = "", **loss: Any) -> Contestant:
    """A row of SimCLR with other negatives."""
    changes = {"loss.top_k": None, "queue.size": 0, **{key.replace("__", "."): value for key, value in loss.items()}}
    return Contestant(
        name, "configs/fashion_mnist.py", {"steps": STEPS, **changes}, TEMPERATURES, like or name, once=once
    )


# 246,000 images, five minutes on one core with compilation and probes; methods with a second encoder get fewer steps,
# so that all train for as long
STEPS = 480
AUGMENT = {"augment.brightness": 0.2, "augment.contrast": 0.2}  # of configs/fashion_mnist.py, so that all see the same
ALL, FIVE = "SimCLR, all negatives", "SimCLR, 5 %"
ROWS: tuple[Contestant, ...] = (
    simclr("SimCLR, dense", like=ALL, loss__impl="dense"),
    simclr(ALL),
    simclr(FIVE, loss__top_k=51),
    # with a sampled tail the loss has the value of all negatives: at their temperature, so that nothing else differs
    simclr("SimCLR, 5 % + sampled tail", like=ALL, loss__top_k=51, loss__tail="sampled", loss__tail_samples=51),
    simclr("SimCLR, 64", loss__top_k=64),
    simclr("SimCLR, 64 + queue", loss__top_k=64, queue__size=512),
    Contestant("MoCo v2", "configs/moco_v2.py", {"steps": 400, **AUGMENT}),
    Contestant("MoCo v3", "configs/moco_v3.py", {"steps": 340, **AUGMENT}),
    Contestant("BYOL", "configs/byol.py", {"steps": 340, **AUGMENT}),
    Contestant("SimSiam", "configs/simsiam.py", {"steps": 440, **AUGMENT}),
    Contestant("SupCon", "configs/supcon.py", {"steps": 400, **AUGMENT}),
    Contestant("Distillation", "configs/distill.py:conv", {"steps": 320}, teacher=ALL),
    # at the temperature of the row without, so that nothing else differs
    simclr("SimCLR, 5 % after the hardest 1 %", once=True, like=FIVE, loss__top_k=51, loss__skip_hardest=0.01),
    simclr("SimCLR, 5 % after the hardest 5 %", once=True, like=FIVE, loss__top_k=51, loss__skip_hardest=0.05),
    simclr("SimCLR, 16", once=True, loss__top_k=16),
    simclr(
        "SimCLR, 16 + sampled tail", once=True, like=ALL, loss__top_k=16, loss__tail="sampled", loss__tail_samples=16
    ),
)


def pick(names: str | None) -> tuple[Contestant, ...]:
    """Rows by their names.

    Args:
        names: with `;` between them; None: all.

    Returns:
        In the order of the table.

    Raises:
        ConfigError: a name that no row has; the nearest one is offered.

    >>> [row.name for row in pick("SimSiam; BYOL")]
    ['BYOL', 'SimSiam']
    """
    if names is None:
        return ROWS
    known, asked = [row.name for row in ROWS], [name.strip() for name in names.split(";")]
    for name in asked:
        if name not in known:
            raise ConfigError(f"--rows: there is no row {name!r}{suggestion(name, known)}")
    return tuple(row for row in ROWS if row.name in asked)


def choices(row: Contestant, root: Path) -> list[Trial]:
    """The short runs that choose the temperature of a row, scored on held-out training images.

    Args:
        row: of the table.
        root: folder of all runs.

    Returns:
        One trial a temperature; none where there is nothing to choose.
    """
    if row.like != row.name:
        return []
    changes = {"steps": CHOICE_STEPS, "data.validation": VALIDATION}
    return [_trial(row, root, SEEDS[0], value, changes, f"choice-{value:g}") for value in row.temperatures]


def finals(row: Contestant, root: Path, temperature: float | None, seeds: Sequence[int], **extra: Any) -> list[Trial]:
    """The runs of a row, scored on the test images.

    Args:
        row: of the table.
        root: folder of all runs.
        temperature: chosen; None: that of the config.
        seeds: one run each.
        **extra: dotted settings, with `__` for the dot, that depend on other runs.

    Returns:
        One trial a seed.
    """
    changes = {key.replace("__", "."): value for key, value in extra.items()}
    seeds = seeds[:1] if row.once else seeds
    return [_trial(row, root, seed, temperature, changes, f"seed{seed}") for seed in seeds]


def _trial(
    row: Contestant, root: Path, seed: int, temperature: float | None, changes: Mapping[str, Any], label: str
) -> Trial:
    """The run of a row with a seed; its folder's name has a digest of what it sets: other settings are another run."""
    settings = {**row.changes, **changes, "seed": seed}
    if temperature is not None:
        settings["loss.temperature"] = temperature
    overrides = [f"{key}={'' if value is None else value}" for key, value in settings.items()]
    resolved = to_dict(resolve(load_config(row.config, overrides)))
    digest = hashlib.sha256(json.dumps(_changed(resolved, to_dict(Config())), sort_keys=True).encode()).hexdigest()[:8]
    folder = root / f"{_slug(row.name)}-{label}-{digest}"
    arguments = (f"--config={row.config}", *(f"--config.{item}" for item in overrides))
    return Trial(row.name, seed, temperature, folder, arguments)


def _changed(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the defaults, so that a setting which is new changes no digest.

    >>> _changed({"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 2, "d": 4}})
    {'b': {'d': 3}}
    """
    nested = {key: _changed(value, defaults[key]) for key, value in values.items() if isinstance(value, dict)}
    plain = {key: value for key, value in values.items() if key not in nested and value != defaults[key]}
    return {**plain, **{key: value for key, value in nested.items() if value}}


def _slug(name: str) -> str:
    """A name as a folder.

    >>> _slug("SimCLR, 5 % + sampled tail")
    'simclr-5-sampled-tail'
    """
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def order(rows: Sequence[Contestant], seeds: Sequence[int]) -> Iterator[tuple[Contestant, int]]:
    """The finals in the order that fills the table soonest: every row with the first seed, then with the next.

    >>> [seed for _, seed in order(ROWS[:2], (0, 1))]
    [0, 0, 1, 1]
    """
    for number, seed in enumerate(seeds):
        yield from ((row, seed) for row in rows if not (row.once and number))
