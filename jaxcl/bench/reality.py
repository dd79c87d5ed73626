"""What the planner says of a training step on this machine's CPU, beside the memory that the step takes.

python -m jaxcl.bench.reality < CASE

Each step runs in a process of its own, on random images. A CPU tells nothing of its memory, so what is compared is by
how much the process grew while a step ran, over what it held before: state, batch and compiled programs.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from jaxcl.bench.apart import ask

GIB = 1 << 30
LOOK_SECONDS = 0.002  # between two looks at the process
LARGE_BAR = (
    1.5 * GIB
)  # N = 16,384: its matrix of similarities alone would take 2.15 GB in float32, its gradient as much


@dataclass(frozen=True)
class Case:
    """One step.

    Attributes:
        name: in the table.
        settings: of the config, by their dotted names.
        warm: whether a step before it compiles; else the only step does, and it counts with what compiling takes.
        bar: the most bytes by which the process may grow; None: there is no bar.
    """

    name: str
    settings: dict[str, Any]
    warm: bool = True
    bar: float | None = None


VIT_TI = {"model.encoder": "vit_ti", "model.patch": 8, "model.head_norm": False}
_CACHED = {"batch.mode": "cached", "batch.micro": 32}
FULL = (
    Case("small conv, 256 images at once", {"batch.size": 256}),
    Case("small conv, dense loss, 2,048 at once", {"batch.size": 2048, "loss.impl": "dense"}),
    Case("ViT-Ti, 128 images at once", {**VIT_TI, "batch.size": 128}),
    Case("ViT-Ti, 512 images, 32 at a time", {**VIT_TI, **_CACHED, "batch.size": 512}),
    Case("ViT-Ti, 512 images, from the host", {**VIT_TI, **_CACHED, "batch.size": 512, "batch.images": "host"}),
    Case(
        "ViT-Ti, 8,192 images, from the host",
        {**VIT_TI, **_CACHED, "batch.micro": 64, "batch.size": 8192, "batch.images": "host"},
        warm=False,
        bar=LARGE_BAR,
    ),
)
QUICK = (Case("small conv, 16 images at once", {"batch.size": 16, "data.image_size": 16, "model.head_dim": 16}),)


@dataclass(frozen=True)
class Found:
    """What was measured.

    Attributes:
        name: of the case.
        embeddings: N.
        predicted: bytes that the planner expects beside state and batch.
        grown: bytes by which the process grew, at most.
        seconds: of the step.
        loss: of the step.
        reference: of the same embeddings by the strip engine, where the step is hosted; None elsewhere.
        bar: the most that `grown` may be.
    """

    name: str
    embeddings: int
    predicted: int
    grown: int
    seconds: float
    loss: float
    reference: float | None
    bar: float | None

    @property
    def met(self) -> bool | None:
        """Whether the bar is; None: there is none."""
        return None if self.bar is None else self.grown <= self.bar


def measure_all(cases: Sequence[Case], say: Callable[[str], None] = lambda _: None) -> list[Found]:
    """Runs each case in a new process.

    Args:
        cases: to be run.
        say: told what comes next.

    Returns:
        What was found, in the same order.
    """
    found = []
    for case in cases:
        say(case.name)
        found.append(Found(**ask("jaxcl.bench.reality", asdict(case), settings={"JAX_PLATFORMS": "cpu"})))
    return found


def measure_one(case: Case) -> Found:
    """Plans and runs a step in this process.

    Args:
        case: settings of it.

    Returns:
        What was found.
    """
    import jax

    from jaxcl import methods
    from jaxcl.bench.step import a_batch
    from jaxcl.config import Config
    from jaxcl.planner.compiling import Compiler
    from jaxcl.planner.pieces import device_bytes
    from jaxcl.planner.plan import draw_for, peak_of, with_settings
    from jaxcl.planner.targets import find_target
    from jaxcl.usage import resident_bytes

    config, target = with_settings(Config(), {"augment.blur_prob": 0.0, **case.settings}), find_target("cpu")
    drawn = draw_for(config, target)
    peak = peak_of(drawn, Compiler(target.options))
    state = jax.jit(drawn.init_state)(jax.random.key(0))
    hosted = config.batch.images != "device"
    batch: Any = a_batch(config.batch.size, config.data.image_size)
    batch["bad"] = np.full_like(batch["id"], -1)
    batch = batch if hosted else jax.tree.map(jax.device_put, batch)
    held = device_bytes(drawn.like) + (0 if hosted else sum(x.nbytes for x in jax.tree.leaves(batch)))
    if case.warm:
        state, _ = jax.block_until_ready(drawn.train_step(state, batch))
    reference = _reference(drawn, state, batch) if hosted else None
    _give_back()
    before, began = resident_bytes() or 0, time.monotonic()
    with Highest(resident_bytes) as highest:
        _, metrics = jax.block_until_ready(drawn.train_step(state, batch))
    return Found(
        name=case.name,
        embeddings=config.batch.size * methods.traits(config.method).views,
        predicted=(peak or 0) - held,
        grown=highest.value - before,
        seconds=time.monotonic() - began,
        loss=float(metrics["loss"]),
        reference=reference,
        bar=case.bar,
    )


class Highest:
    """The highest value of a function while a block runs; another thread looks.

    >>> with Highest(lambda: 3) as highest:
    ...     pass
    >>> highest.value
    3
    """

    def __init__(self, look: Callable[[], int | None]) -> None:
        self._look, self._done, self.value = look, threading.Event(), look() or 0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        """Looks until the block is done."""
        while not self._done.wait(LOOK_SECONDS):
            self.value = max(self.value, self._look() or 0)

    def __enter__(self) -> Highest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.value = max(self.value, self._look() or 0)


def reality_table(found: Sequence[Found]) -> str:
    """A line for each case.

    Args:
        found: from `measure_all`.

    Returns:
        Several lines without a final newline.

    >>> one = Found("a step", 512, 3 << 20, 4 << 20, 1.5, 2.0, 2.0, None)
    >>> print(reality_table([one]))
    step                                          N   planned MiB   grown MiB   ratio   seconds
    a step                                      512           3.0         4.0    1.33       1.5   loss 2 = strip
    """
    lines = [f"{'step':<40}{'N':>7}{'planned MiB':>14}{'grown MiB':>12}{'ratio':>8}{'seconds':>10}"]
    for row in found:
        figures = f"{row.predicted / 2**20:>14,.1f}{row.grown / 2**20:>12,.1f}{row.grown / row.predicted:>8.2f}"
        said = []
        if row.reference is not None:
            same = abs(row.loss - row.reference) <= 1e-5 * abs(row.reference)
            said.append(f"loss {row.loss:.7g} {'=' if same else f'is not {row.reference:.7g} of'} strip")
        if row.bar is not None:
            said.append(f"at most {row.bar / 2**20:,.0f}: {'met' if row.met else 'NOT MET'}")
        note = "   " + ", ".join(said) if said else ""
        lines.append(f"{row.name:<40}{row.embeddings:>7,}{figures}{row.seconds:>10.1f}{note}")
    return "\n".join(lines)


def _reference(drawn: Any, state: Any, batch: dict[str, np.ndarray]) -> float:
    """The loss of the embeddings of a hosted step by the strip engine, all of them at once."""
    import jax
    import jax.numpy as jnp

    from jaxcl.cached import embedding_shapes, seen_of, zeros_like
    from jaxcl.losses import streaming_infonce
    from jaxcl.portions import Held, Portions

    config, step = drawn.config, drawn.train_step
    portions = Portions(config.batch.size, config.batch.micro)
    rows = zeros_like(embedding_shapes(step.pure, portions, state, batch))
    statistics = state.batch_stats
    for number, micro in enumerate(Held(batch, portions)):
        rows, statistics = step.programs.encode(*seen_of(state), np.int32(number), micro, rows, statistics)
    (views,) = jax.tree.leaves(rows)
    z = jnp.concatenate(list(jnp.moveaxis(views, 1, 0)))
    groups = jnp.tile(jnp.asarray(batch["id"]), views.shape[1])
    given = dict(temperature=config.loss.temperature, exclude_diagonal=True, top_k=config.loss.top_k)
    out = jax.jit(lambda z: streaming_infonce(z, z, groups, groups, **given).loss.mean())(z)
    return float(out)


def _give_back() -> None:
    """Memory that is free goes back to the system, where the C library can do that, or it would hide the growth."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return


if __name__ == "__main__":
    print(json.dumps(asdict(measure_one(Case(**json.load(sys.stdin))))))
