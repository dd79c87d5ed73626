"""Benchmark rows as text: a section a size, the bar and a verdict in words beside each figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxcl.bench.rows import FASTER, MEMORY, TIME, Bar, Row

NAME, FIGURE, BAR = 36, 58, 15  # widths of columns
WORDS = {FASTER: "× as fast as", TIME: "× the time of", MEMORY: " of the memory of"}


def loss_table(rows: Iterable[Row]) -> str:
    """The whole table.

    Args:
        rows: those of one size share a heading, where the first of them stands.

    Returns:
        Several lines without a final newline.
    """
    sections: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        sections.setdefault((row.n, row.d), []).append(row)
    return "\n\n".join(f"N={n:,}, D={d}\n{_section(part)}" for (n, d), part in sections.items())


def verdict(row: Row) -> str:
    """Met or not met, in words.

    >>> row = Row("strip", 8, 2, 1, "float32", "forward", ratio=2.2, ratio_is=FASTER, bar=Bar(2.0, aim=2.5), met=True)
    >>> verdict(row)
    'met, the aim not'
    """
    if row.met is None:
        return "not judged"
    if not row.met:
        return "NOT MET"
    if row.bar is None or row.bar.aim is None or row.figure is None:
        return "met"
    return "met, and the aim" if row.bar.reaches_aim(row.figure) else "met, the aim not"


def count(rows: Sequence[Row]) -> str:
    """How many bars are met.

    Args:
        rows: of the table.

    Returns:
        One sentence.

    >>> count([])
    '0 bars met, 0 not met, 0 not judged.'
    """
    barred = [row.met for row in rows if row.bar is not None]
    return f"{barred.count(True)} bars met, {barred.count(False)} not met, {barred.count(None)} not judged."


def _section(rows: list[Row]) -> str:
    """Lines of one size; a program with several figures is named once."""
    lines = []
    before = ""
    for row in rows:
        program = f"{_name(row):<{NAME}}{_ms(row):>9}{_temp(row):>12}"
        note = f"{'' if row.note is None else f'({row.note})'}"
        figure = f"{_figure(row):<{FIGURE}}{_bar(row.bar, row.ratio_is):<{BAR}}{verdict(row) if row.bar else ''}"
        same = program == before
        lines.append(f"  {'' if same else program:<{NAME + 21}}  {figure.rstrip()}  {note}".rstrip())
        before = program
    return "\n".join(lines)


def _name(row: Row) -> str:
    """Name with what differs from float32, forward + backward."""
    more = ["bf16"] if row.dtype == "bfloat16" else []
    more += ["forward"] if row.work == "forward" and row.k is not None else []
    return ", ".join([row.name, *more])


def _ms(row: Row) -> str:
    """Time of a run."""
    return "" if row.ms is None else f"{row.ms:,.{0 if row.ms >= 100 else 2}f} ms"


def _temp(row: Row) -> str:
    """Temp memory."""
    return (
        "" if row.temp_bytes is None else f"{row.temp_bytes / 2**20:,.{0 if row.temp_bytes >= 100 << 20 else 2}f} MiB"
    )


def _figure(row: Row) -> str:
    """The ratio in words, small ones as a fraction."""
    if row.to is None or row.ratio_is is None:
        return ""
    if row.ratio is None:
        number = "–"
    else:
        number = f"1/{1 / row.ratio:.3g}" if row.ratio_is == MEMORY and row.ratio < 1 else f"{row.ratio:.2f}"
    return f"{number}{WORDS[row.ratio_is]} {row.to}"


def _bar(bar: Bar | None, kind: str | None) -> str:
    """The bound and the aim."""
    if bar is None:
        return ""

    def number(value: float) -> str:
        if kind is None:
            return f"{value / 2**20:.4g} MiB"
        return f"1/{1 / value:.0f}" if value < 1 else f"{value:.3g}"

    bound = f"≥ {number(bar.least)}" if bar.least is not None else f"≤ {number(bar.most or 0)}"
    return bound + (f", aim {number(bar.aim)}" if bar.aim is not None else "")
