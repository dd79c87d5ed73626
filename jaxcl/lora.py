"""Low-rank adaptation: of a network only A and B are trained, beside kernels that stay as they are.

  y = W x + (alpha / rank) · B (A x)       A random, B zero: at first the network is what it was

W is [in, out]; A is [in, rank] and B [rank, out]. Of a convolution A is one with `rank` channels and B one of 1 × 1
behind it. Kernels of an `nn.scan` have an axis of layers in front, and so have their A and B. Everything here is a
function of trees: `split` takes a tree of parameters apart into what is trained and what is frozen, `joined` puts both
into one tree that networks run with under `adapting`, and `merge` makes of both a tree without A and B. Training never
merges: the product of the activations with A and B is small, and a merged tree is as large as the network.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021), section 4.
"""

from __future__ import annotations

import fnmatch
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxcl.config import LORA_TARGETS, ConfigError, LoraConfig, first_of

A, B, SCALE = "lora_a", "lora_b", "lora_scale"
NETWORKS = ("encoder", "text")  # adapted and else frozen; all others, such as heads, are trained whole
STACKED = "layers"  # the name of an nn.scan: every leaf below has a leading axis of layers
DRAW = 2**32 - 2  # folded into the key of a run; no step has this number
MODULES = {"attention": ("qkv", "project"), "mlp": ("mlp1", "mlp2"), "patches": ("patches",)}
LOW_RANK = "low_rank"  # the name of A x for policies of `jax.checkpoint`
DEFAULT = ("attention", "mlp", "conv")  # as far as a network has them

_SHOWN = 12  # names in a message

Tree = Mapping[str, Any]


def find_kernels(params: Tree, config: LoraConfig) -> list[str]:
    """Where the kernels are that a config adapts.

    Args:
        params: by network, of arrays or shapes.
        config: rank and targets.

    Returns:
        Paths of their layers, as in "encoder/layers/qkv".

    Raises:
        ConfigError: a target that matches no kernel, a network without any that matches, or a rank that is not below
            the ranks of the kernels.

    >>> kernel = jnp.zeros((3, 3, 8, 4))
    >>> find_kernels({"encoder": {"conv1": {"kernel": kernel}}}, LoraConfig(rank=2))
    ['encoder/conv1']
    """
    shapes = {path: shape for name in NETWORKS if name in params for path, shape in _kernels(params[name], name)}
    words = DEFAULT if config.targets is None else config.words
    found = {word: [path for path, shape in shapes.items() if _matches(word, path, shape)] for word in words}
    set_to = f"lora.targets = {config.targets!r}"
    for word, paths in found.items():
        if config.targets is not None and not paths:
            known = [kind for kind in LORA_TARGETS if any(_matches(kind, *item) for item in shapes.items())]
            raise ConfigError(f"{set_to}: {word!r} matches no kernel; known are {first_of([*known, *shapes], _SHOWN)}")
    chosen = [path for path in shapes if any(path in paths for paths in found.values())]
    for name in NETWORKS:
        if name in params and not any(path.startswith(f"{name}/") for path in chosen):
            known = [path for path in shapes if path.startswith(f"{name}/")]
            raise ConfigError(f"{set_to} would train nothing of {name!r}; its kernels are {first_of(known, _SHOWN)}")
    for path in chosen:
        rows, columns = _sides(path, shapes[path])
        if config.rank > min(rows, columns):
            raise ConfigError(
                f"lora.rank = {config.rank} is above the rank of {path}, from {rows} to {columns} numbers; the largest "
                f"valid value is {min(rows, columns)}, without it in lora.targets perhaps more"
            )
    return chosen


