"""Places of marked columns, found by counting bits: no sort, no scatter, no loop over columns."""

from __future__ import annotations

import contextlib

import jax.numpy as jnp
from jax import lax

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Bool, Int, UInt32

WORD = 32  # marks of a word
GROUP = 16  # words of a group
RUN = 512  # numbers that one triangle of ones sums up; a MiB


def places_of(marks: Bool[Array, "n c"], slots: int) -> tuple[Int[Array, "n s"], Int[Array, " n"]]:
    """Where the marks of each row are.

    Word w has the marks of columns w, w + W, w + 2W and so on of 32 W, which vector instructions collect. Mark j is in
    the word before which at most j marks are; in it, half of what is left is passed over where it holds too few.

    Args:
        marks: [N, C].
        slots: places wanted.

    Returns:
        Places [N, slots] in a fixed order that is not the columns', any place beyond the last mark; and how many marks
        there are, which may be more.

    >>> [x.tolist() for x in places_of(jnp.array([[False, True, True, False]]), 2)]
    [[[1, 2]], [2]]
    """
    words = _words(marks)
    counts, width = _ones(words), words.shape[1]
    through = _running_sum(counts)
    mark = jnp.arange(slots, dtype=jnp.int32)
    which = jnp.sum((through[:, GROUP - 1 :: GROUP, None] <= mark).astype(jnp.int32), axis=1) * GROUP
    for half in (8, 4, 2, 1):
        which = jnp.where(values_at(through, which + half - 1) <= mark, which + half, which)
    word = values_at(words, which)
    left, bit = mark - values_at(through, which) + _ones(word), jnp.zeros_like(which)
    for half in (16, 8, 4, 2, 1):
        lower = _ones((word >> bit.astype(jnp.uint32)) & jnp.uint32((1 << half) - 1))
        left, bit = jnp.where(left >= lower, left - lower, left), jnp.where(left >= lower, bit + half, bit)
    return bit * width + which, through[:, -1]


def values_at(array: Array, places: Int[Array, "n s"]) -> Array:
    """Values of each row at its places; the last one's for a place beyond.

    From the rows one after another, which takes XLA's CPU code less time and memory than rows side by side.

    Args:
        array: [N, C].
        places: at least 0.

    Returns:
        [N, S].

    >>> values_at(jnp.array([[1, 2, 3], [4, 5, 6]]), jnp.array([[2], [0]])).tolist()
    [[3], [4]]
    """
    rows, columns = array.shape
    first = columns * jnp.arange(rows, dtype=jnp.int32)[:, None]
    return jnp.take(array.reshape(-1), first + jnp.minimum(places, columns - 1), mode="clip")


def _running_sum(counts: Int[Array, "n w"]) -> Int[Array, "n w"]:
    """Sums of each row up to each column, below 2^24.

    By products with a triangle, of runs and then of what these sum to: the running sum of XLA's CPU code, and one
    triangle for all columns, take a time quadratic in the columns.
    """
    rows, width = counts.shape
    run = min(width, RUN)
    runs = jnp.pad(counts, ((0, 0), (0, -width % run))).reshape(rows, -1, run)
    triangle = jnp.triu(jnp.ones((run, run)))
    within = jnp.matmul(runs.astype(jnp.float32), triangle, precision=lax.Precision.HIGHEST).astype(jnp.int32)
    if width > run:
        sums = within[:, :, -1]
        within += (_running_sum(sums) - sums)[:, :, None]
    return within.reshape(rows, -1)[:, :width]


def _words(marks: Bool[Array, "n c"]) -> UInt32[Array, "n w"]:
    """Marks as bits of whole groups of words."""
    rows, columns = marks.shape
    filled = jnp.pad(marks, ((0, 0), (0, -columns % (WORD * GROUP)))).reshape(rows, WORD, -1)
    bit = jnp.uint32(1) << jnp.arange(WORD, dtype=jnp.uint32)
    return jnp.sum(jnp.where(filled, bit[:, None], jnp.uint32(0)), axis=1, dtype=jnp.uint32)


def _ones(words: UInt32[Array, "n w"]) -> Int[Array, "n w"]:
    """How many bits are set."""
    return lax.population_count(words).astype(jnp.int32)
