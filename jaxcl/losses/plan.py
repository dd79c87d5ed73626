"""The static choices of a streamed loss, made from shapes before anything is traced."""

from __future__ import annotations

from typing import NamedTuple

STRIP_ELEMENTS = 1 << 21  # scores of one strip: 8 MiB of float32, that a last-level cache holds
GATHER_ELEMENTS = 1 << 18  # gathered floats of one backward chunk: 1 MiB
SCATTER_ELEMENTS = 1 << 16  # on a CPU, floats added to keys in one go: 256 KiB, which one core's cache holds
GATHER_BYTES = 1 << 26  # anchors of all devices held at once; above it a ring passes one device's share along
WIDE = 8  # gathering a column costs as much as this many columns of a whole product (measured on a CPU)


class Plan(NamedTuple):
    """What the compiled program depends on besides shapes.

    Attributes:
        rows: anchors of this device, without padding.
        strip: anchors a strip.
        top_k: negatives selected a row; None: all.
        samples: tail negatives drawn a row; 0: the tail is dropped.
        draws: numbers drawn a row, of which the first `samples` that hit the tail are used.
        exclude_diagonal: query i and key i are the same thing.
        use_key_negatives: whether keys are negatives at all.
        same: queries and keys are one array.
        same_groups: so are their groups.
        single: each query has at most one positive, named by position.
        dimensions: of an embedding.
        columns: candidates on all devices, the static bound.
        devices: over which rows and columns are spread.
        axis: name of the mesh axis over which they are; None on one device.
        transport: how anchors meet the columns of other devices: "gather", "anchors" or "columns" (a ring); None on
            one device.
        impl: engine of the forward pass, "strip" or "column".
        tile: anchors at once in the forward pass: a strip, or several of them.
        block: new columns a block of the column engine; 0 in the other.
        width: columns a block reads: whole sub-blocks.
        prune: how the column engine prunes its selection: None, "rows" or "blocks".
        sub: columns of a sub-block, with which the strip engine too selects on a CPU; 0 without.
        skip: of the selected, the most that a row leaves out in the end, as its most similar ones.
        skip_share: of its negatives, how many it leaves out.
        met: whether anchors have met columns before, which are nowhere here.
    """

    rows: int
    strip: int
    top_k: int | None
    samples: int
    draws: int
    exclude_diagonal: bool
    use_key_negatives: bool
    same: bool
    same_groups: bool
    single: bool
    dimensions: int
    columns: int
    devices: int
    axis: str | None
    transport: str | None
    impl: str
    tile: int
    block: int = 0
    width: int = 0
    prune: str | None = None
    sub: int = 0
    skip: int = 0
    skip_share: float = 0.0
    met: bool = False

    @property
    def selected(self) -> int:
        """Columns that each row's gradient looks at, unless it looks at all."""
        return (self.top_k or 0) - self.skip + self.samples

    @property
    def whole(self) -> bool:
        """Whether so many columns are selected that whole products cost less than gathering them."""
        return self.top_k is None or self.selected * WIDE > self.columns

    @property
    def keeps_scores(self) -> bool:
        """Whether the scores of the selected columns are kept for the backward pass, as many bytes as their numbers.

        Not where they would take more than the anchors do, nor over several devices, where they would travel with them.
        """
        return not self.whole and self.axis is None and self.selected <= self.dimensions

    @property
    def symmetric(self) -> bool:
        """Whether every score is needed and s_ij is s_ji, on one device."""
        alike = self.same and self.same_groups and not self.single
        return alike and self.use_key_negatives and self.top_k is None and self.axis is None


def strip_size(rows: int, columns: int, dimensions: int, block_size: int | None) -> int:
    """Anchors a strip: as asked for, or a power of two that keeps a strip's scores near 8 MiB.

    Near 4 MiB where the columns themselves take no more: then the strip would be most of what there is. At least 64,
    because a product of fewer rows spends its time on reading the columns; at most 256.

    >>> strip_size(8192, 8192, 128, None), strip_size(8192, 8192, 512, None)
    (128, 256)
    """
    if block_size is None:
        elements = min(max(columns * dimensions, STRIP_ELEMENTS // 2), STRIP_ELEMENTS)
        fitting = max(elements // columns, 1)
        block_size = min(max(1 << (fitting.bit_length() - 1), 64), 256)
    return min(block_size, rows)


def divisor_below(number: int, bound: int) -> int:
    """The largest divisor of a number that is not above a bound; at least 1.

    >>> divisor_below(12, 5)
    4
    """
    return max(c for c in range(1, number + 1) if number % c == 0 and c <= max(bound, 1))


def draws_for(samples: int, top_k: int, columns: int) -> int:
    """Columns to draw so that about `samples` of them lie in the tail: a quarter more than expected, and 16.

    Bounded by 8 times the samples: where nearly every column is selected, the tail weighs little.
    """
    share = max(1 - top_k / columns, 1 / 8)
    return min(int(1.25 * samples / share) + 16, 8 * samples + 16)


def transport_for(
    *, devices: int, rows: int, keys: int, queue: int, selected: int, dimensions: int, queue_bytes: int
) -> str:
    """How anchors meet the columns of other devices.

    Gather while the anchors of all devices and what is found for them are small: one collective each way. Else a ring,
    in which the side with fewer bytes travels.

    Args:
        devices: along the axis.
        rows: anchors a device.
        keys: keys a device.
        queue: queue rows a device.
        selected: columns kept for an anchor.
        dimensions: of an embedding.
        queue_bytes: of one stored number of the queue.

    Returns:
        "gather", "anchors" or "columns".
    """
    anchors = rows * (4 * dimensions + 8 * selected)
    if devices * anchors <= GATHER_BYTES:
        return "gather"
    return "anchors" if anchors < dimensions * (4 * keys + queue_bytes * queue) else "columns"
