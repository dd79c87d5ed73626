"""The registry of training methods: every file in this folder that defines `make_method` is one."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from jaxcl.config import ConfigError, suggestion
from jaxcl.methods.base import Method


def available() -> list[str]:
    """The names of all methods.

    >>> "simclr" in available()
    True
    """
    return sorted(item.name for item in pkgutil.iter_modules(__path__) if item.name != "base")


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
    if name not in available():
        raise ConfigError(f"method = {name!r} is unknown{suggestion(name, available())}")
    return importlib.import_module(f"{__name__}.{name}").make_method
