"""What a training method gives the step: how to make its variables, its embeddings and its objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, Int

Variables = dict[str, Any]
Embeddings = Any


class Captioned(NamedTuple):
    """What methods with captions embed, where others get the views alone.

    Attributes:
        views: [B, V, H, W, C].
        tokens: of the captions, [B, L].
    """

    views: Float[Array, "b v h w c"]
    tokens: Int[Array, "b l"]


class Towers(NamedTuple):
    """Images and captions as vectors that are compared by cosine.

    Attributes:
        image: `(params, batch_stats, images [B, H, W, C]) -> [B, D]`.
        text: `(params, batch_stats, tokens [B, L]) -> [B, D]`.
    """

    image: Callable[..., Float[Array, "b d"]]
    text: Callable[..., Float[Array, "b d"]]


class Traits(NamedTuple):
    """What a method reads of a config, so that a setting without a reader is an error before anything compiles.

    Attributes:
        queue: negatives of earlier steps.
        target: a momentum encoder.
        labels: the images' labels.
        teacher: a trained network, `distill.teacher`; `make_method` then takes a `Teacher` by this name.
        captions: the images' captions.
        learns_temperature: `loss.temperature` is where a learned one begins.
        views: crops of each image, 1 or 2.
        predictor: a network behind the head of one side, `model.predictor_*`.
        key_norm: batch statistics of keys that are not those of the queries, `target.key_norm`.
        negatives: `(images of one loss, queue size)` to the most negatives an anchor can have; None: it has none, and
            reads nothing of `loss`, or with a teacher its temperature and strips.
    """

    queue: bool = False
    target: bool = False
    labels: bool = False
    teacher: bool = False
    captions: bool = False
    learns_temperature: bool = False
    views: int = 2
    predictor: bool = False
    key_norm: bool = False
    negatives: Callable[[int, int], int] | None = None


class Teacher(NamedTuple):
    """A trained network that a method learns from, and that nothing moves.

    Attributes:
        apply: `(variables, images) -> {"encoder": features [N, F], "head": embeddings [N, D]}` of images [N, H, W, C]
            normalised as the student's, with running batch statistics; variables are `TrainState.target`, never
            constants of a program; "head" only where they hold one.
        feature_dim: F.
    """

    apply: Callable[[Any, Array], dict[str, Array]]
    feature_dim: int


class Objective(NamedTuple):
    """The loss of one problem, what to log of it, and what a queue receives."""

    loss: Float[Array, ""]
    metrics: dict[str, Array]
    push_values: Float[Array, "b d"]
    push_groups: Int[Array, " b"]


class Method(NamedTuple):
    """Pure functions; `embed` and `objective` are apart so that a step may cache what lies between them.

    Attributes:
        init: `(key, inputs) -> {"params": …, "batch_stats": …}`; inputs are views [B, V, H, W, C], or `Captioned`.
        embed: `(key, params, batch_stats, target, inputs, *, train) -> (embeddings, batch_stats)`; embeddings is any
            tree of floats [B, …], so that a device that holds an image holds all its views; the key is not that of
            objective; target is `TrainState.target`: a momentum encoder's parameters, or a teacher's variables.
        objective: `(key, embeddings, ids [B], labels [B], *, queue, temperature) -> Objective`; the key is of this
            problem alone, queue and temperature are those of this step.
        features: `(params, batch_stats, images [B, H, W, C]) -> [B, F]`: the frozen backbone that probes see.
        target: from parameters to those that the momentum encoder follows, `TrainState.target`; None where a method
            has none.
        towers: of methods with captions; None where a method has none.
        anchors: `(embeddings, ids, labels) -> (queries [N, D], groups [N])`: what `objective` compares with a queue, in
            its order and beside N keys; None where a queue must be on the device.
    """

    init: Callable[[jax.Array, Any], Variables]
    embed: Callable[..., tuple[Embeddings, Any]]
    objective: Callable[..., Objective]
    features: Callable[..., Float[Array, "b f"]]
    target: Callable[[Any], Any] | None = None
    towers: Towers | None = None
    anchors: Callable[..., tuple[Float[Array, "n d"], Int[Array, " n"]]] | None = None
