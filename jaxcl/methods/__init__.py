"""The registry of training methods: every file in this folder but `base` is one, and `parts` is what they share."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType

from jaxcl.config import Config, ConfigError, DistillConfig, TargetConfig, check_divides, micro_size, suggestion
from jaxcl.methods.base import Method, Traits


def available() -> list[str]:
    """The names of all methods.

    >>> "simclr" in available()
    True
    """
    return sorted(item.name for item in pkgutil.iter_modules(__path__) if not item.ispkg and item.name != "base")


def find(name: str) -> Callable[..., Method]:
    """The constructor of a method.

    Args:
        name: the setting `method`.

    Returns:
        `make_method` of the file of that name.

    Raises:
        ConfigError: no such file; the nearest name is offered.

    >>> find("simclr").__name__
    'make_method'
    """
    return _module(name).make_method


def traits(name: str) -> Traits:
    """What a method reads of a config.

    Args:
        name: the setting `method`.

    Returns:
        `TRAITS` of its file.

    Raises:
        ConfigError: no such file.

    >>> traits("byol").target
    True
    """
    return _module(name).TRAITS


def check(config: Config, *, has_labels: bool) -> None:
    """Raises where a config asks for what its method does not do, or offers less than it needs.

    Args:
        config: the run.
        has_labels: whether its training images have labels.

    Raises:
        ConfigError: names the setting, its value and what would do.

    >>> check(Config(), has_labels=False)
    """
    own, method, loss = traits(config.method), f"method = {config.method!r}", config.loss
    _check_teacher(config, own)
    compares = own.negatives is not None or (own.teacher and config.distill.similarity_weight > 0)
    if config.queue.size and not own.queue:
        others = ", ".join(name for name in available() if traits(name).queue)
        raise ConfigError(f"queue.size = {config.queue.size}, but {method} has no queue: 0, or one of {others}")
    if own.negatives is not None and not own.negatives(micro_size(config), config.queue.size):
        raise ConfigError(f"queue.size = {config.queue.size} leaves {method} without negatives; 4096 is a first value")
    if loss.top_k is not None:
        if own.negatives is None:
            raise ConfigError(f"loss.top_k = {loss.top_k}, but {method} has no negatives; leave it empty")
        most = own.negatives(micro_size(config), config.queue.size)
        if loss.top_k > most:
            raise ConfigError(
                f"loss.top_k = {loss.top_k} is more than the negatives that {method} has with {micro_size(config)} "
                f"images at once and {config.queue.size} in the queue; the largest valid value is {most}"
            )
    for name, schedule, reads, what in (
        ("loss.temperature_schedule", loss.temperature_schedule, compares, "temperature"),
        ("target.schedule", config.target.schedule, own.target, "momentum encoder"),
    ):
        if schedule != "constant" and not reads:
            raise ConfigError(f"{name} = {schedule!r}, but {method} has no {what}; 'constant' is the only valid value")
    for item in ("key_norm", "key_splits"):
        value = getattr(config.target, item)
        if value != getattr(TargetConfig(), item) and not own.key_norm:
            raise ConfigError(f"target.{item} = {value!r}, but {method} has no keys that it concerns; leave it out")
    if own.key_norm:
        _check_keys(config)
    if own.labels and not has_labels:
        raise ConfigError(f"{method} needs labels, and data.name = {config.data.name!r} has none; simclr needs none")


def _check_teacher(config: Config, own: Traits) -> None:
    """A teacher where the method has one and nowhere else, and something to learn from it; nothing unread is set."""
    distill, method = config.distill, f"method = {config.method!r}"
    if not own.teacher:
        for item in dataclasses.fields(distill):
            if getattr(distill, item.name) != item.default:
                value = getattr(distill, item.name)
                raise ConfigError(f"distill.{item.name} = {value!r}, but {method} has no teacher; leave it out")
        return
    if distill.teacher is None:
        raise ConfigError(f"distill.teacher is empty; {method} needs the folder of a finished run")
    if config.loss.impl == "column":
        raise ConfigError(f"loss.impl = 'column', but {method} has no such engine; 'strip' or 'dense'")
    if distill.similarity_weight:
        return
    if not distill.feature_weight:
        raise ConfigError("distill.feature_weight = 0.0 and distill.similarity_weight = 0.0: one must be above 0")
    for name, value, unset in (
        ("queue.size", config.queue.size, 0),
        ("distill.teacher_temperature", distill.teacher_temperature, DistillConfig().teacher_temperature),
    ):
        if value != unset:
            raise ConfigError(f"{name} = {value} is read only with distill.similarity_weight above 0; leave it out")


def _check_keys(config: Config) -> None:
    """Keys of group norm meet no batch norm, and those of parts of the batch have parts of 2 images or more."""
    model, target, images = config.model, config.target, micro_size(config)
    if target.key_norm == "group":
        for name, value, valid in (
            ("model.norm", "group" if model.encoder.startswith("vit") else model.norm, "group"),  # a ViT reads none
            ("model.head_norm", model.head_norm, False),
            ("model.head_norm_out", model.head_norm_out, False),
        ):
            if value != valid:
                raise ConfigError(
                    f"target.key_norm = 'group' needs {name} = {valid!r}, not {value!r}: "
                    "batch norm of a whole batch gives its keys away"
                )
        return
    whole = "batch.size" if config.batch.micro is None else "batch.micro"
    check_divides(whole, images, "target.key_splits", target.key_splits, vary="target.key_splits")
    if images == target.key_splits:
        largest = max(number for number in range(1, images) if images % number == 0)
        raise ConfigError(
            f"target.key_splits = {images} leaves one image a part of {whole} = {images}, which has no batch "
            f"statistics; the largest valid value is {largest}"
        )


def _module(name: str) -> ModuleType:
    """The file of a method."""
    if name not in available():
        raise ConfigError(f"method = {name!r} is unknown{suggestion(name, available())}")
    return importlib.import_module(f"{__name__}.{name}")
