"""What the planner says of training steps beside the peak that the device reports.

python -m jaxcl.bench.gpu_plan < CASE

Each step runs in a process of its own, since a device's peak never falls; and twice, since choosing kernels allocates
too: the first one leaves its compiled programs to the second, whose peak counts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from jaxcl.bench.apart import Failed, TimeUp, alone_on_device, ask
from jaxcl.bench.reality import VIT_TI, Case

AIM = 0.1  # of the measured peak, by which the planned one may differ
_VIT_B = {
    "model.encoder": "vit_b",
    "model.patch": 32,
    "model.head_norm": False,
    "model.head_dim": 512,
    "model.dtype": "bfloat16",
    "model.remat": "blocks",
    "data.image_size": 224,
}
_HOSTED = {"batch.mode": "cached", "batch.images": "host"}
FULL = (
    Case("small conv, 2,048 images at once", {"batch.size": 2048}),
    Case("ViT-Ti, 1,024 images at once", {**VIT_TI, "batch.size": 1024}),
    Case("ViT-Ti, 4,096 images, 256 at a time", {**VIT_TI, **_HOSTED, "batch.micro": 256, "batch.size": 4096}),
    Case("ViT-B/32, 256 images at once", {**_VIT_B, "batch.size": 256}),
    Case("ViT-B/32, 1,024 images, 32 at a time", {**_VIT_B, **_HOSTED, "batch.micro": 32, "batch.size": 1024}),
)
DRY = (Case("small conv, 8 images at once", {"batch.size": 8, "data.image_size": 8, "model.head_dim": 8}),)


def planned_steps(cases: Sequence[Case], seconds: float, cache: str) -> list[dict[str, Any]]:
    """Plans and runs each case.

    Args:
        cases: to be run, in order, as far as the time goes.
        seconds: for all of them.
        cache: folder for compiled programs.

    Returns:
        For each its name, "planned" bytes, "measured" ones or None, and a "note" where they are missing.
    """
    end, found = time.monotonic() + seconds, []
    for case in cases:
        row: dict[str, Any] = {"name": case.name, "planned": None, "measured": None, "note": None}
        try:
            for _ in range(2):
                left = max(end - time.monotonic(), 0.1)
                answer = ask("jaxcl.bench.gpu_plan", asdict(case), seconds=left, settings=alone_on_device(cache))
            row |= answer
        except TimeUp:
            row["note"] = "left out, because time was short"
        except Failed as error:
            row["note"] = f"failed: {error}"
        found.append(row)
    return found


def line(row: dict[str, Any]) -> str:
    """One result for people.

    Args:
        row: of `planned_steps`.

    Returns:
        A line.

    >>> line({"name": "a step", "planned": 3 << 20, "measured": 4 << 20, "note": None})
    'step of a step: planned 3.0 MiB, measured 4.0 MiB, 25.0% below; within 10%: NOT MET'
    """
    if row["note"]:
        return f"step of {row['name']}: {row['note']}"
    planned = f"step of {row['name']}: planned {row['planned'] / 2**20:,.1f} MiB"
    if row["measured"] is None:
        return f"{planned}, and the device does not tell its peak"
    apart = row["planned"] / row["measured"] - 1
    verdict = "met" if abs(apart) <= AIM else "NOT MET"
    where = f"{abs(apart):.1%} {'above' if apart > 0 else 'below'}"
    return f"{planned}, measured {row['measured'] / 2**20:,.1f} MiB, {where}; within {AIM:.0%}: {verdict}"


def measure(case: Case) -> dict[str, Any]:
    """Plans and runs a step on the device of this process.

    Args:
        case: settings of it.

    Returns:
        Bytes: "planned", and "measured" or None.
    """
    import jax

    from jaxcl.bench.step import a_batch
    from jaxcl.blueprint import Facts, draw
    from jaxcl.config import Config
    from jaxcl.planner.compiling import Compiler
    from jaxcl.planner.plan import peak_of, with_settings
    from jaxcl.teacher import find_teacher

    config = with_settings(Config(), {"queue.size": 0, "loss.top_k": None, **case.settings})
    device = jax.devices()[0]
    drawn = draw(config, Facts(3, labels=True, captions=False), find_teacher, devices=[device])
    planned = peak_of(drawn, Compiler({}))
    if planned is None:
        raise RuntimeError("the compiler refuses the step")
    state = jax.jit(drawn.init_state)(jax.random.key(0))
    batch: Any = a_batch(config.batch.size, config.data.image_size)
    batch["bad"] = np.full_like(batch["id"], -1)
    if config.batch.images == "device":
        batch = jax.device_put(batch, device)
    jax.block_until_ready(drawn.train_step(state, batch))
    statistics = device.memory_stats()
    return {"planned": planned, "measured": statistics["peak_bytes_in_use"] if statistics else None}


if __name__ == "__main__":
    print(json.dumps(measure(Case(**json.load(sys.stdin)))))
