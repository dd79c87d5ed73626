"""A chain of networks, encoder, head and perhaps predictor, as one tree of variables; and the teacher beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from jaxcl.lora import adapting

TEACHER = "head"  # a teacher's output is a projection: only the student predicts


class Pair(NamedTuple):
    """What a student says of each view, and what a teacher does.

    Attributes:
        student: [B, V, D].
        teacher: [B, V, D], without gradient.
    """

    student: Float[Array, "b v d"]
    teacher: Float[Array, "b v d"]


def make_init(chain: Mapping[str, nn.Module]) -> Callable[[Any, Any], dict[str, Any]]:
    """The variables of a chain.

    Args:
        chain: networks by name, in order.

    Returns:
        `Method.init`, with the parts by name in each collection.
    """
    return lambda key, views: init_chain(chain, key, flat(views))


def init_chain(chain: Mapping[str, nn.Module], key: Any, x: Any) -> dict[str, Any]:
    """The variables of a chain whose first network is given `x`.

    Args:
        chain: networks by name, in order.
        key: of all of them.
        x: [N, …].

    Returns:
        `{"params": …, "batch_stats": …}`, with the parts by name in each collection.
    """
    parts = {}
    for name, module in chain.items():
        x, parts[name] = module.init_with_output(key, x, train=False)
    return {
        collection: {name: part.get(collection, {}) for name, part in parts.items()}
        for collection in ("params", "batch_stats")
    }


def run(
    chain: Mapping[str, nn.Module], params: Any, batch_stats: Any, images: Any, *, train: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What each network of a chain says of some images.

    Args:
        chain: networks by name, in order.
        params: of each; those without are not run.
        batch_stats: of each.
        images: [N, H, W, C].
        train: whether batch norms use the statistics of these images.

    Returns:
        Outputs [N, …] by name, and the running statistics after it.
    """
    x, outputs, changed = images, {}, dict(batch_stats)
    for name, module in chain.items():
        if name in params:
            variables = {"params": params[name], "batch_stats": batch_stats[name]}
            with adapting():
                x, stats = module.apply(variables, x, train=train, mutable=["batch_stats"])
            outputs[name], changed[name] = x, stats.get("batch_stats", {})
    return outputs, changed


def make_embed(chain: Mapping[str, nn.Module], *, teacher: str | None = None) -> Callable[..., tuple[Any, Any]]:
    """How images become embeddings.

    Args:
        chain: networks by name, in order.
        teacher: None; "self": the projections themselves, without gradient; "target": the momentum encoder, which uses
            the statistics of the batch in its batch norms and keeps none.

    Returns:
        `Method.embed`, to [B, V, D] or to a `Pair`.
    """

    def embed(key: Any, params: Any, batch_stats: Any, target: Any, views: Any, *, train: bool) -> tuple[Any, Any]:
        del key

        def unflat(x: Any) -> Any:
            return x.reshape(*views.shape[:2], -1)

        outputs, stats = run(chain, params, batch_stats, flat(views), train=train)
        student = unflat(outputs[list(chain)[-1]])
        if teacher is None:
            return student, stats
        if teacher == "target":
            outputs, _ = run(chain, target, batch_stats, flat(views), train=train)
        return Pair(student, jax.lax.stop_gradient(unflat(outputs[TEACHER]))), stats

    return embed


def make_features(chain: Mapping[str, nn.Module]) -> Callable[..., Any]:
    """The frozen backbone, the first network of a chain, as `Method.features`."""
    first = next(iter(chain))

    def features(params: Any, batch_stats: Any, images: Any) -> Any:
        return run(chain, {first: params[first]}, batch_stats, images, train=False)[0][first]

    return features


def teacher_of(params: Any) -> Any:
    """Of a student's parameters those that a momentum encoder follows: all up to the projection."""
    return {name: params[name] for name in ("encoder", TEACHER)}


def flat(views: Float[Array, "b v h w c"]) -> Float[Array, "n h w c"]:
    """Views as images, the views of an image side by side."""
    return views.reshape(-1, *views.shape[2:])
