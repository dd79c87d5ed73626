"""The positives of each query without an N × M mask: keys sorted by group once, so that they form one run.

Short runs (two views, a caption) are gathered one partner at a time. Long runs (the classes of SupCon) are read from
the scores of a whole strip of anchors. Which of the two is decided while the program runs, by the longest run.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxcl.losses.arguments import Problem

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Bool, Float, Int


class Runs(NamedTuple):
    """Positives of query i are the keys order[start_i : start_i + length_i], without key i where `own_i`."""

    order: Int[Array, " m"]
    start: Int[Array, " n"]
    length: Int[Array, " n"]
    own: Bool[Array, " n"]


class StripRuns(NamedTuple):
    """The runs of one strip of anchors, and what a strip-wide mask needs."""

    order: Int[Array, " m"]
    start: Int[Array, " b"]
    length: Int[Array, " b"]
    own: Bool[Array, " b"]
    row: Int[Array, " b"]
    group: Int[Array, " b"]
    key_groups: Int[Array, " m"]

    @property
    def positives(self) -> Int[Array, " b"]:
        """|P|."""
        return self.length - self.own


def find_runs(problem: Problem, exclude_diagonal: bool) -> Runs:
    """Sort the keys by group and find each query's run; with `positive_index`, the named key alone."""
    query_groups, key_groups = problem.query_groups, problem.key_groups
    if problem.partner is not None:
        partner = problem.partner
        order = jnp.arange(key_groups.shape[0], dtype=jnp.int32)
        length = (partner >= 0).astype(jnp.int32)
        return Runs(order, jnp.maximum(partner, 0), length, jnp.zeros(partner.shape, bool))
    order = jnp.argsort(key_groups).astype(jnp.int32)
    ordered = key_groups[order]
    start = jnp.searchsorted(ordered, query_groups, side="left").astype(jnp.int32)
    length = jnp.searchsorted(ordered, query_groups, side="right").astype(jnp.int32) - start
    own = (query_groups == key_groups) if exclude_diagonal else jnp.zeros(query_groups.shape, bool)
    return Runs(order, start, length, own)


def steps_of_short_runs(runs: Runs) -> Int[Array, ""]:
    """Partners to gather one after another: the longest run, or 0 where strips are cheaper.

    A gathered partner costs about 1/25 of a strip's products for the same anchors at 8192 keys on a CPU; the cap bounds
    the length of a sequential loop on a GPU.
    """
    longest = jnp.max(runs.length)
    limit = min(max(runs.order.shape[0] // 32, 4), 64)
    return jnp.where(longest <= limit, longest, 0)


def partner(keys: Float[Array, "m d"], runs: StripRuns, offset: Int[Array, ""] | int) -> tuple[Array, Array, Array]:
    """Row, number and existence of the partner at an offset into each run."""
    number = runs.order[jnp.minimum(runs.start + offset, runs.order.shape[0] - 1)]
    real = (offset < runs.length) & ~(runs.own & (number == runs.row))
    return keys[number], number, real


def long_mask(runs: StripRuns) -> Bool[Array, "b m"]:
    """Which keys are positives of the strip's anchors, where groups name them."""
    same = runs.group[:, None] == runs.key_groups[None, :]
    itself = runs.row[:, None] == jnp.arange(runs.key_groups.shape[0])[None, :]
    return same & ~(runs.own[:, None] & itself)


def short_sums(
    anchors: Float[Array, "b d"], keys: Float[Array, "m d"], runs: StripRuns, steps: Int[Array, ""] | int
) -> tuple[Float[Array, " b"], Float[Array, " b"]]:
    """Sum and log-sum of the positive scores, one partner at a time; 0 and −inf without one."""

    def add(offset: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        rows, _, real = partner(keys, runs, offset)
        score = jnp.sum(anchors * rows, axis=1)
        total, log_sum = carry
        return total + jnp.where(real, score, 0.0), jnp.logaddexp(log_sum, jnp.where(real, score, -jnp.inf))

    none = jnp.zeros(anchors.shape[0]), jnp.full(anchors.shape[0], -jnp.inf)
    return lax.fori_loop(0, steps, add, none)


def long_sums(scores: Float[Array, "b m"], runs: StripRuns) -> tuple[Float[Array, " b"], Float[Array, " b"]]:
    """The same from the scores of every key."""
    mask = long_mask(runs)
    total = jnp.sum(jnp.where(mask, scores, 0.0), axis=1)
    return total, jax.nn.logsumexp(jnp.where(mask, scores, -jnp.inf), axis=1)
