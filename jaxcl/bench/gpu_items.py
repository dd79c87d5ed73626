"""What the GPU table consists of: sizes, programs, and the order in which they are measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import jax

from jaxcl.bench.measure import Program, compile_program
from jaxcl.bench.programs import ENGINES, Variant, arguments_of, embeddings, function_of
from jaxcl.bench.selection import row_maximum_in_strips, select_in_strips, selections

FLOOR = "GEMM, scores written and read"


@dataclass(frozen=True)
class Sizes:
    """How large the table is.

    Attributes:
        n: embeddings, ascending.
        d: dimensions.
        k: negatives kept.
        own_k: those at which the engines' own blocks, made for a processor's cache, are measured too.
        peak: rows and columns of the square product.
        strip_elements: scores of a wide strip.
        dtypes: of the embeddings.
    """

    n: tuple[int, ...]
    d: int
    k: tuple[int, ...]
    own_k: tuple[int, ...]
    peak: int
    strip_elements: int
    dtypes: tuple[str, ...]


FULL = Sizes((8192, 32768, 65536), 512, (16, 64, 128, 256), (64,), 8192, 1 << 28, ("bfloat16", "float32"))
DRY = Sizes((64,), 8, (4,), (), 64, 1 << 11, ("bfloat16",))


@dataclass(frozen=True)
class Item:
    """One program of the table.

    Attributes:
        what: "loss" or "selection".
        name: an engine, a way to select, or `FLOOR`.
        n: embeddings.
        d: dimensions.
        k: negatives kept; None: all.
        dtype: of the embeddings.
        block: rows a strip; None: the engine chooses.
        backward: with the gradient.
    """

    what: str
    name: str
    n: int
    d: int
    k: int | None
    dtype: str
    block: int | None = None
    backward: bool = False

    @property
    def group(self) -> str:
        """What it is measured beside."""
        return "engines" if self.what == "loss" else "ways to select"

    @property
    def label(self) -> str:
        """A line for people."""
        selected = "" if self.name == FLOOR else ", all negatives" if self.k is None else f", top {self.k}"
        work = "forward + backward" if self.backward else "forward"
        return f"{self.name}{selected}, N={self.n}, {self.dtype}, block {self.block or 'its own'}, {work}"

    @property
    def flops(self) -> int | None:
        """Those that count: 2N²D of a forward pass, 8N²D of both over all negatives; None: not defined."""
        if self.backward:
            return 8 * self.n**2 * self.d if self.k is None else None
        return 2 * self.n**2 * self.d

    def program(self) -> Program:
        """Compiles it."""
        if self.what == "loss":
            variant = Variant(self.name, self.n, self.d, self.k, self.dtype, False, self.backward, self.block)
            return compile_program(function_of(variant), *arguments_of(variant))
        z = embeddings(self.n, self.d, self.dtype)
        assert self.block is not None
        if self.name == FLOOR:
            return compile_program(partial(row_maximum_in_strips, block=self.block), z)
        assert self.k is not None
        way = selections(jax.default_backend())[self.name]
        return compile_program(
            partial(select_in_strips, select=way.select, k=self.k, block=self.block), z, options=dict(way.options)
        )


def batches(sizes: Sizes) -> Iterator[list[Item]]:
    """What is compiled together and timed in alternating rounds; the most telling first, ascending in N within a dtype.

    Args:
        sizes: of the table.

    Yields:
        Programs of one N and dtype.
    """
    for dtype in sizes.dtypes:
        for n in sizes.n:
            yield _losses(sizes, n, dtype)
        for n in sizes.n:
            yield _selections(sizes, n, dtype)


def wide_block(sizes: Sizes, n: int) -> int:
    """Rows of a wide strip: a power of two, at most N.

    >>> wide_block(FULL, 65536)
    4096
    """
    return 1 << (max(min(sizes.strip_elements // n, n), 1).bit_length() - 1)


def _losses(sizes: Sizes, n: int, dtype: str) -> list[Item]:
    """Every engine: over all negatives with its gradient, and at each k forward and both."""
    items = [Item("loss", "dense", n, sizes.d, None, dtype, backward=True)]
    for name in ENGINES:
        if name == "dense":
            continue
        item = Item("loss", name, n, sizes.d, None, dtype, wide_block(sizes, n), backward=True)
        own = replace(item, block=None)
        if "tail" in ENGINES[name].options:
            items += [replace(i, k=k) for i, k in ((item, sizes.k[0]), *((own, k) for k in sizes.own_k))]
            continue
        items += [item, *_at_each_k(item, sizes.k)]
        if sizes.own_k:
            items += [own, *_at_each_k(own, sizes.own_k)]
    return items


def _at_each_k(item: Item, several: tuple[int, ...]) -> list[Item]:
    """Forward, and both passes."""
    return [replace(item, k=k, backward=both) for k in several for both in (False, True)]


def _selections(sizes: Sizes, n: int, dtype: str) -> list[Item]:
    """Every way to select at each k, and the product without a selection."""
    block = wide_block(sizes, n)
    ways = selections(jax.default_backend())
    floor = Item("selection", FLOOR, n, sizes.d, None, dtype, block)
    return [floor, *(Item("selection", name, n, sizes.d, k, dtype, block) for k in sizes.k for name in ways)]
