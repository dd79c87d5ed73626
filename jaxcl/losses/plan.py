"""The static choices of a streamed loss, made from shapes before anything is traced."""

from __future__ import annotations

from typing import NamedTuple

STRIP_ELEMENTS = 1 << 20  # scores of one strip: 4 MiB of float32, near the size of a last-level cache
GATHER_ELEMENTS = 1 << 19  # gathered floats of one backward chunk


class Plan(NamedTuple):
    """What the compiled program depends on besides shapes.

    Attributes:
        rows: anchors without padding.
        strip: anchors a strip.
        top_k: negatives kept a row; None: all.
        exclude_diagonal: query i and key i are the same thing.
        use_key_negatives: whether keys are negatives at all.
        same: queries and keys are one array.
        single: each query has at most one positive, named by position.
    """

    rows: int
    strip: int
    top_k: int | None
    exclude_diagonal: bool
    use_key_negatives: bool
    same: bool
    single: bool


def strip_size(rows: int, columns: int, block_size: int | None) -> int:
    """Anchors a strip: as asked for, or a power of two in [16, 256] that keeps a strip's scores near 4 MiB."""
    if block_size is None:
        fitting = max(STRIP_ELEMENTS // columns, 1)
        block_size = min(max(1 << (fitting.bit_length() - 1), 16), 256)
    return min(block_size, rows)


def gather_chunk(strip: int, top_k: int, dimensions: int) -> int:
    """Anchors whose selected columns are gathered at once: the largest divisor of the strip within the bound."""
    bound = max(GATHER_ELEMENTS // (top_k * dimensions), 1)
    return max(c for c in range(1, strip + 1) if strip % c == 0 and c <= bound)


def is_wide(top_k: int, columns: int) -> bool:
    """Whether so many columns are selected that whole products cost less than gathering them (measured on a CPU)."""
    return top_k * 16 > columns
