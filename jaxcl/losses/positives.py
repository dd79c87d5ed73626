"""The positives of each query without an N × M mask: keys sorted by group once, so that they form one run.

Short runs (two views, a caption) are gathered one partner at a time. Long runs (the classes of SupCon) are read from
the scores of a whole strip of anchors. Which of the two is decided while the program runs, by the longest run.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxcl.losses.varying import full_like

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Bool, Float, Int


class Runs(NamedTuple):
    """Positives of anchor i are the keys order[start_i : start_i + length_i], without key row_i where `own_i`."""

    order: Int[Array, " m"]
    start: Int[Array, " b"]
    length: Int[Array, " b"]
    own: Bool[Array, " b"]
    row: Int[Array, " b"]
    group: Int[Array, " b"]
    key_groups: Int[Array, " m"]

    @property
    def positives(self) -> Int[Array, " b"]:
        """|P| among these keys."""
        return self.length - self.own


def find_runs(
    group: Int[Array, " b"], row: Int[Array, " b"], own: Bool[Array, " b"], order: Array, key_groups: Array
) -> Runs:
    """The run of each anchor's group.

    Args:
        group: of each anchor.
        row: place among these keys of the anchor itself; below 0 where it is not one of them.
        own: whether that key is of the anchor's group and must not be its partner.
        order: [M] the keys sorted by group.
        key_groups: [M] their groups, unsorted.

    Returns:
        Runs.
    """
    ordered = key_groups[order]
    start = jnp.searchsorted(ordered, group, side="left").astype(jnp.int32)
    length = jnp.searchsorted(ordered, group, side="right").astype(jnp.int32) - start
    return Runs(order, start, length, own & (row >= 0), row, group, key_groups)


def named_runs(
    place: Int[Array, " b"], group: Int[Array, " b"], row: Int[Array, " b"], order: Array, key_groups: Array
) -> Runs:
    """Runs of one: the key at a place; none below 0. `order` is that of the keys as they stand."""
    real = place >= 0
    return Runs(order, jnp.maximum(place, 0), real.astype(jnp.int32), jnp.zeros_like(real), row, group, key_groups)


def steps_of_short_runs(key_groups: Int[Array, " m"], order: Int[Array, " m"]) -> Int[Array, ""]:
    """Partners to gather one after another: the longest run, or 0 where strips are cheaper.

    A gathered partner costs about 1/25 of a strip's products for the same anchors at 8192 keys on a CPU; the cap bounds
    the length of a sequential loop on a GPU.
    """
    ordered = key_groups[order]
    since = jnp.arange(ordered.shape[0]) - jnp.searchsorted(ordered, ordered, side="left")
    longest = jnp.max(jnp.where(ordered >= 0, since + 1, 1)).astype(jnp.int32)
    limit = min(max(ordered.shape[0] // 32, 4), 64)
    return jnp.where(longest <= limit, longest, 0)


def partner(keys: Float[Array, "m d"], runs: Runs, offset: Int[Array, ""] | int) -> tuple[Array, Array, Array]:
    """Row, number and existence of the partner at an offset into each run."""
    number = runs.order[jnp.minimum(runs.start + offset, runs.order.shape[0] - 1)]
    real = (offset < runs.length) & ~(runs.own & (number == runs.row))
    return keys[number], number, real


def long_mask(runs: Runs) -> Bool[Array, "b m"]:
    """Which keys are positives of the anchors, where groups name them."""
    same = runs.group[:, None] == runs.key_groups[None, :]
    itself = runs.row[:, None] == jnp.arange(runs.key_groups.shape[0])[None, :]
    return same & ~(runs.own[:, None] & itself)


def short_sums(
    anchors: Float[Array, "b d"], keys: Float[Array, "m d"], runs: Runs, steps: Int[Array, ""] | int
) -> tuple[Float[Array, " b"], Float[Array, " b"]]:
    """Sum and log-sum of the positive scores, one partner at a time; 0 and −inf without one."""

    def add(offset: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        rows, _, real = partner(keys, runs, offset)
        score = jnp.sum(anchors * rows, axis=1)
        total, log_sum = carry
        return total + jnp.where(real, score, 0.0), jnp.logaddexp(log_sum, jnp.where(real, score, -jnp.inf))

    rows = anchors.shape[:1]
    return lax.fori_loop(0, steps, add, (full_like(anchors, rows, 0.0), full_like(anchors, rows, -jnp.inf)))


def long_sums(
    scores: Callable[[Int[Array, ""], int], Float[Array, "s m"]], runs: Runs
) -> tuple[Float[Array, " b"], Float[Array, " b"]]:
    """The same from the scores of every key, a few anchors at a time.

    Args:
        scores: of so many anchors from the first given one on.
        runs: of all anchors.

    Returns:
        [B] sum and log-sum.
    """
    anchors = runs.group.shape[0]
    some = math.gcd(anchors, 16)

    def one(first: Array) -> tuple[Array, Array]:
        group, own, row = (lax.dynamic_slice_in_dim(x, first, some) for x in (runs.group, runs.own, runs.row))
        mask, theirs = long_mask(runs._replace(group=group, own=own, row=row)), scores(first, some)
        total = jnp.sum(jnp.where(mask, theirs, 0.0), axis=1)
        return total, jax.nn.logsumexp(jnp.where(mask, theirs, -jnp.inf), axis=1)

    total, log_sum = lax.map(one, jnp.arange(0, anchors, some))
    return total.reshape(-1), log_sum.reshape(-1)
