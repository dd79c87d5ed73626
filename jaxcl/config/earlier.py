"""Settings as an earlier version of this package wrote them, for runs that go on or are scored with this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# model.remat was a yes or no
REMAT = {True: "blocks", False: "none"}


def from_earlier(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a `config.json` under the names and values of today.

    Args:
        values: read from it; those of today stay as they are.

    Returns:
        For `resolve`, or to compare with others.

    >>> from_earlier({"model": {"remat": True, "patch": 4}, "steps": 9})
    {'model': {'remat': 'blocks', 'patch': 4}, 'steps': 9}
    """
    model = values.get("model")
    if not isinstance(model, Mapping) or not isinstance(model.get("remat"), bool):
        return dict(values)
    return {**values, "model": {**model, "remat": REMAT[model["remat"]]}}
