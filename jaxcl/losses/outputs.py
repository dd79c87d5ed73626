"""What a contrastive loss returns: a value for each query, and numbers about the selection."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import jax

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Bool, Float, Int


class Stats(NamedTuple):
    """Numbers about the candidates and the selection, without gradient.

    Counts are float32 scalars over all devices: at a million rows they exceed int32. Whole blocks a row and sub-blocks
    are two granularities, counted apart; where an engine does not prune by one, nothing is skipped there.

    Attributes:
        rows_tested: (row, column block) pairs that were looked at.
        rows_skipped: those among them whose selection was skipped as a whole.
        elements_selected: scores that went into a selection, those that a running selection carries along included; 0
            without `top_k`.
        subblocks_tested: (row, sub-block) pairs whose maximum was compared.
        subblocks_skipped: those among them none of whose scores went into a selection.
        maxima_selected: maxima of sub-blocks that went into a selection of sub-blocks, carried ones included; not in
            `elements_selected`.
        hardest: largest score of a negative, cosine / temperature, [N] float32; −inf without a negative.
        kth: score of the k-th most similar negative that `skip_hardest` leaves, [N] float32; −inf without `top_k` or
            with fewer negatives than k.
        tail_mass: softmax mass of the negatives that `top_k` and `skip_hardest` left out, in [0, 1], [N] float32.
        positives: |P| of each query, [N] int32.
        negatives: |Neg| of each query, before `top_k` and without those that `skip_hardest` leaves out, [N] int32.
        nonfinite: keys and valid queue rows that hold a NaN or an infinity, int32 scalar.
    """

    rows_tested: Float[Array, ""]
    rows_skipped: Float[Array, ""]
    elements_selected: Float[Array, ""]
    subblocks_tested: Float[Array, ""]
    subblocks_skipped: Float[Array, ""]
    maxima_selected: Float[Array, ""]
    hardest: Float[Array, " n"]
    kth: Float[Array, " n"]
    tail_mass: Float[Array, " n"]
    positives: Int[Array, " n"]
    negatives: Int[Array, " n"]
    nonfinite: Int[Array, ""]


PER_ROW = frozenset({"hardest", "kth", "tail_mass", "positives", "negatives"})  # of Stats; the others are scalars


class InfoNCEOutput(NamedTuple):
    """The loss of each query.

    Attributes:
        loss: [N] float32, 0 where a query has no positive.
        valid: [N] bool, False where a query has no positive; the mean is Σ loss / Σ valid.
        stats: numbers about the selection.
    """

    loss: Float[Array, " n"]
    valid: Bool[Array, " n"]
    stats: Stats


def without_gradient(stats: Stats) -> Stats:
    """The same numbers, cut from the graph."""
    return jax.tree.map(jax.lax.stop_gradient, stats)
