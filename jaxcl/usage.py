"""Memory in use while a run goes on: of its process, and of the devices where their backend tells."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

RESIDENT, IN_USE, PEAK = "resident_bytes", "device_bytes_in_use", "device_peak_bytes"
LINE_SECONDS = 60.0  # between two lines on the screen
_STATM = "/proc/self/statm"


def memory_use(devices: Sequence[Any] | None = None) -> dict[str, int]:
    """Bytes in use now; it waits for nothing and copies nothing.

    Args:
        devices: those to ask; None: all of this process.

    Returns:
        `resident_bytes` of the process, where the system tells (Linux); of the fullest device `device_bytes_in_use`
        and `device_peak_bytes` since its start, where the backend tells (GPUs and TPUs do, a CPU does not).

    >>> memory_use([])["resident_bytes"] > 1 << 20
    True
    """
    resident = resident_bytes()
    told = [device.memory_stats() or {} for device in (jax.local_devices() if devices is None else devices)]
    found = {} if resident is None else {RESIDENT: resident}
    for name, key in ((IN_USE, "bytes_in_use"), (PEAK, "peak_bytes_in_use")):
        values = [int(stats[key]) for stats in told if key in stats]
        found |= {name: max(values)} if values else {}
    return found


def resident_bytes() -> int | None:
    """Memory of this process that is neither swapped out nor given back; None where the system does not tell."""
    try:
        with open(_STATM) as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def memory_line(use: Mapping[str, int]) -> str:
    """What is in use, in a line.

    Args:
        use: from `memory_use`.

    >>> memory_line({"resident_bytes": 3 << 29, "device_bytes_in_use": 1 << 30, "device_peak_bytes": 5 << 30})
    'memory: 1.50 GiB resident in this process; on the device 1.00 GiB in use, 5.00 GiB at most'
    """
    gib = {name: f"{value / 2**30:.2f} GiB" for name, value in use.items()}
    parts = [f"{gib[RESIDENT]} resident in this process"] if RESIDENT in gib else []
    words = [f"{gib[name]} {word}" for name, word in ((IN_USE, "in use"), (PEAK, "at most")) if name in gib]
    parts += [f"on the device {', '.join(words)}"] if words else []
    return f"memory: {'; '.join(parts)}"


class MemoryLines:
    """Says from time to time how much memory is in use: at once, then once a minute."""

    def __init__(self) -> None:
        self._spoke = -math.inf

    def line(self, use: Mapping[str, int]) -> str | None:
        """The line that is due.

        Args:
            use: from `memory_use`.

        Returns:
            None where it is too early, or nothing is known.
        """
        if not use or time.monotonic() - self._spoke < LINE_SECONDS:
            return None
        self._spoke = time.monotonic()
        return memory_line(use)
