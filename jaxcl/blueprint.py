"""What a config and a few facts about its data make: mesh, method, shapes of a state, train step; no file, no array."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jaxcl import hostqueue, methods
from jaxcl.augment import augment
from jaxcl.blockwise import make_blockwise
from jaxcl.cached import make_cached_step, make_programs
from jaxcl.config import Config, check_colour, check_devices, first_loss_scale, mesh_sizes, micro_size, num_micro
from jaxcl.hosted import HostedStep
from jaxcl.hostqueue import HostQueue
from jaxcl.mesh import DATA, along_data, make_mesh, replicated
from jaxcl.methods.base import Captioned, Method
from jaxcl.models import make_encoder, make_head, make_predictor, make_text_tower
from jaxcl.optim import make_optimizer
from jaxcl.pixels import channels_seen, normalised
from jaxcl.portions import Portions
from jaxcl.schedules import make_decay, make_learning_rate, make_queue_length, make_temperature
from jaxcl.state import TrainState, make_init_state, state_shardings
from jaxcl.step import make_train_step
from jaxcl.teacher import TeacherRun

# Flax's batch norm keeps this share of the running statistics at each real update
NORM_MOMENTUM = 0.9


class Facts(NamedTuple):
    """What a train step must know of its data.

    Attributes:
        channels: of an image.
        labels: whether training images have them.
        captions: whether they have them.
        vocab: different tokens of a caption; None where the method reads none.
        length: tokens of a caption; None there too.
    """

    channels: int
    labels: bool
    captions: bool
    vocab: int | None = None
    length: int | None = None


class Blueprint(NamedTuple):
    """A run before its data and its arrays.

    Attributes:
        config: the checked configuration.
        facts: what was taken for granted of its data.
        mesh: devices.
        method: embeddings and objective.
        optimizer: of the real updates.
        init_state: `(key, given={}) -> TrainState`, to be run under `jax.jit`; the target of a teacher is left out, and
            a queue on the host.
        bank: makes the queue that waits on the host, or None.
        like: shapes and shardings of a state.
        train_step: `(state, batch) -> (state, metrics)`, compiled at its first call; the old state is given up.
        teacher: the run that the method learns from, or None.
    """

    config: Config
    facts: Facts
    mesh: Mesh
    method: Method
    optimizer: optax.GradientTransformation
    init_state: Callable[..., TrainState]
    bank: Callable[[], HostQueue] | None
    like: TrainState
    train_step: Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]
    teacher: TeacherRun | None


def draw(
    config: Config,
    facts: Facts,
    find_teacher: Callable[..., TeacherRun],
    *,
    devices: Sequence[jax.Device] | None = None,
) -> Blueprint:
    """Makes all of a run that needs neither data nor memory; nothing is compiled yet.

    Args:
        config: from `jaxcl.config.resolve`.
        facts: of its data.
        find_teacher: `(config, *, channels) -> TeacherRun`, called where the method has a teacher.
        devices: that the mesh is made of, which may not be there; None: all of this machine.

    Returns:
        The blueprint.

    Raises:
        ConfigError: what the data, the devices or the teacher do not allow.
    """
    methods.check(config, has_labels=facts.labels, has_captions=facts.captions)
    check_colour(config, facts.channels)
    devices = jax.devices() if devices is None else devices
    check_devices(config, len(devices))
    mesh = make_mesh(*mesh_sizes(config.mesh.shape, len(devices)), devices=devices)
    # so that a real update forgets as much in k micro-batches as in one
    momentum = NORM_MOMENTUM ** (1 / num_micro(config))
    looped = num_micro(config) > 1 and config.batch.images == "device" and devices[0].platform == "cpu"
    networks = make_networks(config, norm_momentum=momentum, vocab=facts.vocab, looped=looped)
    teacher = find_teacher(config, channels=facts.channels) if methods.traits(config.method).teacher else None
    given = {"teacher": teacher.teacher} if teacher else {}
    method = methods.find(config.method)(networks=networks, config=config, mesh=mesh, **given)
    averaged = num_micro(config) if config.batch.mode == "accumulate" else 1
    size, steps = config.batch.size, config.steps
    optimizer = make_optimizer(config.optim, batch_size=size, total_steps=steps, num_micro=averaged)
    init_state = make_init(config, facts, method, optimizer)
    shapes = jax.eval_shape(init_state, jax.random.key(0))
    shapes = shapes if teacher is None else shapes._replace(target=teacher.like)
    bank = None
    if config.queue.offload:
        sizes = config.queue.size, config.model.head_dim, config.queue.dtype
        bank = functools.partial(hostqueue.init, *sizes, devices=mesh.shape[DATA])
    shapes = shapes if bank is None else shapes._replace(queue=jax.eval_shape(bank))
    shardings = state_shardings(shapes, mesh, offload=config.optim.offload)
    like = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
    train_step = make_step(config, method, optimizer, mesh=mesh, like=like)
    return Blueprint(config, facts, mesh, method, optimizer, init_state, bank, like, train_step, teacher)


def make_init(
    config: Config, facts: Facts, method: Method, optimizer: optax.GradientTransformation
) -> Callable[..., TrainState]:
    """The function that makes the first state from a key.

    Args:
        config: sizes of images and queue, and low-rank adaptation.
        facts: channels, and tokens of a caption.
        method: whose variables to make.
        optimizer: whose state to make.

    Returns:
        `init_state(key, given={}) -> TrainState`.
    """
    side, views = config.data.image_size, methods.traits(config.method).views
    return make_init_state(
        method,
        optimizer,
        views_shape=(2, views, side, side, channels_seen(config.data, facts.channels)),
        tokens_shape=None if facts.length is None else (2, facts.length),
        queue_size=0 if config.queue.offload else config.queue.size,
        queue_dim=config.model.head_dim,
        queue_dtype=config.queue.dtype,
        queue_rows=config.queue.start if config.queue.adapt else None,
        adapted=config.lora,
        loss_scale=first_loss_scale(config),
    )


def batch_shapes(config: Config, facts: Facts, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of a training batch.

    Args:
        config: images of a batch, and their size.
        facts: channels, and tokens of a caption.
        mesh: devices that share it.

    Returns:
        By name, over all processes, [batch.size, …] each.
    """
    side, views, size = config.data.image_size, methods.traits(config.method).views, config.batch.size
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {"views": ((views, side, side, facts.channels), jnp.uint8)}
    shapes |= dict.fromkeys(("id", "label", "epoch", "bad"), ((), jnp.int32))
    shapes |= {} if facts.length is None else {"tokens": ((facts.length,), jnp.int32)}
    rows = along_data(mesh)
    return {name: jax.ShapeDtypeStruct((size, *rest), kind, sharding=rows) for name, (rest, kind) in shapes.items()}


