"""Two networks compare an image with a bank: KL divergence between their distributions of similarity, streamed.

  loss_i = Σ_j p_ij (log p_ij − log q_ij),  p_i = softmax_j( cos(t_i, b_j) / τ' ),  q_i = softmax_j( cos(s_i, b_j) / τ )

with s the student's embeddings, t the teacher's, and b the bank: the teacher's embeddings of the batch, t_i itself
among them, and the filled rows of a queue of earlier ones. Gradients reach the student alone.

Scores exist for one strip of anchors at a time, and the backward pass computes them again (`jax.checkpoint`): temporary
memory is strip × M scores and one normalised bank, M × D, so it grows linearly in N and in M. Over several devices each
keeps its anchors and gathers the bank, the queue in its storage type.

Source: Fang et al., "SEED: Self-supervised Distillation for Visual Representation" (2021), equations 2 to 5, whose
cross entropy is this less the entropy of p, which has no gradient; Abbasi Koohpayegani, Tejankar and Pirsiavash,
"CompRess: Self-Supervised Learning by Compressing Representations" (2020), which calls it 1q.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from jaxcl.losses.columns import dot
from jaxcl.losses.normalise import normalise
from jaxcl.losses.plan import strip_size

with contextlib.suppress(ImportError):
    from jaxtyping import Array, ArrayLike, Bool, Float


class SimilarityOutput(NamedTuple):
    """What each anchor costs, and how many rows of the bank its teacher means.

    Attributes:
        loss: [N] float32, KL divergence in nats.
        entropy: [N] float32, of the teacher's distribution p, in nats, without gradient.
    """

    loss: Float[Array, " n"]
    entropy: Float[Array, " n"]


def similarity_kl(
    student: ArrayLike,
    teacher: ArrayLike,
    *,
    temperature: ArrayLike,
    teacher_temperature: ArrayLike,
    queue: ArrayLike | None = None,
    queue_filled: ArrayLike | None = None,
    block_size: int | None = None,
    mesh: Mesh | None = None,
    axis_name: str = "data",
) -> SimilarityOutput:
    """KL divergence of the student's distribution of similarity from the teacher's, for each anchor.

    Args:
        student: [N, D], any float dtype; L2-normalised inside, in float32.
        teacher: [N, D], of the same images; without gradient.
        temperature: τ > 0 of the student, may be traced.
        teacher_temperature: τ' > 0 of the teacher.
        queue: [K, D], earlier embeddings of the teacher, any float dtype; without gradient.
        queue_filled: number of its valid rows; None: all of them.
        block_size: anchors a strip; None: chosen from the sizes.
        mesh: devices that share the rows of all three arrays; None: one device.
        axis_name: the axis of the mesh along which they do.

    Returns:
        Loss and entropy of each anchor.

    Raises:
        ValueError: embeddings that are not [N, D] each, or a queue that is not [K, D].

    Example:
        >>> similarity_kl(jnp.eye(4), jnp.eye(4), temperature=0.1, teacher_temperature=0.1).loss.tolist()
        [0.0, 0.0, 0.0, 0.0]
    """
    student, teacher = jnp.asarray(student), lax.stop_gradient(jnp.asarray(teacher))
    if student.ndim != 2 or student.shape != teacher.shape:
        raise ValueError(f"student has shape {student.shape}, must be that of teacher, [N, D], not {teacher.shape}")
    queue = jnp.zeros((0, student.shape[1])) if queue is None else lax.stop_gradient(jnp.asarray(queue))
    if queue.ndim != 2 or queue.shape[1] != student.shape[1]:
        raise ValueError(f"queue has shape {queue.shape}, must be [K, {student.shape[1]}] as teacher")
    if block_size is not None and block_size < 1:
        raise ValueError(f"block_size={block_size} must be at least 1")
    filled = jnp.asarray(queue.shape[0] if queue_filled is None else queue_filled, jnp.int32)
    temperatures = jnp.asarray(temperature, jnp.float32), jnp.asarray(teacher_temperature, jnp.float32)
    if mesh is None or mesh.shape[axis_name] == 1:
        return _rows(student, teacher, _bank(teacher, queue, filled), temperatures, block_size)

    def local(student: Any, teacher: Any, queue: Any, filled: Any, temperatures: Any) -> SimilarityOutput:
        batch, earlier = (lax.all_gather(part, axis_name, tiled=True) for part in (teacher, queue))
        return _rows(student, teacher, _bank(batch, earlier, filled), temperatures, block_size)

    rows, whole = PartitionSpec(axis_name), PartitionSpec()
    spread = jax.shard_map(local, mesh=mesh, in_specs=(rows, rows, rows, whole, whole), out_specs=rows)
    return spread(student, teacher, queue, filled, temperatures)


class _Bank(NamedTuple):
    """What anchors are compared with: unit rows, and which of them count."""

    rows: Float[Array, "m d"]
    valid: Bool[Array, " m"]


def _bank(teacher: Array, queue: Array, filled: Array) -> _Bank:
    """The batch before the queue; a row that does not count is zero, whatever lies there."""
    valid = jnp.arange(teacher.shape[0] + queue.shape[0]) < teacher.shape[0] + filled
    rows = jnp.concatenate([normalise(teacher), normalise(queue)])
    return _Bank(jnp.where(valid[:, None], rows, 0), valid)


def _rows(student: Array, teacher: Array, bank: _Bank, temperatures: Any, block_size: int | None) -> SimilarityOutput:
    """Strip after strip; the last one is filled up with zero vectors, whose results are dropped."""
    count, dim = student.shape
    strip = strip_size(count, bank.rows.shape[0], dim, block_size)
    pad = ((0, -count % strip), (0, 0))
    strips = tuple(jnp.pad(x, pad).reshape(-1, strip, dim) for x in (student, teacher))
    out = lax.map(jax.checkpoint(lambda pair: _strip(pair[0], pair[1], bank, temperatures)), strips)
    return SimilarityOutput(*(x.reshape(-1)[:count] for x in out))


def _strip(student: Array, teacher: Array, bank: _Bank, temperatures: Any) -> SimilarityOutput:
    """The definition, for some anchors."""
    temperature, teacher_temperature = temperatures
    log_p = lax.stop_gradient(_log_softmax(teacher, bank, teacher_temperature))
    log_q = _log_softmax(student, bank, temperature)
    p = jnp.exp(log_p)
    # outside of the bank both are −inf
    loss = jnp.sum(p * jnp.where(bank.valid, log_p - log_q, 0), axis=1)
    return SimilarityOutput(loss, -jnp.sum(p * jnp.where(bank.valid, log_p, 0), axis=1))


def _log_softmax(embeddings: Array, bank: _Bank, temperature: Array) -> Array:
    """Logarithms of a distribution over the bank; −inf where a row does not count."""
    scores = dot(normalise(embeddings), bank.rows.T) / temperature
    return jax.nn.log_softmax(jnp.where(bank.valid, scores, -jnp.inf), axis=1)
