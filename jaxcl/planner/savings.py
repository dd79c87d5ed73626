"""Settings that would need less memory, each compiled to see how much."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxcl import methods
from jaxcl.config import Config, ConfigError, micro_size
from jaxcl.planner.parts import ACTIVATIONS, BATCH, GRADIENTS, OPTIMIZER, QUEUE, SIMILARITY
from jaxcl.planner.plan import Row, with_settings

MICRO = 64  # images of a first micro-batch
RANK = 8  # of low-rank adaptation
TOGETHER = 2  # candidates that are compiled at once
STRIP = 32  # anchors of a small strip
# what `model.remat` is called where blocks are computed again
REMAT = "blocks"


class Saving(NamedTuple):
    """Settings and what they save.

    Attributes:
        settings: dotted names and values.
        saved_bytes: of one device's peak; negative: it needs more.
        peak_bytes: that is left.
    """

    settings: dict[str, Any]
    saved_bytes: int
    peak_bytes: int

    @property
    def flags(self) -> str:
        """To be pasted behind a command.

        >>> Saving({"batch.micro": 64}, 1, 2).flags
        '--config.batch.micro=64'
        """
        return " ".join(f"--config.{name}={value}" for name, value in self.settings.items())


class Savings(NamedTuple):
    """What was found.

    Attributes:
        best: the largest first, at most three.
        tried: how many were compiled.
        left: how many were not, for want of time.
    """

    best: list[Saving]
    tried: int
    left: int


def candidates(config: Config, parts: dict[str, int]) -> list[dict[str, Any]]:
    """Settings that might save memory, the most promising first.

    Args:
        config: the run.
        parts: bytes of its peak.

    Returns:
        Settings that the rules allow together with the rest.

    >>> candidates(Config(), {"activations": 10})[0]
    {'batch.mode': 'cached', 'batch.micro': 64, 'batch.images': 'host'}
    """
    ranked = sorted(_promises(config, parts), key=lambda item: -item[0])
    return [settings for promise, settings in ranked if promise > 0 and _allowed(config, settings)]


def find_savings(
    row: Row,
    peaks_of: Callable[[Sequence[Config]], Sequence[int | None]],
    *,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Savings:
    """Compiles candidates, two side by side, until the time is up.

    Args:
        row: what they are compared with.
        peaks_of: from configs to the bytes of their peaks; None where the compiler refuses one.
        seconds: after which no further ones are begun, counted with what the last ones took.
        clock: seconds.

    Returns:
        The best of them.
    """
    waiting, found, tried = candidates(row.config, row.parts), list[Saving](), 0
    begun, longest = clock(), 0.0
    while waiting and clock() - begun + longest < seconds:
        started, pair = clock(), waiting[:TOGETHER]
        peaks = peaks_of([with_settings(row.config, settings) for settings in pair])
        waiting, tried, longest = waiting[TOGETHER:], tried + len(pair), max(longest, clock() - started)
        if row.peak_bytes is not None:
            both = zip(pair, peaks, strict=True)
            found += [Saving(settings, row.peak_bytes - peak, peak) for settings, peak in both if peak is not None]
    found = sorted((saving for saving in found if saving.saved_bytes > 0), key=lambda saving: -saving.saved_bytes)
    return Savings(found[:3], tried, len(waiting))


def _promises(config: Config, parts: dict[str, int]) -> list[tuple[float, dict[str, Any]]]:
    """Settings, and about how many bytes each might save."""
    batch, model, loss = config.batch, config.model, config.loss
    of = {part: parts.get(part, 0) for part in (ACTIVATIONS, BATCH, GRADIENTS, OPTIMIZER, QUEUE, SIMILARITY)}
    micro, found = micro_size(config), list[tuple[float, dict[str, Any]]]()
    if batch.mode == "accumulate":
        size = min(MICRO, micro)
        cached = {"batch.mode": "cached", "batch.micro": size, "batch.images": "host"}
        found.append((of[ACTIVATIONS] * (1 - size / micro / 2) + of[BATCH], cached))
    else:
        found.append((of[ACTIVATIONS] / 2, {"batch.micro": max(micro // 2, 2)}))
        found.append((of[BATCH] if batch.images == "device" else 0, {"batch.images": "host"}))
    if _stacked(config) and model.remat != REMAT:
        found.append((of[ACTIVATIONS] * 0.6, {"model.remat": REMAT}))
    if model.dtype == "float32":
        found.append((of[ACTIVATIONS] * 0.5, {"model.dtype": "bfloat16"}))
    if methods.traits(config.method).negatives is not None:
        found.append((of[SIMILARITY] * 0.8 if loss.impl != "strip" else 0, {"loss.impl": "strip"}))
        strip = min(STRIP, max((loss.block_size or 2 * STRIP) // 2, 1))
        found.append((of[SIMILARITY] * 0.3 if loss.impl != "dense" else 0, {"loss.block_size": strip}))
    if not config.lora.rank:
        found.append(((of[GRADIENTS] + of[OPTIMIZER]) * 0.9, {"lora.rank": RANK}))
    if not config.optim.offload:
        found.append((of[OPTIMIZER], {"optim.offload": True}))
    if config.queue.size and not config.queue.offload:
        found.append((of[QUEUE], {"queue.offload": True}))
    if config.queue.size and config.queue.dtype == "float32":
        found.append((of[QUEUE] / 2, {"queue.dtype": "float16"}))
    return found


def _stacked(config: Config) -> bool:
    """Whether the run has layers that can be computed again."""
    return config.model.encoder.startswith("vit") or methods.traits(config.method).captions


def _allowed(config: Config, settings: dict[str, Any]) -> bool:
    """Whether the settings change something and no rule speaks against them."""
    try:
        changed = with_settings(config, settings)
        captions = methods.traits(config.method).captions
        methods.check(changed, has_labels=True, has_captions=captions)
    except ConfigError:
        return False
    return changed != config
