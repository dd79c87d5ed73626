"""What a measurement depends on besides the code: machine, versions, date."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import jax

PACKAGES = ("jax", "jaxlib", "numpy", "optax", "torch")


def about() -> dict[str, Any]:
    """Device, versions and date.

    Returns:
        Plain values under "device", "versions", "date".

    >>> sorted(about())
    ['date', 'device', 'versions']
    """
    return {
        "device": {
            "platform": jax.default_backend(),
            "kind": jax.devices()[0].device_kind,
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        },
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def device_line(described: dict[str, Any]) -> str:
    """One line of it for people.

    Args:
        described: what `about` returned.

    Returns:
        A line.
    """
    device, versions = described["device"], described["versions"]
    kind = device["processor"] if device["platform"] == "cpu" else device["kind"]
    names = ", ".join(f"{name} {versions[name] or 'not installed'}" for name in ("jax", "optax", "torch"))
    return f"{kind}, {device['cores']} cores; {names}; Python {versions['python']}; {described['date']}"


def _version(name: str) -> str | None:
    """Of an installed package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """The name on the chip, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
