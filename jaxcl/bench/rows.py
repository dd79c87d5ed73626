"""One figure of a table, the bar it is held against, and whether it is met."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from jaxcl.bench.measure import Measured
from jaxcl.bench.programs import Variant

FASTER, TIME, MEMORY = "times as fast as", "times the time of", "of the temp memory of"


@dataclass(frozen=True)
class Bar:
    """A bound on a ratio or on bytes.

    Attributes:
        least: the smallest that will do.
        most: the largest that will do.
        aim: what would be better still, on the same side.
    """

    least: float | None = None
    most: float | None = None
    aim: float | None = None

    def is_met(self, value: float) -> bool:
        """Whether a figure keeps the bound, which may be reached exactly.

        >>> Bar(least=2.0).is_met(2.0), Bar(most=1 / 35).is_met(1 / 34)
        (True, False)
        """
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def reaches_aim(self, value: float) -> bool:
        """Whether a figure is as good as was hoped for."""
        if self.aim is None:
            return False
        return value >= self.aim if self.least is not None else value <= self.aim


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        name: what was measured.
        n: embeddings.
        d: dimensions.
        k: negatives kept a row; None: all, or none are kept.
        dtype: of the embeddings.
        work: "forward + backward", "forward".
        ms: median milliseconds; None: only compiled.
        temp_bytes: scratch memory of the compiled program.
        loss: the mean loss, to see that all compute the same.
        ratio: against `to`; None: the figure is `ms` or `temp_bytes` itself.
        ratio_is: `FASTER`, `TIME` or `MEMORY`.
        to: name of the other.
        bar: None: the figure stands for itself.
        met: None without a bar, or at a size for which the bar was not made.
        note: what a reader must know.
    """

    name: str
    n: int
    d: int
    k: int | None
    dtype: str
    work: str
    ms: float | None = None
    temp_bytes: int | None = None
    loss: float | None = None
    ratio: float | None = None
    ratio_is: str | None = None
    to: str | None = None
    bar: Bar | None = None
    met: bool | None = None
    note: str | None = None

    @property
    def figure(self) -> float | None:
        """What the bar is held against."""
        return self.ratio if self.ratio_is else self.temp_bytes

    def as_json(self) -> dict[str, Any]:
        """Plain values, sizes under their usual letters.

        >>> Row("strip", 8, 2, None, "float32", "forward").as_json()["N"]
        8
        """
        fields = {**asdict(self), "N": self.n, "D": self.d}
        return {name: fields[name] for name in ("name", "N", "D", *fields) if name not in ("n", "d")}


def row_of(variant: Variant, found: Measured, **more: Any) -> Row:
    """A figure that is compared with nothing.

    Args:
        variant: what was measured.
        found: its measurement.
        **more: other attributes of `Row`, instead of the variant's.

    Returns:
        A row.
    """
    fields = dict(name=variant.name, n=variant.n, d=variant.d, k=variant.k, dtype=variant.dtype, work=variant.work)
    return Row(**{**fields, "ms": found.ms, "temp_bytes": found.temp_bytes, "loss": found.value, **more})


def ratio_of(kind: str, own: Measured, other: Measured) -> float:
    """The ratio that a kind of comparison means.

    Args:
        kind: `FASTER`, `TIME` or `MEMORY`.
        own: of the row.
        other: what it is compared with.

    Returns:
        Above 1 is good for `FASTER`, below 1 for the others.

    >>> ratio_of(FASTER, Measured(2.0, None), Measured(6.0, None))
    3.0
    """
    if kind == MEMORY:
        assert own.temp_bytes is not None
        assert other.temp_bytes
        return own.temp_bytes / other.temp_bytes
    assert own.ms
    assert other.ms
    return other.ms / own.ms if kind == FASTER else own.ms / other.ms


def compared(row: Row, kind: str, own: Measured, other: Measured, to: str, bar: Bar | None = None) -> Row:
    """A row with its ratio.

    Args:
        row: what was measured.
        kind: `FASTER`, `TIME` or `MEMORY`.
        own: of the row.
        other: what it is compared with.
        to: name of the other.
        bar: for the ratio.

    Returns:
        A new row.
    """
    ratio = ratio_of(kind, own, other)
    return replace(row, ratio=ratio, ratio_is=kind, to=to, bar=bar, met=None if bar is None else bar.is_met(ratio))
