"""The same steps with the optimizer, and with the queue, on the host: equal numbers, and less of the device in use.

A linear encoder is enough: what is moved does not depend on it. The moments must come back with every bit; the loss
against a queue in blocks adds its terms in another order, so there the largest difference is told.
"""

from __future__ import annotations

import gc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxcl import hostqueue
from jaxcl.blockwise import make_blockwise
from jaxcl.cached import make_programs
from jaxcl.config import BatchConfig, Config, LossConfig, ModelConfig, QueueConfig
from jaxcl.hosted import HostedStep
from jaxcl.losses import mean_infonce
from jaxcl.mesh import make_mesh
from jaxcl.methods.base import Method, Objective
from jaxcl.methods.parts.contrast import loss_options, queue_options
from jaxcl.portions import Portions
from jaxcl.state import make_init_state, state_shardings

STEPS = 3
TOLERANCE = 1e-4  # of a queue in blocks, relative to the largest number of an array


class Scale(NamedTuple):
    """How large.

    Attributes:
        images: of a batch.
        pixels: numbers of an image, and rows of the encoder's kernel.
        dim: of an embedding.
        queue: rows.
        rows: of a block.
        top_k: negatives kept.
    """

    images: int
    pixels: int
    dim: int
    queue: int
    rows: int
    top_k: int


FULL = Scale(256, 3 * 224 * 224, 128, 1 << 20, 1 << 15, 64)  # momentum 74 MiB, queue 256 MiB
DRY = Scale(12, 12, 4, 20, 8, 3)


def offloads(scale: Scale) -> list[dict[str, Any]]:
    """Runs the step without offload, with the moments on the host, and with the queue there.

    Args:
        scale: sizes.

    Returns:
        For "moments" and "queue" whether it agrees, the largest difference, bytes moved, and by how many bytes the
        device's use fell between two steps; None where the device does not tell.
    """
    plain, used = _run(scale, moments=False, queue=False)
    found = []
    for what in ("moments", "queue"):
        moved, less = _run(scale, moments=what == "moments", queue=what == "queue")
        bits = _differing(plain, moved)
        difference = _difference(plain, moved)
        size = scale.pixels * scale.dim * 4 if what == "moments" else scale.queue * scale.dim * 2
        found.append(
            {
                "what": what,
                "agrees": bits == 0 if what == "moments" else difference <= TOLERANCE,
                "differing_numbers": bits,
                "largest_difference": difference,
                "bytes_moved": size,
                "bytes_saved": None if used is None or less is None else used - less,
            }
        )
    return found


def line(row: dict[str, Any]) -> str:
    """One result for people.

    Args:
        row: of `offloads`.

    Returns:
        A line.
    """
    saved = "the device does not tell" if row["bytes_saved"] is None else f"{row['bytes_saved'] / 2**20:.1f} MiB less"
    equal = "every bit equal" if row["differing_numbers"] == 0 else f"up to {row['largest_difference']:.2g} apart"
    wrong = "" if row["agrees"] else "  WRONG"
    return f"{row['what']} on the host: {equal}; {row['bytes_moved'] / 2**20:.1f} MiB moved, in use {saved}{wrong}"


def _method(config: Config) -> Method:
    """SimCLR over a linear map."""

    def init(key: Any, views: Any) -> dict[str, Any]:
        shape = (views.shape[-1], config.model.head_dim)
        return {"params": {"kernel": jax.random.normal(key, shape) / shape[0] ** 0.5}, "batch_stats": {}}

    def embed(key: Any, params: Any, batch_stats: Any, target: Any, views: Any, *, train: bool) -> tuple[Any, Any]:
        del key, target, train
        return views.reshape(*views.shape[:2], -1) @ params["kernel"], batch_stats

    def anchors(embeddings: Any, ids: Any, labels: Any) -> tuple[Any, Any]:
        del labels
        return embeddings.reshape(-1, embeddings.shape[-1]), jnp.repeat(ids, 2)

    def objective(key: Any, embeddings: Any, ids: Any, labels: Any, *, queue: Any, temperature: Any) -> Objective:
        views, groups = anchors(embeddings, ids, labels)
        options = dict(loss_options(config.loss, temperature, key), **queue_options(queue))
        value, _ = mean_infonce(views, views, groups, groups, exclude_diagonal=True, **options)
        return Objective(value, {}, embeddings[:, 0], ids)

    return Method(init, embed, objective, lambda *_: jnp.zeros((1, 1)), anchors=anchors)


