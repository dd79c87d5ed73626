"""How anchors of one device meet the columns of all: everything gathered once, or one side passed around a ring.

    gather   anchors of all devices come to every shard; what each shard finds goes home by all_to_all, gradients of
             anchors by psum_scatter
    anchors  anchors, with what they have found so far, visit one device after another
    columns  shards of columns do, in the backward pass with their gradient

Nobody ever holds more of the queue than a share and, where columns travel, the one that passes by.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxcl.losses.backward import Back, Pull, Sums, visit_back
from jaxcl.losses.columns import NOTHING
from jaxcl.losses.partial import Partial, Rows, finish, merge, no_work
from jaxcl.losses.plan import Plan
from jaxcl.losses.sides import Anchors, Shard, slice_rows
from jaxcl.losses.varying import full_like

with contextlib.suppress(ImportError):
    from jaxtyping import Array

Visit = Callable[[Plan, Anchors, Shard], Partial]


def meet(plan: Plan, anchors: Anchors, shard: Shard, visit: Visit, met: Partial | None = None) -> Rows:
    """The result of this device's anchors against the columns of all devices.

    Args:
        plan: static choices.
        anchors: of this device.
        shard: of this device.
        visit: the engine, which compares one tile of anchors with one shard.
        met: what these anchors have found elsewhere; None: nothing.

    Returns:
        Rows.
    """

    def one(tile: tuple[Anchors, Partial | None]) -> Rows:
        return finish(plan, together(plan, visit(plan, tile[0], shard), tile[1]), tile[0].draws)

    if plan.transport is None:
        return by_tiles(plan, (anchors, met), one)
    if plan.transport == "gather":
        found = by_tiles(plan, _gather(plan, anchors), lambda tile: visit(plan, tile, shard))
        part = merge(jax.tree.map(lambda x: _home(plan, x), found), plan.top_k)
        return finish(plan, together(plan, part, met), anchors.draws)

    def hop(_: Array, carry: tuple[Anchors, Shard, Partial]) -> tuple[Anchors, Shard, Partial]:
        anchors, shard, part = carry
        found = by_tiles(plan, anchors, lambda tile: visit(plan, tile, shard))
        part = together(plan, found, part)
        if plan.transport == "anchors":
            return _pass_on(plan, anchors), shard, _pass_on(plan, part)
        return anchors, _pass_on(plan, shard), part

    first = nothing_yet(plan, anchors) if met is None else met
    part = lax.fori_loop(0, plan.devices, hop, (anchors, shard, first))[2]
    return finish(plan, part, anchors.draws)


def meet_again(plan: Plan, back: Back, shard: Shard) -> Sums:
    """The gradient sums of this device's anchors and keys, from all devices.

    Args:
        plan: static choices.
        back: this device's anchors.
        shard: of this device.

    Returns:
        The sums.
    """
    keys = full_like(shard.keys, shard.keys.shape, 0.0)
    if plan.transport is None:
        return visit_back(plan, back, shard, Sums(_no_pull(back, plan.same), keys))
    if plan.transport == "gather":
        everyone = _gather(plan, back)
        sums = visit_back(plan, everyone, shard, Sums(_no_pull(everyone), keys))
        pull = jax.tree.map(lambda x: lax.psum_scatter(x, plan.axis, scatter_dimension=0, tiled=True), sums.pull)
        return Sums(pull, sums.keys)

    def hop(_: Array, carry: tuple[Back, Shard, Sums]) -> tuple[Back, Shard, Sums]:
        back, shard, sums = carry
        sums = visit_back(plan, back, shard, sums)
        if plan.transport == "anchors":
            return _pass_on(plan, back), shard, sums._replace(pull=_pass_on(plan, sums.pull))
        return back, _pass_on(plan, shard), sums._replace(keys=_pass_on(plan, sums.keys))

    return lax.fori_loop(0, plan.devices, hop, (back, shard, Sums(_no_pull(back), keys)))[2]


def together(plan: Plan, part: Partial, before: Partial | None) -> Partial:
    """What anchors have found, and what they had found before."""
    if before is None:
        return part
    return merge(jax.tree.map(lambda *x: jnp.stack(x), before, _widen(plan, part)), plan.top_k)


def by_tiles(plan: Plan, anchors: Any, one: Callable[[Any], Any]) -> Any:
    """The result of one tile of anchors after another; what `one` leaves out never exists for all of them."""
    starts = jnp.arange(0, jax.tree.leaves(anchors)[0].shape[0], plan.tile)
    found = lax.map(lambda start: one(slice_rows(anchors, start, plan.tile)), starts)
    return jax.tree.map(lambda x: x.reshape((x.shape[0] * x.shape[1], *x.shape[2:])), found)


def _gather(plan: Plan, tree: Any) -> Any:
    """Rows of all devices, in their order."""
    return jax.tree.map(lambda x: lax.all_gather(x, plan.axis, tiled=True), tree)


def _home(plan: Plan, x: Array) -> Array:
    """What every device found for this device's rows, [devices, rows, ...]."""
    return lax.all_to_all(x.reshape(plan.devices, x.shape[0] // plan.devices, *x.shape[1:]), plan.axis, 0, 0)


def _pass_on(plan: Plan, tree: Any) -> Any:
    """To the device before this one: after as many hops as there are devices everything is at home."""
    ring = [(device, (device - 1) % plan.devices) for device in range(plan.devices)]
    return jax.tree.map(lambda x: lax.ppermute(x, plan.axis, ring), tree)


def _widen(plan: Plan, part: Partial) -> Partial:
    """As many places for selected columns as rows have in the end; a small shard fills fewer."""
    missing = (plan.top_k or 0) - part.values.shape[1]
    if missing <= 0:
        return part
    values, chosen = (
        jnp.pad(x, ((0, 0), (0, missing)), constant_values=none)
        for x, none in ((part.values, -jnp.inf), (part.chosen, NOTHING))
    )
    return part._replace(values=values, chosen=chosen)


def nothing_yet(plan: Plan, anchors: Anchors) -> Partial:
    """The contribution of no columns."""
    rows, width = anchors.group.shape[0], plan.top_k or 0

    def full(value: Any, dtype: Any, *more: int) -> Array:
        return full_like(anchors.group, (rows, *more), value, dtype)

    low, zero, none = full(-jnp.inf, jnp.float32), full(0, jnp.float32), full(0, jnp.int32)
    drawn = None if anchors.draws is None else full(-jnp.inf, jnp.float32, anchors.draws.shape[1])
    values, chosen = full(-jnp.inf, jnp.float32, width), full(NOTHING, jnp.int32, width)
    return Partial(values, chosen, low, low, zero, low, none, none, drawn, no_work(none))


def _no_pull(back: Back, shared: bool = False) -> Pull:
    """Sums of nothing; `shared`: the rows' sum is kept with the keys."""
    like = back.anchors.embeddings
    return Pull(None if shared else full_like(like, like.shape, 0.0), full_like(like, like.shape[:1], 0.0))
