"""From a configuration to the parts of a run: data, what `jaxcl.blueprint` makes of it, first state, encoder."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import Partial

from jaxcl import lora, methods
from jaxcl.assess import Readers, as_unit
from jaxcl.augment import augment
from jaxcl.blueprint import Facts, draw
from jaxcl.config import Config
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
from jaxcl.hostqueue import HostQueue
from jaxcl.mesh import along_data
from jaxcl.methods.base import Method
from jaxcl.pixels import normalised
from jaxcl.pretrained import find_weights
from jaxcl.state import TrainState
from jaxcl.teacher import TeacherRun, find_teacher


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


def build(
    config: Config, known_teacher: Config | None = None, *, fresh: bool = True, splits: Splits | None = None
) -> Parts:
    """Makes the parts of a run; nothing is compiled yet, and one held-out image is read.

    Args:
        config: from `jaxcl.config.resolve`.
        known_teacher: settings of a teacher whose folder may be gone, from `jaxcl.teacher.remembered`.
        fresh: whether there is no checkpoint yet, so that pretrained weights must be there.
        splits: what stands for its images; None: those of `data.name`.

    Returns:
        The parts.

    Raises:
        ConfigError: what the data, the devices, the teacher or pretrained weights do not allow.
    """
    traits = methods.traits(config.method)
    splits = splits or open_source(config.data, captions=traits.captions)
    check_readable(splits.test)
    images = max(map(len, splits))  # a larger batch would be padded to its size
    config = replace(config, eval=replace(config.eval, batch=min(config.eval.batch, images)))
    tokenizer = make_tokenizer(config.text) if traits.captions else None
    drawn = draw(config, facts_of(splits, tokenizer), functools.partial(find_teacher, known=known_teacher))
    bad = Bad(*(BadImages(split, config.data.max_bad_fraction) for split in splits))
    like, source = drawn.like, drawn.teacher
    whole = jax.eval_shape(lora.merge, like.params, like.frozen)
    needed = fresh or like.frozen is not None  # a checkpoint holds all weights but frozen ones
    weights = find_weights(config, {"params": whole, "batch_stats": like.batch_stats}, check=needed, fresh=fresh)
    first = make_first_state(drawn.init_state, jax.tree.map(lambda x: x.sharding, like), source, weights, drawn.bank)
    encoder, towers = make_encoders(config, drawn.method)
    return Parts(
        config=config,
        splits=splits,
        bad=bad,
        mesh=drawn.mesh,
        method=drawn.method,
        init_state=first,
        base=None if like.frozen is None else lambda: first(config.seed, teach=False).frozen,
        like=like,
        train_step=drawn.train_step,
        place=make_place(config, drawn.mesh),
        encoder=encoder,
        untrained=lambda seed: encoder(first(seed, teach=False, load=False)),
        teacher=source and source.config,
        readers=make_readers(config, splits, bad),
        tokenizer=tokenizer,
        towers=towers,
    )


def facts_of(splits: Splits, tokenizer: Tokenizer | None) -> Facts:
    """What a train step must know of some images.

    Args:
        splits: opened.
        tokenizer: of their captions; None: they are not read.

    Returns:
        The facts.
    """
    train = splits.train
    tokens = (tokenizer.vocab, tokenizer.length) if tokenizer else (None, None)
    return Facts(train.channels, bool(train.classes), train.has_captions, *tokens)


def make_encoders(
    config: Config, method: Method
) -> tuple[Callable[[TrainState], Partial], Callable[[TrainState], tuple[Partial, ...]] | None]:
    """What probes see of a state.

    Args:
        config: how pixels are normalised.
        method: whose features, and whose towers if it has two.

    Returns:
        `Parts.encoder` and `Parts.towers`.
    """

    def on_images(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def apply(params: Any, batch_stats: Any, images: jax.Array) -> jax.Array:
            return function(params, batch_stats, normalised(as_unit(images), config.data))

        return apply

    def of(state: TrainState, function: Callable[..., jax.Array]) -> Partial:
        return Partial(function, lora.joined(state.params, state.frozen), state.batch_stats)

    encode, towers = on_images(method.features), method.towers
    compared = towers and (on_images(towers.image), towers.text)
    return (
        lambda state: of(state, encode),
        compared and (lambda state: tuple(of(state, function) for function in compared)),
    )


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
    bank: Callable[[], HostQueue] | None = None,
) -> Callable[..., TrainState]:
    """The function that makes the first state, placed on the mesh.

    Args:
        init_state: from a key, and from pretrained variables where there are some.
        shardings: of all of it.
        source: whose variables are its target; None: a method without a teacher.
        weights: reads pretrained variables; None: there are none.
        bank: makes an empty queue for the host; None: `init_state` makes one, or there is none.

    Returns:
        `first_state(seed, *, teach=True, load=True) -> TrainState`; the teacher and pretrained weights are read from
        disk at each call, or left out, so that all of it is random.
    """

    def first_state(seed: int, *, teach: bool = True, load: bool = True) -> TrainState:
        given = [weights()] if weights and load else []
        own = shardings if source is None else shardings._replace(target=None)
        own = own if bank is None else own._replace(queue=None)
        student = jax.jit(init_state, out_shardings=own)(jax.random.key(seed), *given)
        student = student if bank is None else student._replace(queue=jax.device_put(bank(), shardings.queue))
        return student._replace(target=source.load(shardings.target)) if source and teach else student

    return first_state


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
