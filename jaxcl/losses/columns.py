"""The columns that anchors are compared with: normalised keys, then queue rows as they are stored.

A half-precision queue is read in panels, normalised in float32 inside, so that no float32 copy of it need exist.
Columns have a number over all devices, keys before queue, and a place on the device that holds them.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcl.losses.arguments import Bank
from jaxcl.losses.normalise import inverse_norm, is_finite, normalise
from jaxcl.losses.varying import full_like

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Bool, Float, Int

PANEL = 8192  # queue rows read at once: 4 MiB in float32 at 128 dimensions
NOTHING = np.int32(2**31 - 1)  # the number of no column
TOGETHER = 16  # gathered rows added in one go: a running sum is read and written once for so many


class Columns(NamedTuple):
    """Candidates of one device and what each belongs to.

    Attributes:
        keys: [M, D] float32, normalised; None where keys are not negatives.
        queue: [K, D], any float dtype, not normalised; None without a queue.
        groups: [M + K] int32, below 0 for no group.
        candidate: [M + K] bool, False for padding and unfilled rows.
        key_start: number of its first key.
        key_count: its keys without padding.
        queue_start: number of its first queue row.
    """

    keys: Float[Array, "m d"] | None
    queue: Float[Array, "q d"] | None
    groups: Int[Array, " c"]
    candidate: Bool[Array, " c"]
    key_start: Int[Array, ""]
    key_count: Int[Array, ""]
    queue_start: Int[Array, ""]

    @property
    def offset(self) -> int:
        """Place of the first queue column."""
        return 0 if self.keys is None else self.keys.shape[0]

    @property
    def dimensions(self) -> int:
        """Of an embedding."""
        held = self.queue if self.keys is None else self.keys
        assert held is not None  # there are keys or a queue
        return held.shape[1]

    @property
    def size(self) -> int:
        """Columns of this device, padding included."""
        return self.groups.shape[0]


def number_of(columns: Columns, place: Int[Array, "*n"]) -> Int[Array, "*n"]:
    """Global number of the column at a place."""
    of_queue = columns.queue_start + place - columns.offset
    return of_queue if columns.keys is None else jnp.where(place < columns.offset, columns.key_start + place, of_queue)


def place_of(columns: Columns, number: Int[Array, "*n"]) -> Int[Array, "*n"]:
    """Place of a global number on this device; `size` where it lies elsewhere."""
    none = columns.size
    place = jnp.full_like(number, none)
    if columns.queue is not None:
        row = number - columns.queue_start
        place = jnp.where((row >= 0) & (row < columns.queue.shape[0]), columns.offset + row, none)
    if columns.keys is not None:
        row = number - columns.key_start
        place = jnp.where((row >= 0) & (row < columns.key_count), row, place)
    return place


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


def queue_norms(columns: Columns) -> Float[Array, " q"] | None:
    """What normalises each row of the queue, float32; None without a queue."""
    return None if columns.queue is None else inverse_norm(columns.queue)[:, 0]


def gather_rows(columns: Columns, place: Int[Array, "*n"], norms: Float[Array, " q"] | None) -> Float[Array, "*n d"]:
    """The columns at given places, normalised; any row for a place outside.

    Args:
        columns: of this device.
        place: of each row.
        norms: `queue_norms` of the columns: taken once, because a row's norm is a sum that its reader would wait for.

    Returns:
        Rows.
    """
    keys = None if columns.keys is None else _take(columns.keys, jnp.minimum(place, columns.offset - 1))
    if columns.queue is None or norms is None:
        assert keys is not None  # there are keys or a queue
        return keys
    row = jnp.clip(place - columns.offset, 0, columns.queue.shape[0] - 1)
    unit = _take(columns.queue, row).astype(jnp.float32) * _take(norms, row)[..., None]
    queued = jnp.where(_take(columns.candidate, columns.offset + row)[..., None], unit, 0.0)
    return queued if keys is None else jnp.where((place < columns.offset)[..., None], keys, queued)


def weighted_rows(
    weights: Float[Array, "b k"], columns: Columns, place: Int[Array, "b k"], norms: Float[Array, " q"] | None
) -> Float[Array, "b d"]:
    """Σ_c weights_ic · the column at place_ic, with no array of the gathered rows.

    Args:
        weights: 0 for places outside.
        columns: of this device.
        place: [b, k].
        norms: `queue_norms` of the columns.

    Returns:
        A sum for each row of weights.
    """
    width = place.shape[1]
    turns = -(-width // TOGETHER)
    some = -(-width // turns)
    weights = jnp.pad(weights, ((0, 0), (0, turns * some - width)))
    place = jnp.pad(place, ((0, 0), (0, turns * some - width)), mode="edge")  # a row that is read anyway

    def add(j: Array | int, total: Array) -> Array:
        part = lax.dynamic_slice_in_dim(weights, j * some, some, axis=1)
        where = lax.dynamic_slice_in_dim(place, j * some, some, axis=1)
        for c in range(some):
            total += part[:, c, None] * gather_rows(columns, where[:, c], norms)
        return total

    return lax.fori_loop(0, turns, add, full_like(weights, (weights.shape[0], columns.dimensions), 0.0))


def count_nonfinite(keys: Float[Array, "m d"], bank: Bank | None) -> Int[Array, ""]:
    """Keys and valid queue rows that cannot be normalised, int32 scalar."""
    bad = jnp.sum(~is_finite(keys), dtype=jnp.int32)
    return bad if bank is None else bad + jnp.sum(bank.valid & ~is_finite(bank.values), dtype=jnp.int32)


def _take(array: Array, row: Int[Array, "*n"]) -> Array:
    """Rows that are there: without a check of bounds, reading one and what follows are one loop on every backend."""
    return array.at[row].get(mode="promise_in_bounds")


def _real_rows(rows: Float[Array, "... d"], real: Bool[Array, ...]) -> Float[Array, "... d"]:
    """Queue rows normalised, zero where they do not count, whatever they hold."""
    return jnp.where(real[..., None], normalise(rows), 0.0)


def queue_rows(queue: Array, real: Array, start: Array | int, length: int) -> Float[Array, "p d"]:
    """Rows [start, start + length) of the queue, ready to multiply."""
    return _real_rows(lax.dynamic_slice_in_dim(queue, start, length), lax.dynamic_slice_in_dim(real, start, length))


def _queue_scores(anchors: Float[Array, "b d"], queue: Array, real: Array) -> list[Float[Array, "b _"]]:
    """Products with the whole panels as one array, and with the rest."""
    whole, rest = divmod(queue.shape[0], PANEL)
    parts = []
    if whole:
        scores = lax.map(lambda j: dot(anchors, queue_rows(queue, real, j * PANEL, PANEL).T), jnp.arange(whole))
        parts.append(jnp.moveaxis(scores, 0, 1).reshape(anchors.shape[0], -1))
    if rest:
        parts.append(dot(anchors, queue_rows(queue, real, whole * PANEL, rest).T))
    return parts


def _queue_sum(weights: Float[Array, "b q"], queue: Array, real: Array) -> Float[Array, "b d"]:
    """Σ_j weights_ij · queue_j, a panel at a time."""
    whole, rest = divmod(queue.shape[0], PANEL)

    def add(j: Array | int, total: Array, length: int) -> Array:
        part = lax.dynamic_slice_in_dim(weights, j * PANEL, length, axis=1)
        return total + dot(part, queue_rows(queue, real, j * PANEL, length))

    total = full_like(weights, (weights.shape[0], queue.shape[1]), 0.0)
    if whole:
        total = lax.fori_loop(0, whole, lambda j, total: add(j, total, PANEL), total)
    return add(whole, total, rest) if rest else total
