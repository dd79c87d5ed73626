"""Speaks up when the log of a run shows that it will not learn: what it means, and which setting to look at."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Row = Mapping[str, float]
GRACE = 100  # steps in which an encoder may look like anything


class Limits(NamedTuple):
    """What the judgement of a row depends on besides the row.

    Attributes:
        steps: of the run.
        warmup: steps until the learning rate is whole.
        clip_norm: of gradients; None: none.
    """

    steps: int
    warmup: int
    clip_norm: float | None


class Alarm(NamedTuple):
    """One thing to look for.

    Attributes:
        name: of the alarm.
        rows: logged rows in a row that must show it.
        shows: whether a row does.
        says: what it means and where to look, with the row's numbers in it.
        early: judged during warm-up and grace too.
    """

    name: str
    rows: int
    shows: Callable[[Row, Limits], bool]
    says: str
    early: bool = False


def _stuck(row: Row, limits: Limits) -> bool:
    """Whether the loss is that of embeddings that are all one: within a hundredth of ln(negatives + 1)."""
    negatives = row.get("negatives_per_anchor", 0.0)
    floor = math.log(negatives + 1)
    return negatives >= 1 and abs(row["loss"] - floor) < 0.01 * floor and row.get("positive_cosine", 0.0) > 0.9


def _clipped(row: Row, limits: Limits) -> bool:
    """Whether next to nothing of the gradient is left: Adam does not mind a factor, SGD stands still."""
    return limits.clip_norm is not None and row["grad_norm"] > 30 * limits.clip_norm


ALARMS = (
    Alarm(
        "stuck",
        5,
        _stuck,
        "the loss stands at ln(negatives + 1) = ln({negatives_per_anchor:.0f} + 1): all embeddings are one. Lower "
        "loss.temperature, raise loss.top_k, or lower optim.base_lr",
    ),
    Alarm(
        "collapse",
        3,
        lambda row, _: row.get("feature_spread", 1.0) < 0.05,
        "embeddings of different images are nearly one: their standard deviation is {feature_spread:.3f} of 1/sqrt(d). "
        "Lower optim.base_lr; with few hardest negatives lower loss.temperature or raise loss.top_k; without negatives "
        "look at model.head_norm, and raise optim.predictor_rate",
    ),
    Alarm(
        "rank",
        3,
        lambda row, _: row.get("effective_rank", 9.0) < 2 and row.get("feature_spread", 0.0) >= 0.05,
        "embeddings lie along {effective_rank:.1f} dimensions of all they have. Lower optim.base_lr, weaken augment.*, "
        "turn model.head_norm on, or with a predictor raise optim.predictor_rate",
    ),
    Alarm(
        "uniformity",
        3,
        lambda row, _: row.get("uniformity", -1.0) > -0.2 and row.get("alignment", 1.0) < 0.1,
        "the views of an image agree (alignment {alignment:.2f}), but so do all images (uniformity {uniformity:.2f}; "
        "-4 were spread evenly): nothing repels. Look at loss.top_k, loss.temperature and queue.size",
    ),
    Alarm(
        "alignment",
        5,
        lambda row, _: row.get("alignment", 0.0) > 1.9,
        "the two views of an image are as far apart as any two images (alignment {alignment:.2f}, 2 is chance). "
        "Weaken the augmentation (raise augment.crop_scale_min), or raise optim.base_lr",
    ),
    Alarm(
        "queue norms",
        1,
        lambda row, _: abs(row.get("queue_norm_min", 1.0) - 1) > 0.02 or abs(row.get("queue_norm_max", 1.0) - 1) > 0.02,
        "rows of the queue have lengths from {queue_norm_min:.3f} to {queue_norm_max:.3f} instead of 1: the head gives "
        "zeros or what is not finite, or the checkpoint is damaged. Look at model.dtype and optim.base_lr",
        early=True,
    ),
    Alarm(
        "queue fill",
        1,
        lambda row, limits: row["step"] >= limits.steps / 2 and row.get("queue_fill", 1.0) < 0.5,
        "half of the run is over and {queue_fill:.0%} of the queue is filled: most of it will never be used. "
        "Lower queue.size",
        early=True,
    ),
    Alarm(
        "clipping",
        5,
        _clipped,
        "the gradient, of norm {grad_norm:.3g}, is scaled down to optim.clip_norm at every step. Lower optim.base_lr, "
        "raise loss.temperature, or raise optim.clip_norm",
    ),
    Alarm(
        "no negatives",
        3,
        # a method without negatives has no hardest one
        lambda row, _: row.get("negatives_per_anchor", 1.0) == 0 and "hardest_cosine" in row,
        "no anchor has a negative, and nothing keeps embeddings apart. Images with one id, label or caption "
        "are no negatives of each other: look at the data, at text.length, which may cut captions to one, at "
        "loss.skip_hardest, and at queue.size",
        early=True,
    ),
    Alarm(
        "no gradient",
        3,
        lambda row, _: row["grad_norm"] < 1e-7,
        "no gradient arrives (norm {grad_norm:.1e}), and nothing is learned. Look at loss.temperature, at queue.size "
        "where the queue holds the only negatives, and at model.dtype",
    ),
)


class Health:
    """Looks at every logged row; each alarm speaks once a run.

    Args:
        steps: of the run.
        warmup: steps until the learning rate is whole.
        clip_norm: of gradients; None: none.
        alarms: what to look for.
    """

    def __init__(self, *, steps: int, warmup: int, clip_norm: float | None, alarms: Sequence[Alarm] = ALARMS) -> None:
        self._limits = Limits(steps, warmup, clip_norm)
        self._shown = {alarm: deque[bool](maxlen=alarm.rows) for alarm in alarms}

    def look(self, step: int, values: Row) -> list[str]:
        """What a logged row says.

        Args:
            step: real updates so far.
            values: its metrics; what a method does not have raises no alarm.

        Returns:
            A sentence for each alarm that speaks now.

        >>> row = {"loss": 5.0, "grad_norm": 1.0, "queue_norm_min": 0.0, "queue_norm_max": 1.0}
        >>> len(Health(steps=9, warmup=1, clip_norm=None).look(1, row))
        1
        """
        row, said = {**values, "step": float(step)}, []
        for alarm, shown in list(self._shown.items()):
            if step <= max(self._limits.warmup, GRACE) and not alarm.early:
                continue
            shown.append(bool(alarm.shows(row, self._limits)))
            if len(shown) == alarm.rows and all(shown):
                said.append(f"step {step}: {alarm.says.format_map(row)}")
                del self._shown[alarm]
        return said
