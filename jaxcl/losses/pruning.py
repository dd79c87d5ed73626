"""When an engine prunes, and the law that says how much of it can be skipped."""

from __future__ import annotations

import math
from typing import NamedTuple

TILE_ELEMENTS = 1 << 19  # scores of a tile: 2 MiB of float32, near the size of a second-level cache
BLOCK = 4096  # columns: longer blocks make fewer merges and more sub-blocks, a tile of anchors must fit beside them
SUBBLOCKS = (4, 8, 16)  # columns of a sub-block
# What selections cost on a CPU, in scores that top-k reads and passes over (2.5 ns), fitted to 1 ≤ k ≤ 410
SORT = 5.0  # times k log₂ 2k: sorting k scores, and as much again for each factor e that rows are longer than k
PACKING = 1.3  # times as much for a row that is packed
TESTING = 40.0  # a block, for finding out which rows to pack
SPARE = 1.25  # scores let through, for each of k, where sifting still pays
PAYS = 1.4  # times as fast as without, predicted, before pruning is taken to pay


class Blocks(NamedTuple):
    """How the column engine goes through its columns.

    Attributes:
        block: new columns a block.
        width: columns a block reads: `block`, filled up to whole sub-blocks.
        prune: None, "rows" or "blocks", see `running`.
        sub: columns of a sub-block; 0 without.
        tile: anchors at once in the forward pass, a multiple of a strip.
        strip: anchors at once in the backward pass.
    """

    block: int
    width: int
    prune: str | None
    sub: int
    tile: int
    strip: int


def column_blocks(*, rows: int, strip: int, keys: int, queue: int, top_k: int | None, block_size: int | None) -> Blocks:
    """Blocks, tiles and pruning, from sizes alone.

    Args:
        rows: anchors of this device.
        strip: anchors that the backward pass would take at once.
        keys: negatives among keys.
        queue: queue rows.
        top_k: negatives kept; None: all, and nothing to prune.
        block_size: columns a block as asked for; None: near 4096 and even.

    Returns:
        Blocks.
    """
    longest = max(keys, queue)
    if block_size is None:
        block_size = -(-longest // -(-longest // BLOCK))
    block = min(block_size, longest)
    prune, sub = (None, 0) if top_k is None else pruning_for(keys + queue, block, top_k)
    width = -(-block // sub) * sub if sub else block
    fitting = 1 << max(min(TILE_ELEMENTS // width, 256).bit_length() - 1, 4)
    strip = min(strip, fitting)
    tile = strip * min(fitting // strip, -(-rows // strip))
    return Blocks(block, width, prune, sub, tile, strip)


def pruning_for(columns: int, block: int, top_k: int) -> tuple[str | None, int]:
    """The way that should take the least time, if it saves enough.

    Args:
        columns: of this device.
        block: columns a block.
        top_k: negatives kept.

    Returns:
        `Plan.prune` and `Plan.sub`.
    """
    blocks = -(-columns // block)
    plain = _cost(columns, blocks, top_k)
    packed = (1 - expected_skip_rate(columns, block, top_k)) * plain * PACKING + TESTING * blocks
    # k · w scores are copied after each block, and read in the end
    read, sort = top_k * (2 + blocks), SORT * top_k * math.log2(2 * top_k)
    best, sub = min((_cost(columns / w, blocks, top_k) + w * read + sort, w) for w in SUBBLOCKS)
    if PAYS * min(best, packed) > plain:
        return None, 0
    return ("rows", 0) if packed < best else ("blocks", sub)


def subblocks_for(columns: int, top_k: int) -> int:
    """Columns of a sub-block where the strip engine should sift, 0 where it should not.

    Of random scores C (1 − (1 − k/J)^{1/w}) reach the k-th largest of the J maxima; wider sub-blocks have fewer maxima
    to halve among, and let more scores through.

    Args:
        columns: of this device.
        top_k: negatives kept.

    Returns:
        `Plan.sub`.
    """
    for width in reversed(SUBBLOCKS):
        share = top_k * width / columns
        if share < 1 and columns * -math.expm1(math.log1p(-share) / width) <= SPARE * top_k:
            return width
    return 0


def _cost(elements: float, blocks: int, k: int) -> float:
    """A running selection of k out of so many in so many blocks."""
    growth = math.log(max(elements / k, 1))
    return elements + k * (blocks - 1) + SORT * k * math.log2(2 * k) * (blocks + growth)


def expected_skip_rate(n: int, block: int, k: int) -> float:
    """Share of (row, column block) pairs that hold none of the row's k largest so far, for columns in random order.

    Block j of J holds none of the k largest of the first j blocks with probability C((j − 1) b, k) / C(j b, k), about
    (1 − 1/j)^k; the rate is the mean over j. It counts whole blocks a row, as `stats.rows_skipped` does. Even a
    threshold known in advance, the row's final k-th score, could not skip more than (1 − 1/J)^k.

    The 89.1 % and 3.62 times of Xu 2026 count something else: with exchangeable columns a rate like that needs a small
    k over many blocks. It is reached where the order of the batch says who is similar, or where sub-blocks are counted:
    with the k-th largest of their maxima as threshold 1 − k/J of J sub-blocks are skipped.

    Args:
        n: columns.
        block: columns a block; the last may be shorter.
        k: scores kept.

    Returns:
        A rate in [0, 1].

    Raises:
        ValueError: an argument below 1.

    Example:
        >>> round(expected_skip_rate(2048, 128, 16), 3)
        0.147
    """
    for name, value in (("n", n), ("block", block), ("k", k)):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    ends = [min(end, n) for end in range(block, n + block, block)]
    skipped = (
        math.exp(_log_choose(before, k) - _log_choose(end, k))
        for before, end in zip([0, *ends], ends, strict=False)
        if before >= k
    )
    return sum(skipped) / len(ends)


def _log_choose(n: int, k: int) -> float:
    """Log of the number of ways to choose k of n."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
