"""The error for what a user set, and how it names what would have worked."""

from __future__ import annotations

import difflib


class ConfigError(ValueError):
    """A setting, a path or a data set that cannot work; the message names it, its value and what would."""


def suggestion(word: str, known: list[str], prefix: str = "") -> str:
    """The end of an error message: the nearest known word, or all of them.

    >>> suggestion("temprature", ["temperature", "top_k"], "loss.")
    "; did you mean 'loss.temperature'?"
    """
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {prefix + near[0]!r}?"
    return f"; known: {', '.join(prefix + name for name in known)}"


def first_of(names: list[str], shown: int, between: str = ", ") -> str:
    """The first of some names, and how many more there are.

    >>> first_of(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return between.join(names[:shown]) + more
