"""Optimizers with decay and trust ratio where they belong, and the moving average."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from jaxcl.config import MAX_LOGIT_SCALE, OptimConfig
from jaxcl.lora import SCALE
from jaxcl.schedules import make_learning_rate

DECAYED = ("kernel", "embedding", "lora_a", "lora_b")
# of parameters by their name: the logarithm of a learned inverse temperature
BOUNDS = {"log_scale": (-math.log(MAX_LOGIT_SCALE), math.log(MAX_LOGIT_SCALE))}
STACKED = "layers"  # the name of an nn.scan: every leaf below has a leading axis of layers
LARS_COEFFICIENT = 1e-3
PREDICTOR = "predictor"  # the name of its parameters


class ParameterRow(NamedTuple):
    """One array of the parameters: its path, shape, size, and whether weight decay and trust ratio apply to it."""

    name: str
    shape: tuple[int, ...]
    size: int
    decays: bool


def make_optimizer(
    config: OptimConfig, *, batch_size: int, total_steps: int, num_micro: int = 1
) -> optax.GradientTransformation:
    """The optimizer of a run: clipping, then SGD, LARS or AdamW, then the mean over micro-batches around them.

    Momentum is the classic one, not Nesterov's. Weight decay, and the trust ratio of LARS (You et al. 2017,
    https://arxiv.org/abs/1708.03888), apply to kernels and embedding tables only: never to norms, biases, the class
    token, position embeddings or a temperature. The parameter's name decides, because in an `nn.scan` even a bias
    has two axes. With micro-batches the whole optimizer lives inside `optax.MultiSteps`, so clipping sees the mean
    gradient, and schedule and decay count real updates; its state is arrays only. A learned temperature stays within
    `BOUNDS`. A predictor may learn faster than the rest: one that is near its optimum keeps embeddings apart (Grill et
    al. 2020, https://arxiv.org/abs/2006.07733, section 5).

    Args:
        config: name, base learning rate, warm-up, decay, momentum and clipping.
        batch_size: images a real update, over all devices.
        total_steps: real updates of the run.
        num_micro: micro-batches a real update, ≥ 1; at 1 there is no `MultiSteps`.

    Returns:
        An optax transformation; its `update` needs the parameters.

    Raises:
        ValueError: `num_micro` is below 1.

    >>> optimizer = make_optimizer(OptimConfig(name="lars"), batch_size=256, total_steps=100)
    >>> _ = optimizer.init({"kernel": jnp.ones((2, 2))})
    """
    if num_micro < 1:
        raise ValueError(f"num_micro must be at least 1, got {num_micro}")
    rate = make_learning_rate(config, batch_size=batch_size, total_steps=total_steps)
    clip = optax.identity() if config.clip_norm is None else optax.clip_by_global_norm(config.clip_norm)
    rule = OPTIMIZERS[config.name](config, rate)
    if config.predictor_rate != 1:
        rule = optax.chain(rule, optax.masked(optax.scale(config.predictor_rate), predictor_mask))
    optimizer = within_bounds(optax.chain(clip, rule))
    if num_micro == 1:
        return optimizer
    return optax.MultiSteps(optimizer, num_micro).gradient_transformation()


def within_bounds(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimizer whose updates lead no parameter out of its bounds: the rest of such an update is cut off.

      update ← clip(parameter + update, low, high) − parameter

    It is the parameter that is held, so what the loss sees of it has a gradient at the bound too, and nothing keeps it
    there once that points inwards. The optimizer's state is its own alone.

    Args:
        optimizer: any.

    Returns:
        One like it; its `update` needs the parameters.

    >>> optimizer, params = within_bounds(optax.sgd(1.0)), {"log_scale": jnp.float32(4.0)}
    >>> updates, _ = optimizer.update({"log_scale": jnp.float32(-9.0)}, optimizer.init(params), params)
    >>> round(float(jnp.exp(4 + updates["log_scale"])), 2)
    100.0
    """

    def update(grads: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        updates, state = optimizer.update(grads, state, params)

        def hold(path: tuple[Any, ...], change: Array, param: Array) -> Array:
            bounds = BOUNDS.get(_keys(path)[-1])
            return change if bounds is None else jnp.clip(param + change, *bounds) - param

        return jax.tree_util.tree_map_with_path(hold, updates, params), state

    return optax.GradientTransformation(optimizer.init, update)


def decay_mask(params: PyTree) -> PyTree[bool]:
    """True where weight decay and trust ratio apply: leaves whose own name is one of `DECAYED`.

    >>> decay_mask({"dense": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}})
    {'dense': {'bias': False, 'kernel': True}}
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: _keys(path)[-1] in DECAYED, params)


def predictor_mask(params: PyTree) -> PyTree[bool]:
    """True for the parameters of a predictor.

    >>> predictor_mask({"head": {"bias": jnp.ones(2)}, "predictor": {"bias": jnp.ones(2)}})
    {'head': {'bias': False}, 'predictor': {'bias': True}}
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: _keys(path)[0] == PREDICTOR, params)


def parameter_groups(params: PyTree) -> list[ParameterRow]:
    """The table of all parameters, for a person to check what decays.

    Args:
        params: any tree of arrays or of their shapes.

    Returns:
        A row for each array, in the order of the tree.

    >>> parameter_groups({"norm": {"scale": jnp.ones(3)}})
    [ParameterRow(name='norm/scale', shape=(3,), size=3, decays=False)]
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    decays = jax.tree.leaves(decay_mask(params))
    return [ParameterRow("/".join(_keys(p)), x.shape, x.size, d) for (p, x), d in zip(leaves, decays, strict=True)]


def group_table(params: PyTree, config: OptimConfig, frozen: PyTree = None) -> str:
    """What decays, what does not and what is frozen, a few lines to read before a run.

    Args:
        params: any tree of arrays or of their shapes.
        config: optimizer and decay.
        frozen: a tree of those that are not trained; None: there are none.

    Returns:
        A line each for kernels and for norms and biases: how many arrays, how many numbers, what is done to them; where
        some are frozen, two more of these and of the share that is trained.

    >>> print(group_table({"norm": {"scale": jnp.ones(3)}}, OptimConfig()))
    norms and biases: 1 array, 3 numbers, no weight decay
    """
    ratio = {True: ", trust ratio", False: ", no trust ratio"} if config.name == "lars" else {True: "", False: ""}
    rows, lines = parameter_groups(params), []
    for decays, name in ((True, "kernels"), (False, "norms and biases")):
        sizes = [row.size for row in rows if row.decays is decays]
        decay = f"weight decay {config.weight_decay:g}" if decays and config.weight_decay else "no weight decay"
        if sizes:
            lines.append(f"{name}: {_counted(sizes)}, {decay}{ratio[decays]}")
    still = [x.size for path, x in jax.tree_util.tree_leaves_with_path(frozen) if _keys(path)[-1] != SCALE]
    if still:
        moved = sum(row.size for row in rows)
        share = 100 * moved / (moved + sum(still))
        lines.append(f"frozen: {_counted(still)}")
        lines.append(f"trained: {moved:,} of {moved + sum(still):,} numbers, {share:.3g} %")
    return "\n".join(lines)


def ema(target: PyTree, online: PyTree, decay: float | Float[Array, ""]) -> PyTree:
    """One step of the exponential moving average, decay * target + (1 - decay) * online.

    Args:
        target: the average so far.
        online: a tree like it.
        decay: share of the average that stays, in [0, 1]; may be traced.

    Returns:
        The new average, in the dtypes of `target`.

    >>> round(float(ema(jnp.float32(1.0), jnp.float32(2.0), 0.75)), 6)
    1.25
    """
    return jax.tree.map(lambda t, o: (decay * t + (1 - decay) * o).astype(t.dtype), target, online)


def _counted(sizes: list[int]) -> str:
    """How many arrays, and how many numbers in them."""
    return f"{len(sizes)} array{'s' if len(sizes) != 1 else ''}, {sum(sizes):,} numbers"


def _keys(path: tuple[Any, ...]) -> list[str]:
    """The names along a leaf's path."""
    return [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]


def _sgd(config: OptimConfig, rate: optax.Schedule) -> optax.GradientTransformation:
    """Decay, momentum, learning rate."""
    decay = optax.add_decayed_weights(config.weight_decay, mask=decay_mask)
    return optax.chain(decay, optax.sgd(rate, momentum=config.momentum))


def _lars(config: OptimConfig, rate: optax.Schedule) -> optax.GradientTransformation:
    """Decay, trust ratio, learning rate, momentum."""
    return optax.chain(
        optax.add_decayed_weights(config.weight_decay, mask=decay_mask),
        optax.masked(optax.stateless(_scale_by_trust_ratio), decay_mask),
        optax.scale_by_learning_rate(rate),
        optax.trace(config.momentum),
    )


def _adamw(config: OptimConfig, rate: optax.Schedule) -> optax.GradientTransformation:
    """Adam with decoupled decay."""
    return optax.adamw(rate, b1=config.momentum, weight_decay=config.weight_decay, mask=decay_mask)


def _scale_by_trust_ratio(updates: PyTree, params: PyTree) -> PyTree:
    """Scales each kernel's update by 0.001 * |kernel| / |update|; a scanned stack has one ratio a layer."""

    def scale(path: tuple[Any, ...], update: Array, param: Array) -> Array:
        axes = tuple(range(STACKED in _keys(path), param.ndim))
        norms = [jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True)) for x in (param, update)]
        moves = (norms[0] > 0) & (norms[1] > 0)
        return update * jnp.where(moves, LARS_COEFFICIENT * norms[0] / jnp.where(moves, norms[1], 1.0), 1.0)

    return jax.tree_util.tree_map_with_path(scale, updates, params)


OPTIMIZERS: dict[str, Callable[[OptimConfig, optax.Schedule], optax.GradientTransformation]] = {
    "sgd": _sgd,
    "lars": _lars,
    "adamw": _adamw,
}