def make_step(
    config: Config, method: Method, optimizer: optax.GradientTransformation, *, mesh: Mesh, like: TrainState
) -> Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]:
    """The train step of `batch.mode`, which compiles at its first call.

    Args:
        config: the run.
        method: embeddings and objective.
        optimizer: for as many gradients a real update as the mode makes.
        mesh: devices.
        like: shapes and shardings of a state.

    Returns:
        `(state, batch) -> (state, metrics)`; the old state is given up. A `HostedStep` where the images wait on the
        host or the disk, else a jitted function.
    """
    size, steps = config.batch.size, config.steps
    given = dict(
        seed=config.seed,
        learning_rate=make_learning_rate(config.optim, batch_size=size, total_steps=steps),
        temperature=make_temperature(config.loss, total_steps=steps),
        target_decay=make_decay(config.target, total_steps=steps),
        queue_length=make_queue_length(config.queue, total_steps=steps),
        queue_sample=config.queue.sample,
        loss_scale_steps=config.optim.loss_scale_steps,
    )
    parts = method, optimizer, make_prepare(config)
    if config.batch.mode == "accumulate":
        step = make_train_step(*parts, num_micro=num_micro(config), **given)
    else:
        portions = Portions(size, micro_size(config))
        programs = make_programs(*parts, portions=portions, **given)
        if config.batch.images != "device":
            bank = make_blockwise(config, method, mesh=mesh, like=like) if config.queue.offload else None
            return HostedStep(programs, portions, mesh=mesh, like=like, bank=bank)
        step = make_cached_step(programs, portions)
    state, batch, everywhere = jax.tree.map(lambda x: x.sharding, like), along_data(mesh), replicated(mesh)
    return jax.jit(step, in_shardings=(state, batch), out_shardings=(state, everywhere), donate_argnums=0)


def make_networks(
    config: Config, *, norm_momentum: float, vocab: int | None, looped: bool = False
) -> dict[str, nn.Module]:
    """The networks that a method may be made of.

    Args:
        config: `model` and `text`.
        norm_momentum: share of the running batch statistics that a micro-batch keeps.
        vocab: different tokens of captions; None: there are none.
        looped: whether micro-batches are a loop within one program for a CPU.

    Returns:
        Modules by name: encoder, head and predictor, with captions text and text_head.
    """
    encoder = functools.partial(make_encoder, looped=looped)
    makers: dict[str, Any] = {"encoder": encoder, "head": make_head, "predictor": make_predictor}
    makers |= {"text_head": make_head} if vocab else {}
    networks = {name: make(config.model, norm_momentum=norm_momentum) for name, make in makers.items()}
    return networks | ({"text": make_text_tower(config.text, config.model, vocab=vocab)} if vocab else {})


def make_prepare(config: Config) -> Callable[[dict[str, Any]], Any]:
    """The function from a batch to augmented, normalised views on the device, and its captions if it has any.

    Args:
        config: seed, augmentation, mean and standard deviation of pixels.

    Returns:
        `prepare(batch) -> [B, V, H, W, C]`, float32, or `Captioned`; random numbers depend on seed, image, view and
        epoch alone.
    """

    def prepare(batch: dict[str, Any]) -> Any:
        key = jax.random.key(config.seed)
        views = augment(key, batch["views"], batch["id"], batch["epoch"], config=config.augment)
        views = normalised(jnp.swapaxes(views, 0, 1), config.data)
        return Captioned(views, batch["tokens"]) if "tokens" in batch else views

    return prepare
