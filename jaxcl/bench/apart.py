"""Measurements in a process of their own, which is asked and answers in JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


class Failed(Exception):
    """The process did not answer; says why."""


class TimeUp(Failed):
    """It took too long."""


def ask(module: str, question: Any, *, seconds: float | None = None, settings: dict[str, str] | None = None) -> Any:
    """Runs a module that reads a question from its standard input and prints the answer in its last line.

    Args:
        module: name of it.
        question: what JSON can say.
        seconds: it may take; None: any time.
        settings: of its environment, beside those of this process.

    Returns:
        The answer.

    Raises:
        Failed: it ended with an error, whose last line this is.
        TimeUp: it took longer.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", module],
            input=json.dumps(question),
            env={**os.environ, **(settings or {})},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise TimeUp(f"it took more than {seconds:.0f} s") from error
    except subprocess.CalledProcessError as error:
        raise Failed((error.stderr.strip().splitlines() or ["no output"])[-1][:200]) from error
    return json.loads(done.stdout.splitlines()[-1])


def alone_on_device(cache: str) -> dict[str, str]:
    """Settings of a process that measures memory of a device that its parent may hold most of.

    Args:
        cache: folder of compiled programs, of which every one is kept.

    Returns:
        Settings of its environment.
    """
    return {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
