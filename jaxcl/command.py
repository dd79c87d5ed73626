"""What all commands share: flags whose errors are one line, and exit codes."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from typing import NoReturn

from jaxcl.config import ConfigError
from jaxcl.interrupt import Interrupted


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
    try:
        command()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        return stop.code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0
