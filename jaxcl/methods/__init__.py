"""The registry of training methods: every file in this folder but `base` is one, and `parts` is what they share."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType

from jaxcl.config import Config, ConfigError, micro_size, suggestion
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
    if config.queue.size and not own.queue:
        others = ", ".join(name for name in available() if traits(name).queue)
        raise ConfigError(f"queue.size = {config.queue.size}, but {method} has no queue: 0, or one of {others}")
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
        ("loss.temperature_schedule", loss.temperature_schedule, own.negatives is not None, "temperature"),
        ("target.schedule", config.target.schedule, own.target, "momentum encoder"),
    ):
        if schedule != "constant" and not reads:
            raise ConfigError(f"{name} = {schedule!r}, but {method} has no {what}; 'constant' is the only valid value")
    if own.labels and not has_labels:
        raise ConfigError(f"{method} needs labels, and data.name = {config.data.name!r} has none; simclr needs none")


def _module(name: str) -> ModuleType:
    """The file of a method."""
    if name not in available():
        raise ConfigError(f"method = {name!r} is unknown{suggestion(name, available())}")
    return importlib.import_module(f"{__name__}.{name}")
