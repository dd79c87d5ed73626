"""Peak memory of programs as the device reports it, in a process of their own.

python -m jaxcl.bench.gpu_memory < ITEMS

A device's peak never falls, and choosing kernels allocates too. So programs come compiled from the cache of the process
that asks, in ascending order of what they should need, and one that does not raise the peak has no figure.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

import jax

from jaxcl.bench.apart import Failed, alone_on_device, ask
from jaxcl.bench.gpu_items import Item
from jaxcl.bench.programs import embeddings


def measured_peaks(items: Sequence[Item], seconds: float, cache: str) -> list[int | None] | str:
    """Starts the process and reads its answer.

    Args:
        items: in ascending order of predicted memory, compiled before.
        seconds: it may take.
        cache: folder of compiled programs.

    Returns:
        Bytes, None where the peak did not rise; or in words why there are none.
    """
    question = [asdict(item) for item in items]
    try:
        answer: list[int | None] | str = ask(
            "jaxcl.bench.gpu_memory", question, seconds=seconds, settings=alone_on_device(cache)
        )
    except Failed as error:
        return f"not measured: {error}"
    return answer


def run_in_order(items: Sequence[Item]) -> list[int | None] | str:
    """Runs each once and reads the device's peak after it.

    Args:
        items: in ascending order of predicted memory.

    Returns:
        As `measured_peaks`.
    """
    device = jax.devices()[0]
    if not device.memory_stats():
        return f"not measured: {device.device_kind} reports no memory statistics"
    peaks: list[int | None] = []
    highest = 0
    for item in items:
        embeddings.cache_clear()
        jax.block_until_ready(item.program().run())
        peak = device.memory_stats()["peak_bytes_in_use"]
        peaks.append(peak if peak > highest else None)
        highest = peak
    return peaks


if __name__ == "__main__":
    print(json.dumps(run_in_order([Item(**item) for item in json.load(sys.stdin)])))
