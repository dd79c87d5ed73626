"""The columns that anchors are compared with: normalised keys, then queue rows as they are stored.

A half-precision queue is read in panels, normalised in float32 inside, so that no float32 copy of it need exist.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from jaxcl.losses.arguments import Bank
from jaxcl.losses.normalise import is_finite, normalise

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Bool, Float, Int

PANEL = 8192  # queue rows read at once: 4 MiB in float32 at 128 dimensions


class Columns(NamedTuple):
    """Candidates and what each belongs to.

    Attributes:
        keys: [M, D] float32, normalised; None where keys are not negatives.
        queue: [K, D], any float dtype, not normalised; None without a queue.
        groups: [M + K] int32, below 0 for no group.
        candidate: [M + K] bool, False for padding and unfilled rows.
    """

    keys: Float[Array, "m d"] | None
    queue: Float[Array, "q d"] | None
    groups: Int[Array, " c"]
    candidate: Bool[Array, " c"]

    @property
    def offset(self) -> int:
        """Number of the first queue column."""
        return 0 if self.keys is None else self.keys.shape[0]


def dot(left: Float[Array, "a d"], right: Float[Array, "d c"]) -> Float[Array, "a c"]:
    """A float32 product that GPUs and TPUs do not round to fewer bits."""
    return jnp.matmul(left, right, precision=lax.Precision.HIGHEST)


def scores_of(anchors: Float[Array, "b d"], columns: Columns) -> Float[Array, "b c"]:
    """Products of anchors with every column."""
    parts = [] if columns.keys is None else [dot(anchors, columns.keys.T)]
    if columns.queue is not None:
        parts += _queue_scores(anchors, columns.queue, columns.candidate[columns.offset :])
    return jnp.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]


def weighted_sum(weights: Float[Array, "b c"], columns: Columns) -> Float[Array, "b d"]:
    """Σ_j weights_ij · column_j."""
    parts = [] if columns.keys is None else [dot(weights[:, : columns.offset], columns.keys)]
    if columns.queue is not None:
        parts.append(_queue_sum(weights[:, columns.offset :], columns.queue, columns.candidate[columns.offset :]))
    return sum(parts[1:], parts[0])


def gather_rows(columns: Columns, numbers: Int[Array, "*n"]) -> Float[Array, "*n d"] | None:
    """The columns of given numbers, normalised; any row for a number outside."""
    keys = None if columns.keys is None else columns.keys[jnp.minimum(numbers, columns.offset - 1)]
    if columns.queue is None:
        return keys
    place = jnp.clip(numbers - columns.offset, 0, columns.queue.shape[0] - 1)
    queued = _real_rows(columns.queue[place], columns.candidate[columns.offset + place])
    return queued if keys is None else jnp.where((numbers < columns.offset)[..., None], keys, queued)


def count_nonfinite(keys: Float[Array, "m d"], bank: Bank | None) -> Int[Array, ""]:
    """Keys and valid queue rows that cannot be normalised, int32 scalar."""
    bad = jnp.sum(~is_finite(keys), dtype=jnp.int32)
    return bad if bank is None else bad + jnp.sum(bank.valid & ~is_finite(bank.values), dtype=jnp.int32)


def _real_rows(rows: Float[Array, "... d"], real: Bool[Array, ...]) -> Float[Array, "... d"]:
    """Queue rows normalised, zero where they do not count, whatever they hold."""
    return jnp.where(real[..., None], normalise(rows), 0.0)


def _panel(queue: Array, real: Array, start: Array | int, length: int) -> Float[Array, "p d"]:
    """Rows [start, start + length) of the queue, ready to multiply."""
    return _real_rows(lax.dynamic_slice_in_dim(queue, start, length), lax.dynamic_slice_in_dim(real, start, length))


def _queue_scores(anchors: Float[Array, "b d"], queue: Array, real: Array) -> list[Float[Array, "b _"]]:
    """Products with the whole panels as one array, and with the rest."""
    whole, rest = divmod(queue.shape[0], PANEL)
    parts = []
    if whole:
        scores = lax.map(lambda j: dot(anchors, _panel(queue, real, j * PANEL, PANEL).T), jnp.arange(whole))
        parts.append(jnp.moveaxis(scores, 0, 1).reshape(anchors.shape[0], -1))
    if rest:
        parts.append(dot(anchors, _panel(queue, real, whole * PANEL, rest).T))
    return parts


def _queue_sum(weights: Float[Array, "b q"], queue: Array, real: Array) -> Float[Array, "b d"]:
    """Σ_j weights_ij · queue_j, a panel at a time."""
    whole, rest = divmod(queue.shape[0], PANEL)

    def add(j: Array | int, total: Array, length: int) -> Array:
        part = lax.dynamic_slice_in_dim(weights, j * PANEL, length, axis=1)
        return total + dot(part, _panel(queue, real, j * PANEL, length))

    total = jnp.zeros((weights.shape[0], queue.shape[1]))
    if whole:
        total = lax.fori_loop(0, whole, lambda j, total: add(j, total, PANEL), total)
    return add(whole, total, rest) if rest else total