def split(key: jax.Array, params: Tree, config: LoraConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters of a method as what is trained and what is frozen.

    Args:
        key: of A; no other use of the same key has the same numbers.
        params: by network, float32.
        config: rank, alpha and targets.

    Returns:
        Trained: A and B of encoder and text tower, A normal with variance 1 / in, B zero; and all other networks.
        Frozen: encoder and text tower as they are, norms and biases among it, with alpha / rank beside each kernel
        that is adapted.

    Raises:
        ConfigError: as `find_kernels`.

    >>> params = {"encoder": {"qkv": {"kernel": jnp.zeros((8, 24))}}, "head": {"bias": jnp.zeros(3)}}
    >>> trained, frozen = split(jax.random.key(0), params, LoraConfig(rank=2))
    >>> jax.tree.map(jnp.shape, trained)
    {'encoder': {'qkv': {'lora_a': (8, 2), 'lora_b': (2, 24)}}, 'head': {'bias': (3,)}}
    """
    paths, key = find_kernels(params, config), jax.random.fold_in(key, DRAW)
    trained = {name: part for name, part in params.items() if name not in NETWORKS}
    frozen: dict[str, Any] = {name: _copy(part) for name, part in params.items() if name in NETWORKS}
    scale = (config.rank if config.alpha is None else config.alpha) / config.rank
    for path in paths:
        layer = _at(frozen, path)
        shape, axes = layer["kernel"].shape, _leading(path)
        layer[SCALE] = jnp.full(shape[:axes], scale, jnp.float32)
        own = jax.random.fold_in(key, zlib.crc32(path.encode()) & 0x7FFFFFFF)
        spread = 1 / math.sqrt(math.prod(shape[axes:-1]))
        _at(trained, path, make=True).update(
            {
                A: spread * jax.random.normal(own, (*shape[:-1], config.rank)),
                B: jnp.zeros((*shape[:axes], config.rank, shape[-1])),
            }
        )
    return trained, frozen


def joined(trained: Any, frozen: Any) -> Any:
    """What networks run with, under `adapting`; no array is copied.

    Args:
        trained: from `split`, later, or a part of it such as a momentum encoder has.
        frozen: from `split`; None: nothing is.

    Returns:
        One tree, with A, B and their factor beside each kernel that is adapted.

    >>> joined({"encoder": {"qkv": {"lora_a": 1}}, "head": 2}, {"encoder": {"qkv": {"kernel": 3}, "norm": 4}})
    {'encoder': {'qkv': {'kernel': 3, 'lora_a': 1}, 'norm': 4}, 'head': 2}
    """
    if frozen is None:
        return trained
    return {
        name: joined(trained[name], frozen[name]) if name in trained and name in frozen else {**frozen, **trained}[name]
        for name in [*frozen, *(name for name in trained if name not in frozen)]
    }


def merge(trained: Any, frozen: Any) -> Any:
    """The parameters of a network without A and B that computes the same.

      W ← W + (alpha / rank) · A B

    Args:
        trained: from `split`, later.
        frozen: from `split`; None: nothing is.

    Returns:
        A tree like the one that was split.

    >>> ones = jnp.ones((1, 1))
    >>> layer = {"kernel": ones, "lora_scale": jnp.float32(2)}
    >>> merge({"encoder": {"qkv": {"lora_a": 3 * ones, "lora_b": ones}}}, {"encoder": {"qkv": layer}})
    {'encoder': {'qkv': {'kernel': Array([[7.]], dtype=float32)}}}
    """
    return trained if frozen is None else _merged(joined(trained, frozen))


def adapting() -> AbstractContextManager[Any]:
    """Where networks may be run with a tree from `joined`: any `nn.Dense` and `nn.Conv` that finds A and B adds them.

    Other trees compute what they always do.

    >>> layer, x = nn.Dense(1, use_bias=False), jnp.ones((1, 1))
    >>> params = {"kernel": x, "lora_a": 3 * x, "lora_b": x, "lora_scale": jnp.float32(2)}
    >>> with adapting():
    ...     print(layer.apply({"params": params}, x))
    [[7.]]
    """
    return nn.intercept_methods(_add_product)


def _add_product(call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
    """What a layer computes, and B of A of its input where its parameters have them."""
    y, layer = call(*args, **kwargs), context.module
    if context.method_name != "__call__" or not isinstance(layer, nn.Dense | nn.Conv):
        return y
    if layer.is_initializing() or not layer.has_variable("params", A):
        return y
    a, b, scale = (jnp.asarray(layer.get_variable("params", name)) for name in (A, B, SCALE))
    # the layer itself with other channels: stride, padding and compute type are those of the kernel
    down = layer.clone(parent=None, name=None, features=a.shape[-1], use_bias=False)
    hidden: Any = down.apply({"params": {"kernel": a}}, *args, **kwargs)
    hidden = checkpoint_name(hidden, LOW_RANK)
    return y + hidden @ (scale * b).astype(y.dtype)


def _merged(tree: Any) -> Any:
    """A tree from `joined` without A and B."""
    if not isinstance(tree, Mapping):
        return tree
    plain = {name: _merged(leaf) for name, leaf in tree.items() if name not in (A, B, SCALE)}
    if A in tree:
        a, b, scale, kernel = tree[A], tree[B], tree[SCALE], tree["kernel"]
        axes = "l" * jnp.ndim(scale)  # of layers
        product = jnp.einsum(f"{axes}...r,{axes}rf->{axes}...f", a, b)
        plain["kernel"] = kernel + scale.reshape(scale.shape + (1,) * (kernel.ndim - scale.ndim)) * product
    return plain


def _kernels(tree: Any, path: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The layers below a path that have a kernel, and its shape."""
    for name, item in tree.items():
        if name == "kernel":
            yield path, item.shape
        elif isinstance(item, Mapping):
            yield from _kernels(item, f"{path}/{name}")


def _matches(word: str, path: str, shape: tuple[int, ...]) -> bool:
    """Whether a target, a kind of layer or a pattern, means the kernel of a layer."""
    if word == "conv":
        return len(shape) - _leading(path) == 4
    if word in MODULES:
        return path.rpartition("/")[2] in MODULES[word]
    return fnmatch.fnmatchcase(path, word)


def _leading(path: str) -> int:
    """Axes of layers in front of the kernel at a path."""
    return path.split("/").count(STACKED)


def _sides(path: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Numbers that a kernel reads for one output, and its outputs."""
    return math.prod(shape[_leading(path) : -1]), shape[-1]


def _copy(tree: Any) -> Any:
    """The same leaves in new dictionaries."""
    return {name: _copy(item) for name, item in tree.items()} if isinstance(tree, Mapping) else tree


def _at(tree: dict[str, Any], path: str, *, make: bool = False) -> dict[str, Any]:
    """The dictionary at a path, made where it is missing and may be."""
    for name in path.split("/"):
        tree = tree.setdefault(name, {}) if make else tree[name]
    return tree
