"""Distillation: a student sees the views that a trained teacher sees, and learns to say the same.

  loss = feature_weight · mean( 2 − 2 cos(W f_s + b, f_t) ) + similarity_weight · mean( KL(p ‖ q) )

over the 2B views. f are features of student and teacher; W and b are the student's, since the two may differ in width.
p and q are distributions of similarity to a bank, of the teacher's embedding at `distill.teacher_temperature` and of
the student's at `loss.temperature`; the bank is the teacher's embeddings of the batch and the queue of earlier ones:
`jaxcl.losses.similarity` has the formula. The teacher runs with its running batch statistics, and nothing moves it: its
variables are `TrainState.target`, so a checkpoint of the student holds them.

Source: Fang et al., "SEED: Self-supervised Distillation for Visual Representation" (2021); Abbasi Koohpayegani,
Tejankar and Pirsiavash, "CompRess: Self-Supervised Learning by Compressing Representations" (2020). Features through a
linear map: Romero et al., "FitNets: Hints for Thin Deep Nets" (2015), with unit vectors as in BYOL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float

from jaxcl.config import Config
from jaxcl.losses import similarity_kl
from jaxcl.methods.base import Method, Objective, Teacher, Traits
from jaxcl.methods.parts.contrast import cosine
from jaxcl.methods.parts.networks import flat, make_features, make_init, run

TRAITS = Traits(queue=True, teacher=True)
MAP = "map"  # of the student's features to the teacher's
ALL = 1 << 30  # anchors a strip: one strip


class Lesson(NamedTuple):
    """What a student and its teacher say of each view, by what the loss compares: "features", "embeddings" or both.

    Attributes:
        student: [B, V, D] each.
        teacher: the same, without gradient.
    """

    student: dict[str, Float[Array, "b v d"]]
    teacher: dict[str, Float[Array, "b v d"]]


def make_method(
    *, networks: Mapping[str, nn.Module], config: Config, mesh: Mesh | None = None, teacher: Teacher
) -> Method:
    """Distillation into an encoder, with a projection head and a linear map as far as the loss needs them.

    Args:
        networks: encoder and head by these names.
        config: weights and the teacher's temperature in `distill`, anchors a strip in `loss`.
        mesh: whose `data` axis shares batch and queue; None: one device.
        teacher: whom to learn from; its variables are the target of `embed`.

    Returns:
        The method; its variables are `{"encoder": …}` in each collection, with "map" where features count and "head"
        where similarities do. A queue receives the teacher's embeddings.
    """
    settings, loss = config.distill, config.loss
    first = {"encoder": networks["encoder"]}
    branches: dict[str, tuple[str, nn.Module, str]] = {}  # what is compared: the student's network, the teacher's
    if settings.feature_weight:
        branches["features"] = MAP, Map(teacher.feature_dim), "encoder"
    if settings.similarity_weight:
        branches["embeddings"] = "head", networks["head"], "head"
    main = "embeddings" if settings.similarity_weight else "features"
    block_size = ALL if loss.impl == "dense" else loss.block_size

    def init(key: Any, views: Any) -> dict[str, Any]:
        chains = [make_init(first | {name: module})(key, views) for name, module, _ in branches.values()]
        # all of them begin with the same encoder
        return {kind: {k: v for chain in chains for k, v in chain[kind].items()} for kind in ("params", "batch_stats")}

    def embed(key: Any, params: Any, batch_stats: Any, target: Any, views: Any, *, train: bool) -> tuple[Lesson, Any]:
        del key
        images, student = flat(views), {}
        outputs, stats = run(first, params, batch_stats, images, train=train)
        for what, (name, module, _) in branches.items():
            out, stats = run({name: module}, params, stats, outputs["encoder"], train=train)
            student[what] = out[name]
        said = teacher.apply(target, images)
        taught = {what: jax.lax.stop_gradient(said[name]) for what, (_, _, name) in branches.items()}
        return jax.tree.map(lambda x: x.reshape(*views.shape[:2], -1), Lesson(student, taught)), stats

    def objective(key: Any, embeddings: Lesson, ids: Any, labels: Any, *, queue: Any, temperature: Any) -> Objective:
        del key, labels
        metrics, total = {}, jnp.zeros(())
        agreement = {what: cosine(x, embeddings.teacher[what]) for what, x in embeddings.student.items()}
        if settings.feature_weight:
            metrics["feature_loss"] = jnp.mean(2 - 2 * agreement["features"])
            total += settings.feature_weight * metrics["feature_loss"]
        if settings.similarity_weight:
            student, taught = (x["embeddings"] for x in embeddings)
            out = similarity_kl(
                student.reshape(-1, student.shape[-1]),
                taught.reshape(-1, taught.shape[-1]),
                temperature=temperature,
                teacher_temperature=settings.teacher_temperature,
                queue=None if queue is None else queue.values,
                queue_filled=None if queue is None else queue.filled,
                block_size=block_size,
                mesh=mesh,
            )
            metrics["similarity_loss"] = jnp.mean(out.loss)
            metrics["temperature"] = jnp.asarray(temperature, jnp.float32)
            # of the bank as many rows as a uniform distribution of the same entropy has
            metrics["teacher_perplexity"] = jnp.exp(jnp.mean(out.entropy))
            total += settings.similarity_weight * metrics["similarity_loss"]
        metrics |= {"positive_cosine": jnp.mean(agreement[main]), "negatives_per_anchor": jnp.zeros(())}
        push = embeddings.teacher[main][:, 0]  # one view of an image: the other would repeat it
        return Objective(total, jax.tree.map(jax.lax.stop_gradient, metrics), push, ids)

    return Method(init, embed, objective, make_features(first))


class Map(nn.Module):
    """A linear map, called like a projection head."""

    dim: int

    @nn.compact
    def __call__(self, x: Float[Array, "n f"], train: bool = False) -> Float[Array, "n d"]:
        """From the student's features to the width of the teacher's."""
        del train
        return nn.Dense(self.dim, name="dense")(x)
