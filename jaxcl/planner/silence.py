"""Libraries that write to stderr on their own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Keeps a compiler's plugin from saying that there is no driver; Python's own stderr goes on, errors are raised.

    >>> with silenced():
    ...     print("heard")
    heard
    """
    sys.stderr.flush()
    before, nowhere, heard = os.dup(2), os.open(os.devnull, os.O_WRONLY), sys.stderr
    os.dup2(nowhere, 2)
    try:
        with os.fdopen(os.dup(before), "w") as sys.stderr:
            yield
    finally:
        sys.stderr = heard
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)
