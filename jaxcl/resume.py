"""Where a run begins or goes on: what may differ from before, the newest whole checkpoint, and the log that fits it."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxcl.build import Parts
from jaxcl.checkpoint import Checkpoints, Restored, stored_config
from jaxcl.config import Config, ConfigError, from_earlier, to_dict
from jaxcl.data import Loader
from jaxcl.integrity import checksums, differing
from jaxcl.pretrained import TOWERS
from jaxcl.report import read_metrics
from jaxcl.state import TrainState
from jaxcl.workdir import CHECKPOINTS, CONFIG, METRICS, check_unchanged, keep_aside, read_json


def saved_config(workdir: Path) -> dict[str, Any] | None:
    """The settings of the run in a folder: of `config.json`, or where that is gone of the newest checkpoint.

    Args:
        workdir: of the run.

    Returns:
        As JSON, in the terms of today; None where neither is there.

    Raises:
        ConfigError: `config.json` cannot be read.
    """
    file = workdir / CONFIG
    saved = read_json(file) if file.exists() else stored_config(workdir / CHECKPOINTS)
    return None if saved is None else from_earlier(saved)


def check_resumable(workdir: Path, config: Config) -> int | None:
    """Refuses settings that change what the steps of a run compute.

    Args:
        workdir: of the run, or a new folder.
        config: to go on with.

    Returns:
        The number of steps that the run was to have; None where there is no run.

    Raises:
        ConfigError: names each such setting.
    """
    saved = saved_config(workdir)
    if saved is None:
        return None
    check_unchanged(_with_defaults(saved, to_dict(Config())), to_dict(config))
    return saved.get("steps")


def _with_defaults(saved: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that the version which began a run did not have yet, at their default; the others as they were.

    >>> _with_defaults({"a": 1, "old": 2}, {"a": 5, "b": {"c": 3}})
    {'b': {'c': 3}, 'a': 1, 'old': 2}
    """
    new = {key: value for key, value in defaults.items() if key not in saved}
    return new | {
        key: _with_defaults(value, defaults[key]) if isinstance(value, dict) and key in defaults else value
        for key, value in saved.items()
    }


def begin(
    parts: Parts, loader: Loader, checkpoints: Checkpoints, workdir: Path, *, steps_before: int | None
) -> tuple[TrainState, int]:
    """The newest state that was saved whole, its data position set, or the first state; an error changes no file.

    Args:
        parts: of the run.
        loader: of its batches.
        checkpoints: of the folder.
        workdir: the folder.
        steps_before: from `check_resumable`.

    Returns:
        The state, and the steps behind it.

    Raises:
        ConfigError: other data, fewer steps than there are, or no checkpoint that is whole.
    """
    steps = parts.config.steps
    found = checkpoints.restore_newest(parts.like)
    if found is None:
        state = parts.init_state(parts.config.seed)
        if read_metrics(workdir):
            kept = keep_aside(workdir / METRICS)
            warnings.warn(f"there is no checkpoint: starting with step 1; the old log is now {kept.name}", stacklevel=2)
        return state, 0
    if found.step > steps:
        raise ConfigError(
            f"--resume with steps = {steps}, but the newest checkpoint is of step {found.step}; the smallest valid "
            f"value is {found.step}"
        )
    state = with_base(found, parts)
    loader.restore(found.position)
    checkpoints.set_aside(found)
    if steps_before not in (None, steps):
        follow = ", ".join(_schedules(parts.config))
        warnings.warn(f"steps = {steps} (the run has {steps_before}): a new schedule for {follow}", stacklevel=2)
    print(f"resumed at step {found.step} of {steps}", flush=True)
    return state, found.step


def with_base(found: Restored, parts: Parts) -> TrainState:
    """A restored state with its frozen parameters, which no checkpoint holds: made anew, and compared with checksums.

    Args:
        found: what a checkpoint holds.
        parts: of the run.

    Returns:
        The state; as it was restored where nothing is frozen.

    Raises:
        ConfigError: they are not those that the checkpoint was trained beside.
    """
    if parts.base is None:
        return found.state
    frozen = parts.base()
    other = differing(found.frozen, checksums(frozen))
    if other:
        raise ConfigError(
            f"checkpoint {found.step} was trained beside other frozen parameters than "
            f"{_origin(parts.config, other.partition('/')[0])} gives: {other} differs"
        )
    return found.state._replace(frozen=frozen)


def _origin(config: Config, network: str) -> str:
    """What the frozen parameters of a network are made of, and what may change them."""
    setting = TOWERS[network]
    file = getattr(config, setting).pretrained
    seed = (
        f"seed = {config.seed} with jax {jax.__version__} and XLA_FLAGS = {os.environ.get('XLA_FLAGS', '')!r} on this "
        f"kind of machine ({jax.devices()[0].device_kind})"
    )
    named = f"{setting}.pretrained = {file!r}"
    return (f"{named} or {seed}" if config.model.allow_partial else named) if file else seed


def with_moved(config: Config, model: Path | None, text: Path | None) -> Config:
    """The settings of a run whose frozen weights lie elsewhere now; whether they are the same, `with_base` will say.

    Args:
        config: of the run.
        model: where the file of `model.pretrained` is, and that of `text.pretrained` if it was the same; None: there.
        text: where the file of `text.pretrained` is.

    Returns:
        The settings with these paths.

    Raises:
        ConfigError: the run does not read such a file again.

    >>> with_moved(Config(), None, None) == Config()
    True
    """
    if config.model.pretrained == config.text.pretrained:
        text = text or model
    for flag, group, path in (("--pretrained", "model", model), ("--text-pretrained", "text", text)):
        section: Any = getattr(config, group)
        if path is None:
            continue
        if not config.lora.rank or section.pretrained is None:
            why = f"began without {group}.pretrained" if config.lora.rank else "holds its weights in its checkpoints"
            raise ConfigError(f"{flag}={path}, but the run {why}; leave it out")
        section = dataclasses.replace(section, pretrained=str(path.absolute()))
        config = dataclasses.replace(config, **{group: section})
    return config


def _schedules(config: Config) -> list[str]:
    """What changes over the run by the number of steps."""
    shapes = {
        "the learning rate": config.optim.schedule,
        "loss.temperature": config.loss.temperature_schedule,
        "queue.size": config.queue.schedule,
        "target.decay": config.target.schedule,
    }
    return [name for name, shape in shapes.items() if shape not in ("constant", "queue_pointer")]
