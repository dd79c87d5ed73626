"""Numbers as people read them."""

from __future__ import annotations

import math

NOTHING = "–"


def percent(value: float | None) -> str:
    """A fraction as percent."""
    return NOTHING if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def number(value: float | None, digits: int = 0) -> str:
    """A number with thousands separators, or with significant digits."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:.{digits}g}" if digits else f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """Seconds for people."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
