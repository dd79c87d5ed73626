"""Config files, their variants, and `--config.a.b=v` on the command line."""

from __future__ import annotations

import difflib
import importlib.util
import sys
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxcl.config.errors import ConfigError, suggestion
from jaxcl.config.resolve import describe, plain_type
from jaxcl.config.settings import Config

if TYPE_CHECKING:
    import ml_collections

_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def with_variant(
    values: ml_collections.ConfigDict, variant: str, **variants: Mapping[str, Any]
) -> ml_collections.ConfigDict:
    """Changes a config by what one of its variants says.

    Args:
        values: the config.
        variant: what stood behind the colon of `--config=file.py:variant`; empty: no change.
        **variants: by name, dotted settings and their values.

    Returns:
        The same ConfigDict.

    Raises:
        ConfigError: no variant of that name.
    """
    if variant and variant not in variants:
        raise ConfigError(f"variant {variant!r} is unknown{suggestion(variant, list(variants))}")
    values.update_from_flattened_dict(dict(variants[variant]) if variant else {})
    return values


def load_config(path: str, overrides: Iterable[str] = ()) -> ml_collections.ConfigDict:
    """Reads a config file and applies overrides.

    Args:
        path: `file.py` or `file.py:variant`; the file defines `get_config(variant="")`.
        overrides: strings `a.b=v`.

    Returns:
        The ConfigDict, not yet checked as a whole.

    Raises:
        ConfigError: the file is not there or fails, an unknown setting, or a value of the wrong type.
    """
    file, _, variant = path.partition(":")
    values = _run(Path(file), variant)
    for item in overrides:
        name, equals, text = item.partition("=")
        if not equals:
            raise ConfigError(f"--config.{name} needs a value: --config.{name}=VALUE")
        _override(values, name, text)
    return values


def _run(file: Path, variant: str) -> ml_collections.ConfigDict:
    """What `get_config` of a file returns."""
    if not file.is_file():
        known = sorted(str(item) for item in (file.parent if file.parent.is_dir() else Path("configs")).glob("*.py"))
        raise ConfigError(f"--config={file} is not a file{suggestion(str(file), known) if known else ''}")
    spec = importlib.util.spec_from_file_location(f"jaxcl_config_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--config={file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        spec.loader.exec_module(module)
        values = module.get_config(variant)
    except ConfigError as error:
        raise ConfigError(f"--config={file}: {error}") from error
    except (Exception, SystemExit) as error:  # whatever a user's file raises
        raise ConfigError(f"--config={file} fails: {type(error).__name__}: {_first_line(error)}") from error
    finally:
        sys.dont_write_bytecode = before
    if not hasattr(values, "to_dict"):
        raise ConfigError(f"--config={file}: get_config returned {type(values).__name__}, not a ConfigDict")
    return values


def _first_line(error: BaseException) -> str:
    """The first line of an error's text."""
    return (str(error).strip().splitlines() or [""])[0]


def _override(values: Any, name: str, text: str) -> None:
    """Sets one dotted setting from its text."""
    section, hint = values, Config
    *groups, last = name.split(".")
    for depth, group in enumerate([*groups, last]):
        hints = typing.get_type_hints(hint)
        if group not in hints:
            prefix = "".join(f"{part}." for part in name.split(".")[:depth])
            raise ConfigError(f"unknown setting {name!r}{_meant(last) or suggestion(group, list(hints), prefix)}")
        hint = hints[group]
        if depth < len(groups):
            if hasattr(hint, "__dataclass_fields__"):
                if group not in section:
                    section[group] = {}
                section = section[group]
                continue
            raise ConfigError(f"unknown setting {name!r}: {'.'.join(groups[: depth + 1])} has no parts")
    if hasattr(hint, "__dataclass_fields__"):
        raise ConfigError(f"{name} is a group of settings: set one of {', '.join(typing.get_type_hints(hint))}")
    section[last] = _parse(name, text, hint)


def _meant(last: str) -> str:
    """The settings whose last part is a word, or ends with it: `--config.lr` without its group.

    >>> _meant("lr")
    "; did you mean 'optim.base_lr'?"
    """
    names = [line.split()[0] for line in describe().splitlines()[1:]]
    whole = [name for name in names if name.rpartition(".")[2] == last]
    found = whole or [name for name in names if name.endswith(f"_{last}")]
    return f"; did you mean {' or '.join(map(repr, found))}?" if 0 < len(found) < 4 else ""


def _parse(name: str, text: str, hint: Any) -> Any:
    """The value that a text stands for, by the type of its setting."""
    kind = plain_type(hint)
    if kind is not hint and text.lower() in ("", "none", "null"):
        return None
    try:
        if kind is int and float(text).is_integer():
            return int(float(text)) if "e" in text.lower() or "." in text else int(text)
        return _BOOLEANS[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        offered = "true or false" if kind is bool else f"a value of type {kind.__name__}"
        offered += f", and --config.{name}= leaves it empty" if kind is not hint else ""
        near = difflib.get_close_matches(text.lower(), _BOOLEANS, n=1) if kind is bool else []
        hint_text = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{name} = {text!r} is not {offered}{hint_text}") from None
