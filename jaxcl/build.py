"""From a configuration to the parts of a run: data, mesh, method, first state, train step, encoder."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.tree_util import Partial

from jaxcl import lora, methods
from jaxcl.assess import Readers, as_unit
from jaxcl.augment import augment
from jaxcl.cached import make_cached_step, make_programs
from jaxcl.config import Config, check_colour, check_devices, mesh_sizes, micro_size, num_micro
from jaxcl.data import (
    EVAL_EPOCH,
    BadImages,
    Splits,
    Tokenizer,
    check_readable,
    eval_batches,
    make_tokenizer,
    open_source,
)
from jaxcl.hosted import HostedStep
from jaxcl.mesh import along_data, make_mesh, replicated
from jaxcl.methods.base import Captioned, Method
from jaxcl.models import make_encoder, make_head, make_predictor, make_text_tower
from jaxcl.optim import make_optimizer
from jaxcl.pixels import channels_seen, normalised
from jaxcl.portions import Portions
from jaxcl.pretrained import find_weights
from jaxcl.schedules import make_decay, make_learning_rate, make_queue_length, make_temperature
from jaxcl.state import TrainState, make_init_state, state_shardings
from jaxcl.step import make_train_step
from jaxcl.teacher import TeacherRun, find_teacher

# Flax's batch norm keeps this share of the running statistics at each real update
NORM_MOMENTUM = 0.9


class Bad(NamedTuple):
    """The unreadable images met so far, by split."""

    train: BadImages
    test: BadImages


@dataclass(frozen=True)
class Parts:
    """What a run is made of; nothing here changes while it trains.

    Attributes:
        config: the checked configuration.
        splits: images to train on, and held out.
        bad: those of them that could not be read, so far.
        mesh: devices.
        method: embeddings and objective.
        init_state: `(seed) -> TrainState`, placed on the mesh.
        base: `() -> TrainState.frozen`, made anew from pretrained weights and the seed; None where nothing is frozen.
        like: shapes and shardings of a state.
        train_step: `(state, batch) -> (state, metrics)`, compiled at its first call; the old state is given up.
        place: batch of numpy arrays of this process to global arrays on the mesh.
        encoder: `state -> Partial`, from images in [0, 1] to features, the frozen encoder that probes see.
        untrained: `(seed) -> Partial`, that of the first state; it needs no teacher.
        teacher: settings of the run that the method learns from, or None.
        readers: of the images that probes see.
        tokenizer: of captions; None where the method reads none.
        towers: `state -> (Partial, Partial)`, from images in [0, 1] and from tokens to vectors compared by cosine; None
            where the method reads no captions.
    """

    config: Config
    splits: Splits
    bad: Bad
    mesh: Mesh
    method: Method
    init_state: Callable[[int], TrainState]
    base: Callable[[], Any] | None
    like: TrainState
    train_step: Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]
    place: Callable[[dict[str, np.ndarray]], dict[str, jax.Array]]
    encoder: Callable[[TrainState], Partial]
    untrained: Callable[[int], Partial]
    teacher: Config | None
    readers: Readers
    tokenizer: Tokenizer | None
    towers: Callable[[TrainState], tuple[Partial, ...]] | None


def build(config: Config, known_teacher: Config | None = None, *, fresh: bool = True) -> Parts:
    """Makes the parts of a run; nothing is compiled yet, and one held-out image is read.

    Args:
        config: from `jaxcl.config.resolve`.
        known_teacher: settings of a teacher whose folder may be gone, from `jaxcl.teacher.remembered`.
        fresh: whether there is no checkpoint yet, so that pretrained weights must be there.

    Returns:
        The parts.

    Raises:
        ConfigError: what the data, the devices, the teacher or pretrained weights do not allow.
    """
    traits = methods.traits(config.method)
    splits = open_source(config.data, captions=traits.captions)
    check_readable(splits.test)
    images = max(map(len, splits))  # a larger batch would be padded to its size
    config = replace(config, eval=replace(config.eval, batch=min(config.eval.batch, images)))
    check_colour(config, splits.train.channels)
    methods.check(config, has_labels=bool(splits.train.classes), has_captions=splits.train.has_captions)
    tokenizer = make_tokenizer(config.text) if traits.captions else None
    bad = Bad(*(BadImages(split, config.data.max_bad_fraction) for split in splits))
    check_devices(config, jax.device_count())
    mesh = make_mesh(*mesh_sizes(config.mesh.shape, jax.device_count()))
    # so that a real update forgets as much in k micro-batches as in one
    momentum = NORM_MOMENTUM ** (1 / num_micro(config))
    networks = make_networks(config, norm_momentum=momentum, vocab=tokenizer.vocab if tokenizer else None)
    source, given = None, {}
    if traits.teacher:
        source = find_teacher(config, channels=splits.train.channels, known=known_teacher)
        given = {"teacher": source.teacher}
    method = methods.find(config.method)(networks=networks, config=config, mesh=mesh, **given)
    size, steps = config.batch.size, config.steps
    averaged = num_micro(config) if config.batch.mode == "accumulate" else 1
    optimizer = make_optimizer(config.optim, batch_size=size, total_steps=steps, num_micro=averaged)
    side = config.data.image_size
    init_state = make_init_state(
        method,
        optimizer,
        views_shape=(2, traits.views, side, side, channels_seen(config.data, splits.train.channels)),
        tokens_shape=(2, tokenizer.length) if tokenizer else None,
        queue_size=config.queue.size,
        queue_dim=config.model.head_dim,
        queue_dtype=config.queue.dtype,
        queue_rows=config.queue.start if config.queue.adapt else None,
        adapted=config.lora,
    )
    shapes = jax.eval_shape(init_state, jax.random.key(0))
    shapes = shapes if source is None else shapes._replace(target=source.like)
    shardings = state_shardings(shapes, mesh)
    whole = jax.eval_shape(lora.merge, shapes.params, shapes.frozen)
    needed = fresh or shapes.frozen is not None  # a checkpoint holds all weights but frozen ones
    weights = find_weights(config, {"params": whole, "batch_stats": shapes.batch_stats}, check=needed, fresh=fresh)
    first = make_first_state(init_state, shardings, source, weights)
    like = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
    train_step = make_step(config, method, optimizer, mesh=mesh, like=like)

    def on_images(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def apply(params: Any, batch_stats: Any, images: jax.Array) -> jax.Array:
            return function(params, batch_stats, normalised(as_unit(images), config.data))

        return apply

    encode, towers = on_images(method.features), method.towers
    compared = towers and (on_images(towers.image), towers.text)

    def of(state: TrainState, function: Callable[..., jax.Array]) -> Partial:
        return Partial(function, lora.joined(state.params, state.frozen), state.batch_stats)

    def encoder(state: TrainState) -> Partial:
        return of(state, encode)

    return Parts(
        config=config,
        splits=splits,
        bad=bad,
        mesh=mesh,
        method=method,
        init_state=first,
        base=None if shapes.frozen is None else lambda: first(config.seed, teach=False).frozen,
        like=like,
        train_step=train_step,
        place=make_place(config, mesh),
        encoder=encoder,
        untrained=lambda seed: encoder(first(seed, teach=False, load=False)),
        teacher=source and source.config,
        readers=make_readers(config, splits, bad),
        tokenizer=tokenizer,
        towers=compared and (lambda state: tuple(of(state, function) for function in compared)),
    )


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
    )
    parts = method, optimizer, make_prepare(config)
    if config.batch.mode == "accumulate":
        step = make_train_step(*parts, num_micro=num_micro(config), **given)
    else:
        portions = Portions(size, micro_size(config))
        programs = make_programs(*parts, portions=portions, **given)
        if config.batch.images != "device":
            return HostedStep(programs, portions, mesh=mesh, like=like)
        step = make_cached_step(programs, portions)
    state, batch, everywhere = jax.tree.map(lambda x: x.sharding, like), along_data(mesh), replicated(mesh)
    return jax.jit(step, in_shardings=(state, batch), out_shardings=(state, everywhere), donate_argnums=0)


def make_place(config: Config, mesh: Mesh) -> Callable[[dict[str, np.ndarray]], Any]:
    """The function from a batch of this process to what the train step takes.

    Args:
        config: where images wait.
        mesh: devices that share a batch.

    Returns:
        `place(arrays) -> arrays`, global ones on the mesh; the same ones where the step itself places them.
    """
    if config.batch.images != "device":
        return lambda arrays: arrays
    batch = along_data(mesh)
    return lambda arrays: {k: jax.make_array_from_process_local_data(batch, v) for k, v in arrays.items()}


def make_first_state(
    init_state: Callable[..., TrainState],
    shardings: Any,
    source: TeacherRun | None,
    weights: Callable[[], dict[str, Any]] | None = None,
) -> Callable[..., TrainState]:
    """The function that makes the first state, placed on the mesh.

    Args:
        init_state: from a key, and from pretrained variables where there are some.
        shardings: of all of it.
        source: whose variables are its target; None: a method without a teacher.
        weights: reads pretrained variables; None: there are none.

    Returns:
        `first_state(seed, *, teach=True, load=True) -> TrainState`; the teacher and pretrained weights are read from
        disk at each call, or left out, so that all of it is random.
    """

    def first_state(seed: int, *, teach: bool = True, load: bool = True) -> TrainState:
        given = [weights()] if weights and load else []
        own = shardings if source is None else shardings._replace(target=None)
        student = jax.jit(init_state, out_shardings=own)(jax.random.key(seed), *given)
        return student._replace(target=source.load(shardings.target)) if source and teach else student

    return first_state


def make_networks(config: Config, *, norm_momentum: float, vocab: int | None) -> dict[str, nn.Module]:
    """The networks that a method may be made of.

    Args:
        config: `model` and `text`.
        norm_momentum: share of the running batch statistics that a micro-batch keeps.
        vocab: different tokens of captions; None: there are none.

    Returns:
        Modules by name: encoder, head and predictor, with captions text and text_head.
    """
    makers = {"encoder": make_encoder, "head": make_head, "predictor": make_predictor}
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


def make_readers(config: Config, splits: Splits, bad: Bad) -> Readers:
    """How probes read the images: whole ones of both splits, and two augmented views of each held-out one.

    Args:
        config: the run.
        splits: its images.
        bad: ledgers of unreadable images, which are left out.

    Returns:
        Readers that start from the first image at each call.
    """
    read = functools.partial(eval_batches, config=config.data, batch=config.eval.batch)

    @jax.jit
    def augmented(views: Any, ids: Any) -> jax.Array:
        epochs = jnp.full_like(ids, EVAL_EPOCH)
        return jnp.swapaxes(augment(jax.random.key(config.seed), views, ids, epochs, config=config.augment), 0, 1)

    def views() -> Iterator[np.ndarray]:
        for chunk in read(splits.test, augment=config.augment, seed=config.seed, bad=bad.test):
            yield np.asarray(augmented(chunk["images"], chunk["id"]))

    return Readers(
        train=lambda: read(splits.train, bad=bad.train),
        test=lambda: read(splits.test, bad=bad.test),
        views=views,
    )


def warn_of_stale_negatives(config: Config, images: int) -> None:
    """Says so when the queue outlives an epoch: then it holds an anchor's own earlier embeddings.

    Args:
        config: the run.
        images: to train on.
    """
    if config.queue.size > images:
        warnings.warn(
            f"queue.size = {config.queue.size} is {config.queue.size / images:.1f} times the {images} training images: "
            "it holds the same image more than once (an image's own earlier embeddings are never its negatives)",
            stacklevel=3,
        )
