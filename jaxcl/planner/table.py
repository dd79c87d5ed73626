"""A plan as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxcl.config import batch_line
from jaxcl.planner.fit import Fit
from jaxcl.planner.parts import PARTS
from jaxcl.planner.plan import Row
from jaxcl.planner.savings import Savings
from jaxcl.planner.targets import Target

UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
SLOW = 600  # seconds of a step above which it is said


def size(count: float) -> str:
    """Bytes for people.

    >>> size(3 << 30), size(1536)
    ('3.00 GiB', '1.5 KiB')
    """
    for unit, bytes_ in UNITS:
        if abs(count) >= bytes_:
            return f"{count / bytes_:.2f} {unit}" if unit == "GiB" else f"{count / bytes_:.1f} {unit}"
    return f"{count:.0f} B"


def plan_table(rows: Sequence[Row], target: Target, notes: Sequence[str]) -> str:
    """Rows as text.

    Args:
        rows: of one config.
        target: that they were planned for.
        notes: sentences that stand first.

    Returns:
        Several lines without a final newline.
    """
    blocks = [*(f"note: {note}" for note in notes), _head(rows[0], target)]
    return "\n\n".join(["\n".join(blocks), *(_block(row, target) for row in rows)])


def savings_text(savings: Savings, seconds: float) -> str:
    """The settings that would save most.

    Args:
        savings: what was found.
        seconds: that were given to it.

    Returns:
        Several lines.
    """
    if not savings.tried and savings.left:
        return (
            f"no time was left to try settings that save memory: more than --seconds={seconds:g} tries {savings.left}"
        )
    tried = f"{savings.tried} compiled"
    tried += f", {savings.left} more not tried within --seconds={seconds:g}" if savings.left else ""
    if not savings.best:
        return f"no setting that would save memory was found ({tried})"
    lines = [f"what would save most ({tried}):"]
    return "\n".join([*lines, *(f"  −{size(one.saved_bytes):<10} {one.flags}" for one in savings.best)])


def fit_text(fit: Fit, views: int, limit: int, target: Target) -> str:
    """The largest batch that fits.

    Args:
        fit: what was found.
        views: embeddings of an image.
        limit: bytes of a device.
        target: that it fits on.

    Returns:
        A line or two.
    """
    where = f"{size(limit)} of {target.name}"
    if fit.size is None:
        return f"not even the smallest batch fits into {where} ({fit.tries} compiled)"
    larger = f"{fit.step} images more do not ({fit.tries} compiled)"
    return (
        f"the largest batch that fits into {where}: {views * fit.size} embeddings; {larger}\n"
        f"  --config.batch.size={fit.size}"
    )


def as_json(row: Row, target: Target, notes: Sequence[str], savings: Savings | None, fit: Fit | None) -> dict[str, Any]:
    """A row as JSON holds it.

    Args:
        row: planned.
        target: that it was planned for.
        notes: sentences.
        savings: None: not looked for.
        fit: None: not looked for.

    Returns:
        Plain values; `peak_bytes` is null where the compiler refused the program.
    """
    return dict(
        embeddings=row.embeddings,
        images=row.config.batch.size,
        target=target.name,
        backend=target.kind,
        devices=row.devices,
        peak_bytes=row.peak_bytes,
        peak_program=row.peak_program,
        limit_bytes=row.limit_bytes,
        memory_bytes=target.memory_bytes,
        host_bytes=row.host_bytes,
        fits=row.fits,
        reason=row.reason,
        parts=row.parts,
        programs=[program._asdict() for program in row.programs],
        flops=row.flops,
        seconds_at_least=row.seconds,
        savings=None if savings is None else [dict(saving._asdict(), flags=saving.flags) for saving in savings.best],
        fit=None if fit is None else fit._asdict(),
        notes=list(notes),
    )


def _head(row: Row, target: Target) -> str:
    """The run and the device."""
    config, many = row.config, f"{row.devices} devices, bytes of one" if row.devices > 1 else "1 device"
    what = f"{config.method}, {config.model.encoder}, {config.data.image_size} px, {config.model.dtype}"
    what += f", lora.rank = {config.lora.rank}" if config.lora.rank else ""
    share = f"{target.share:.0%} of {size(target.memory_bytes)}"
    share += ", what JAX reserves (XLA_PYTHON_CLIENT_MEM_FRACTION)" if target.rates and target.share < 1 else ""
    return f"{what}\n{target.name}, {many}; limit {size(target.limit_bytes)}: {share}"


def _block(row: Row, target: Target) -> str:
    """One row: its batch, parts, programs and time."""
    lines = [f"N = {row.embeddings:,} embeddings; {batch_line(row.config)}", ""]
    if row.peak_bytes is None:
        lines.append(f"does not fit: {row.reason}")
    else:
        verdict = "fits" if row.fits else f"does not fit: {size(row.peak_bytes - row.limit_bytes)} too much"
        lines.append(f"  {'peak, a device':<28}{size(row.peak_bytes):>12}   {verdict}")
        lines += [_part(row, part) for part in PARTS if row.parts[part]]
    lines.append(f"  {'host':<28}{size(row.host_bytes):>12}   batches read ahead, and what waits there")
    lines += ["", f"  {'program':<12}{'calls':>8}{'temp':>12}{'arguments':>12}{'beside':>12}{'peak':>12}{'TFLOP':>11}"]
    lines += [_program(program) for program in row.programs]
    return "\n".join([*lines, "", _time(row, target)])


def _part(row: Row, part: str) -> str:
    """A line of the parts."""
    one, said = len(row.programs) == 1, ""
    if part == "similarity_and_selection" and one:
        said = "   the loss compiled alone"
    elif part == "activations":
        said = "   what remains of the step's scratch" if one else f"   scratch of {row.peak_program}"
        said = said if one or row.peak_program in ("encode", "replay") else ""
    return f"    {part.replace('_', ' '):<26}{size(row.parts[part]):>12}{said}"


def _program(program: Any) -> str:
    """A line of the programs."""
    if program.reason:
        return f"  {program.name:<12}{program.calls:>8g}   {program.reason}"
    sizes = (program.temp_bytes, program.argument_bytes, program.other_bytes, program.peak_bytes)
    figures = "".join(f"{size(value):>12}" for value in sizes)
    return f"  {program.name:<12}{program.calls:>8g}{figures}{program.flops / 1e12:>11.3f}"


def _time(row: Row, target: Target) -> str:
    """Operations and seconds of a step."""
    work = f"a step: {row.flops / 1e12:,.3f} TFLOP"
    if row.seconds is None:
        return f"{work}; no public rates for {target.name}"
    slow = ""
    if row.seconds > SLOW:
        slow = f"\nwarning: a step takes {row.seconds / 60:,.0f} minutes or more; is a batch so large worth it?"
    return f"{work}, at least {row.seconds:.3g} s at public rates; two to three times that is usual{slow}"
