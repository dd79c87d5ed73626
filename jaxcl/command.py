"""What all commands share: flags whose errors are one line, and exit codes."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from jaxcl.config import ConfigError
from jaxcl.interrupt import Interrupted

OVERRIDE = "--config."


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Raises instead of printing the usage.

        Args:
            message: what is wrong.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{message}; see {self.prog} --help")


def folder(text: str) -> Path:
    """The folder that a flag names, with `~` for the home of whoever asks.

    Args:
        text: of the flag.

    Returns:
        The path.

    Raises:
        ArgumentTypeError: nothing is named.

    >>> folder("runs/a").name
    'a'
    """
    if not text:
        raise argparse.ArgumentTypeError("no folder is named; . is the one that you are in")
    return Path(text).expanduser()


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Takes `--config.a.b=v` out of a command line.

    Args:
        arguments: of the command line.

    Returns:
        The overrides as `a.b=v`, and the other arguments.

    Raises:
        ConfigError: an override without a value.

    >>> split_overrides(["--config=a.py", "--config.steps=9"])
    (['steps=9'], ['--config=a.py'])
    """
    overrides = [item.removeprefix(OVERRIDE) for item in arguments if item.startswith(OVERRIDE)]
    for item in overrides:
        if "=" not in item:
            raise ConfigError(f"{OVERRIDE}{item} needs a value: {OVERRIDE}{item}=VALUE")
    return overrides, [item for item in arguments if not item.startswith(OVERRIDE)]


def refuse_repeated(arguments: Sequence[str], flags: Sequence[str]) -> None:
    """Raises where a flag is given twice, of which the last alone would count.

    Args:
        arguments: of the command line.
        flags: that mean one thing.

    Raises:
        ConfigError: names the flag.

    >>> refuse_repeated(["--config=a.py", "--resume"], ("--config",))
    """
    for flag in flags:
        given = [item for item in arguments if item == flag or item.startswith(f"{flag}=")]
        if len(given) > 1:
            raise ConfigError(f"{flag} is given {len(given)} times: {', '.join(given)}; one is meant")


def guarded(command: Callable[[], None]) -> int:
    """Runs a command and turns what a user can mend into one line on stderr.

    Args:
        command: prints its own result.

    Returns:
        0; 2 after a mistake in what was asked for; 130 or 143 after Ctrl-C or SIGTERM.

    >>> guarded(lambda: None)
    0
    """
    warnings.showwarning = lambda message, *_, **__: print(f"note: {message}", file=sys.stderr)
    logging.basicConfig(format="note: %(message)s", level=logging.WARNING)
    sys.excepthook = _hook
    try:
        command()
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        return stop.code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        settings = "batch.size, batch.micro, queue.size or eval.batch"
        print(f"error: out of memory: lower {settings} ({_brief(error)})", file=sys.stderr)
        return 2
    return 0


def leave(code: int) -> NoReturn:
    """Ends the process.

    Args:
        code: the exit code.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        # threads that read images or write a checkpoint may still run, and crash or complain as Python is torn down
        os._exit(code)
    sys.exit(code)


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Python's own, but for what each other write of a checkpoint says in its thread once one of them has failed."""
    if str(error) != "Event loop is closed":
        sys.__excepthook__(kind, error, trace)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether Python or JAX says so; JAX's by name, since a command may fail before it is loaded."""
    of_jax = type(error).__name__ == "JaxRuntimeError" and "out of memory" in str(error).lower()
    return of_jax or isinstance(error, MemoryError)


def _brief(error: Exception) -> str:
    """The first line of an error, cut."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
