"""From a ConfigDict or a JSON file to a checked configuration, and back."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxcl.config.errors import ConfigError, suggestion
from jaxcl.config.rules import check_together
from jaxcl.config.settings import Config
from jaxcl.config.unread import check_read

if TYPE_CHECKING:
    import ml_collections

# of a number without a bound of its own: what an int32 holds
_LARGEST = 2**31 - 1


def base_config() -> ml_collections.ConfigDict:
    """All settings with their defaults, for a file in configs/ to change and `--config.a.b=v` to override.

    Returns:
        A ConfigDict with one entry per field of `Config`; empty settings are typed placeholders.

    >>> base_config().queue.size
    0
    """
    return _defaults(Config)


def _defaults(section: type) -> ml_collections.ConfigDict:
    """The ConfigDict of one dataclass."""
    from ml_collections import config_dict

    hints = typing.get_type_hints(section)
    entries: dict[str, Any] = {}
    for item in dataclasses.fields(section):
        if dataclasses.is_dataclass(hints[item.name]):
            entries[item.name] = _defaults(typing.cast(type, hints[item.name]))
        elif item.default is None:
            entries[item.name] = config_dict.placeholder(plain_type(hints[item.name]))
        else:
            entries[item.name] = item.default
    return config_dict.ConfigDict(entries)


def plain_type(hint: Any) -> type:
    """`int` of `int | None`."""
    if isinstance(hint, types.UnionType):
        return next(kind for kind in typing.get_args(hint) if kind is not types.NoneType)
    return hint


def resolve(values: Any) -> Config:
    """Turns a ConfigDict, or a `config.json` read back, into a checked `Config`.

    Args:
        values: a ConfigDict or nested dictionaries; keys that are missing keep their default.

    Returns:
        The frozen configuration; every rule that needs no data and no device holds.

    Raises:
        ConfigError: an unknown key, a wrong type, a value out of range, or settings that contradict each other.

    >>> resolve({"loss": {"temperature": 0.1}}).loss.temperature
    0.1
    """
    to_dict = getattr(values, "to_dict", None)
    config = _build(Config, to_dict() if to_dict else values, "")
    check_together(config)
    check_read(config)
    return config


def to_dict(config: Config) -> dict[str, Any]:
    """The configuration as plain nested dictionaries, for `config.json`.

    >>> to_dict(Config())["queue"]["dtype"]
    'float16'
    """
    return dataclasses.asdict(config)


def _build(section: type, values: Mapping[Any, Any], path: str) -> Any:
    """One dataclass from a mapping, with every value checked on its own."""
    hints = typing.get_type_hints(section)
    fields = {item.name: item for item in dataclasses.fields(section)}
    built: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{path}{key}"
        if not isinstance(key, str):
            raise ConfigError(f"unknown setting {name}: {key!r} is no name but of type {type(key).__name__}")
        if key not in fields:
            raise ConfigError(f"unknown setting {name!r}{suggestion(key, list(fields), path)}")
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise ConfigError(
                    f"{name} = {value!r} is a group of settings: set one of {', '.join(_names(hints[key]))}"
                )
            built[key] = _build(typing.cast(type, hints[key]), value, f"{name}.")
        else:
            built[key] = _check_value(name, value, hints[key], fields[key])
    return section(**built)


def _names(section: Any) -> list[str]:
    """The field names of a dataclass."""
    return [item.name for item in dataclasses.fields(section)]


def _check_value(name: str, value: Any, hint: Any, item: dataclasses.Field[Any]) -> Any:
    """The value in its type and range, or an error that names all three."""
    kind = plain_type(hint)
    if value is None:
        if kind is hint:
            raise ConfigError(f"{name} is empty; it needs a value of type {kind.__name__}")
        return None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    allowed = item.metadata
    if allowed["choices"] and value not in allowed["choices"]:
        near = difflib.get_close_matches(str(value), allowed["choices"], n=1)
        hint_text = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{name} = {value!r} is not one of {', '.join(allowed['choices'])}{hint_text}")
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{name} = {value!r} has type {type(value).__name__}; it needs {kind.__name__}")
    if isinstance(value, (int, float)):
        _check_range(name, value, item)
    return value


def _check_range(name: str, value: float, item: dataclasses.Field[Any]) -> None:
    """Raises where a number is not finite or leaves its range."""
    if not math.isfinite(value):
        usual = "empty" if item.default is None else item.default
        raise ConfigError(f"{name} = {value} is not a finite number; the default is {usual}")
    low, high = item.metadata["low"], item.metadata["high"]
    high = _LARGEST if high is None else high
    if low is not None and value < low:
        raise ConfigError(f"{name} = {value} is below the smallest valid value {low}")
    if high is not None and value > high:
        raise ConfigError(f"{name} = {value} is above the largest valid value {high}")


def describe(section: type = Config, prefix: str = "") -> str:
    """A page for `--help`: each setting with its default and its meaning.

    Args:
        section: a configuration dataclass.
        prefix: what stands before each name.

    Returns:
        One line a setting.

    >>> print(describe(Config).splitlines()[0])
    settings:
    """
    return "\n".join(["settings:", *_lines(section, prefix)])


def _lines(section: type, prefix: str) -> list[str]:
    """One line for each setting of a dataclass and of those inside it."""
    hints = typing.get_type_hints(section)
    lines: list[str] = []
    for item in dataclasses.fields(section):
        if dataclasses.is_dataclass(hints[item.name]):
            lines += _lines(typing.cast(type, hints[item.name]), f"{prefix}{item.name}.")
        else:
            default = "" if item.default is None else f" [{_short(item.default)}]"
            choices = item.metadata["choices"]
            offered = f" ({' | '.join(choices)})" if choices and len(choices) > 1 else ""
            lines.append(f"  {prefix + item.name:<28} {item.metadata['help']}{offered}{default}")
    return lines


def _short(value: Any) -> str:
    """A default as it is printed."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