def _run(scale: Scale, *, moments: bool, queue: bool) -> tuple[Any, int | None]:
    """What some steps leave, on the host, and the bytes of the device that were in use between them."""
    images, dim, mesh = scale.images, scale.dim, make_mesh(1)
    config = Config(
        model=ModelConfig(head_dim=dim),
        loss=LossConfig(top_k=scale.top_k),
        queue=QueueConfig(size=scale.queue, offload=queue),
        batch=BatchConfig(size=images, micro=images // 4, mode="cached", images="host"),
    )
    method, rule = _method(config), optax.sgd(0.1, momentum=0.9)
    shapes: dict[str, Any] = dict(views_shape=(2, 2, 1, 1, scale.pixels), queue_dim=dim, queue_dtype="float16")
    init = make_init_state(method, rule, queue_size=0 if queue else scale.queue, **shapes)
    state = jax.eval_shape(init, jax.random.key(0))
    bank = hostqueue.init(scale.queue, dim, rows=scale.rows) if queue else None
    state = state if bank is None else state._replace(queue=bank)
    placed = state_shardings(state, mesh, offload=moments)
    like = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, placed)
    portions = Portions(images, images // 4)
    given: dict[str, Any] = dict(learning_rate=lambda _: 1e-3, temperature=lambda *_: config.loss.temperature)
    programs = make_programs(method, rule, lambda batch: batch["views"], portions=portions, **given)
    loss = make_blockwise(config, method, mesh=mesh, like=like) if queue else None
    step = HostedStep(programs, portions, mesh=mesh, like=like, bank=loss)
    gc.collect()
    before = _in_use()
    state = jax.jit(init, out_shardings=placed._replace(queue=None) if queue else placed)(jax.random.key(0))
    state = state if bank is None else state._replace(queue=jax.device_put(bank, placed.queue))
    for number in range(STEPS):
        state, metrics = step(state, _batch(scale, number))
    jax.block_until_ready(state)
    gc.collect()
    used, told = _in_use(), jax.device_get((state, metrics))
    if queue:
        rows = np.concatenate(told[0].queue.values)[: scale.queue]
        told = told[0]._replace(queue=(rows, *told[0].queue[1:])), told[1]
    numbers = jax.tree.leaves(told[0]) + [told[1][name] for name in sorted(told[1])]
    return numbers, None if used is None or before is None else used - before


def _batch(scale: Scale, number: int) -> dict[str, np.ndarray]:
    """Random images on the host."""
    views = np.random.default_rng(number).random((scale.images, 2, 1, 1, scale.pixels), np.float32)
    ids = np.arange(scale.images, dtype=np.int32) + number * scale.images
    return {"views": views, "id": ids, "label": np.full_like(ids, -1)}


def _in_use() -> int | None:
    """Bytes of the first device that are in use; None where it does not tell."""
    stats = jax.devices()[0].memory_stats()
    return stats["bytes_in_use"] if stats else None


def _differing(one: list[Any], other: list[Any]) -> int:
    """How many numbers are not the same."""
    return sum(int(np.sum(np.asarray(a) != np.asarray(b))) for a, b in zip(one, other, strict=True))


def _difference(one: list[Any], other: list[Any]) -> float:
    """The largest difference, relative to the largest number of its array."""

    def apart(a: Any, b: Any) -> float:
        a, b = (np.asarray(x, np.float64) for x in (a, b))
        return float(np.max(np.abs(a - b), initial=0.0) / max(np.max(np.abs(a), initial=0.0), 1e-12))

    return max(apart(a, b) for a, b in zip(one, other, strict=True))
