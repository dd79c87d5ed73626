"""The sampled tail: a few negatives outside the top k, drawn uniformly, carry the gradient of all of them.

With R the log-sum of all negatives, known exactly, and S that of the k selected ones, the tail has log-mass
L = log(e^R − e^S). Of m drawn tail negatives with log-sum Σ each weighs e^{s + L − Σ}: together they carry the tail's
mass, and the value is the full softmax. Self-normalised importance sampling: its error falls as 1/√m.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcl.losses.columns import NOTHING

with contextlib.suppress(ImportError):
    from jaxtyping import Array, Float, Int, Key


class Tail(NamedTuple):
    """The drawn negatives of each row.

    Attributes:
        numbers: [N, m] column numbers, `NOTHING` for those that do not count.
        scores: [N, m] theirs, −inf for those.
        boost: [N, 2] log-weights of the k selected and of the drawn negatives.
    """

    numbers: Int[Array, "n m"]
    scores: Float[Array, "n m"]
    boost: Float[Array, "n 2"]


def draw_columns(
    key: Key[Array, ""],
    rows: Int[Array, " n"],
    count: int,
    *,
    keys: int,
    queue_start: int,
    filled: Int[Array, ""] | int,
) -> Int[Array, "n r"]:
    """Column numbers, uniform over keys and valid queue rows, the same for a row on any number of devices.

    Args:
        key: random key.
        rows: number of each row over all devices.
        count: columns a row.
        keys: keys that are negatives, over all devices.
        queue_start: number of the first queue column.
        filled: valid queue rows, over all devices.

    Returns:
        Numbers, with repetitions; `NOTHING` where there is no column at all.
    """
    total = jnp.asarray(keys + filled, jnp.int32)

    def of_row(row: Array) -> Array:
        return jax.random.randint(jax.random.fold_in(key, row), (count,), 0, jnp.maximum(total, 1))

    drawn = jax.vmap(of_row)(rows)
    numbers = jnp.where(drawn < keys, drawn, queue_start + drawn - keys)
    return jnp.where(total > 0, numbers, NOTHING)


def choose_tail(
    values: Float[Array, "n k"],
    chosen: Int[Array, "n k"],
    drawn: Float[Array, "n r"],
    draws: Int[Array, "n r"],
    selected: Float[Array, " n"],
    repulsion: Float[Array, " n"],
    samples: int,
) -> Tail:
    """The first draws of each row that hit its tail, and what they weigh.

    A row none of whose draws hit a tail that has mass lets its k hardest carry it: were that repulsion dropped while
    the attraction stays, training would collapse.

    Args:
        values: scores of the selected negatives.
        chosen: their numbers.
        drawn: scores of the drawn columns, −inf where one is no negative.
        draws: their numbers.
        selected: log-sum of the selected negatives.
        repulsion: log-sum of all negatives.
        samples: m.

    Returns:
        The tail.
    """
    kth = jnp.min(values, axis=1)[:, None]
    last = jnp.max(jnp.where(values == kth, chosen, -1), axis=1)[:, None]
    hit = (drawn > -jnp.inf) & ((drawn < kth) | ((drawn == kth) & (draws > last)))
    first = jnp.argsort(~hit, axis=1, stable=True)[:, :samples]
    hit, scores, numbers = (jnp.take_along_axis(x, first, axis=1) for x in (hit, drawn, draws))
    scores, numbers = jnp.where(hit, scores, -jnp.inf), jnp.where(hit, numbers, NOTHING)
    mass = repulsion + jnp.log1p(-jnp.exp(jnp.minimum(selected - repulsion, 0.0)))
    mass = jnp.where(repulsion == -jnp.inf, -jnp.inf, mass)
    sampled = jax.nn.logsumexp(scores, axis=1)
    some = jnp.any(hit, axis=1)
    near = jnp.where(some | (repulsion == -jnp.inf), 0.0, repulsion - selected)
    far = jnp.where(some, mass - jnp.where(some, sampled, 0.0), 0.0)
    return Tail(numbers, scores, jax.lax.stop_gradient(jnp.stack([near, far], axis=1)))
