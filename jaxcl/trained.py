"""A trained run opened again to encode any images: it needs none of its own, and nothing in its folder is changed."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import Partial

from jaxcl.assess import as_unit
from jaxcl.build import Parts, build
from jaxcl.checkpoint import Checkpoints, newest_step
from jaxcl.config import Config, ConfigError, mesh_that_fits, resolve
from jaxcl.data import BadImages, Record, Source, Splits, eval_batches, open_images
from jaxcl.lora import joined
from jaxcl.losses import normalise
from jaxcl.methods import traits
from jaxcl.methods.parts.networks import run
from jaxcl.models import make_encoder, make_head
from jaxcl.pixels import normalised
from jaxcl.probes import extract
from jaxcl.report import Progress
from jaxcl.resume import saved_config, with_base
from jaxcl.state import TrainState
from jaxcl.teacher import remembered
from jaxcl.workdir import CHECKPOINTS

# of the images of each data set; one of TFDS may have either
CHANNELS = {"emoji": (3,), "folder": (3,), "fashion_mnist": (1,)}


class Trained(NamedTuple):
    """What a run has learned.

    Attributes:
        config: of the run, with a mesh for the devices that are here.
        step: of the checkpoint.
        channels: of the images that it was trained on, 1 or 3.
        mesh: devices.
        features: `Partial`, from uint8 images [b, H, W, C] to the encoder's features [b, F].
        embedding: `Partial`, to what the loss compares: the head's output, normalised; None where there is no head.
    """

    config: Config
    step: int
    channels: int
    mesh: Mesh
    features: Partial
    embedding: Partial | None


class Unseen:
    """Stands for the images of a run, of which only the kind is known; each is a blank one."""

    protocol = name = "images that are not needed"

    def __init__(self, config: Config, channels: int) -> None:
        own = traits(config.method)
        self.channels, self._side = channels, config.data.image_size
        self.ids = np.arange(config.eval.batch, dtype=np.int32)
        self.classes: tuple[str, ...] = ("",) if own.labels else ()
        self.has_captions = own.captions

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Record:
        return Record(np.zeros((self._side, self._side, self.channels), np.uint8), -1, index, "")


def open_trained(workdir: Path) -> Trained:
    """The newest checkpoint of a run that is whole, with low-rank adaptation beside its frozen parameters.

    Args:
        workdir: of the run, which may still be going on.

    Returns:
        What it has learned, on the devices that are here.

    Raises:
        ConfigError: no run, no checkpoint that is whole, or one that its settings do not explain.
    """
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax reports every file it touches
    if not workdir.is_dir():
        raise ConfigError(f"--workdir={workdir} is not a folder")
    saved = saved_config(workdir)
    if saved is None:
        raise ConfigError(f"--workdir={workdir} holds no run")
    if newest_step(workdir / CHECKPOINTS) is None:
        raise ConfigError(f"--workdir={workdir} has no checkpoint yet")
    config = resolve(saved)
    config = dataclasses.replace(config, mesh=mesh_that_fits(config, jax.device_count()))
    first, *others = CHANNELS.get(config.data.name.partition(":")[0], (3, 1))
    try:
        return _open(workdir, config, first)
    except ConfigError as error:
        for channels in others:  # of other shapes, or they would have been restored
            try:
                return _open(workdir, config, channels)
            except ConfigError:
                raise error from None
        raise


def encode_folder(
    trained: Trained, images: Path, *, layer: str = "features", batch: int | None = None
) -> tuple[list[str], np.ndarray, int]:
    """Encodes every readable image of a folder, as the run sees images when it is scored.

    Args:
        trained: the run.
        images: the folder.
        layer: "features" or "embedding".
        batch: images at once, over all devices; None: `eval.batch` of the run.

    Returns:
        Paths relative to the folder, sorted; vectors [n, F], float32; how many images could not be read.

    Raises:
        ConfigError: no image in the folder that can be read, or a layer that the run does not have.
    """
    encode = trained.features if layer == "features" else trained.embedding
    if encode is None:
        raise ConfigError(f"--layer={layer}: the run has no projection head; --layer=features")
    called, data = f"--images={images}", trained.config.data
    source = open_images(str(images), called=called, max_pixels=data.max_pixels, channels=trained.channels)
    names, bad = list[str](), BadImages(source, max_fraction=1.0)  # named and counted, and never too many
    size = min(batch or trained.config.eval.batch, len(source))
    read = _read(source, trained.config, size, names, bad)
    first = next(read, None)
    if first is None:
        raise ConfigError(f"{called}: none of {len(source):,} images can be read")
    vectors = extract(functools.partial(_apply, encode), itertools.chain([first], read), batch=size, mesh=trained.mesh)
    return names, vectors, len(bad)


def _read(source: Source, config: Config, batch: int, names: list[str], bad: BadImages) -> Iterator[np.ndarray]:
    """The images a batch at a time, their names added to a list, and a bar of how far it is."""
    with Progress(len(source), images_per_step=1, noun="image") as progress:
        for chunk in eval_batches(source, config=config.data, batch=batch, bad=bad):
            names.extend(chunk["name"].tolist())
            if len(chunk["images"]):
                yield chunk["images"]
            progress.update(len(names) + len(bad))


@jax.jit
def _apply(encode: Partial, images: jax.Array) -> jax.Array:
    """What an encoder says; its variables are arguments, and no constants of the program."""
    return encode(images)


def _open(workdir: Path, config: Config, channels: int) -> Trained:
    """A run that was trained on images of so many channels."""
    unseen = Unseen(config, channels)
    parts = build(config, remembered(workdir), fresh=False, splits=Splits(unseen, unseen))
    checkpoints = Checkpoints(workdir / CHECKPOINTS, keep=config.checkpoint.keep)
    try:
        found = checkpoints.restore_newest(parts.like)
    finally:
        checkpoints.close()
    if found is None:  # deleted since it was looked for
        raise ConfigError(f"--workdir={workdir} has no checkpoint any more")
    for reason in found.damaged.values():
        warnings.warn(f"{reason}: taking step {found.step} instead", stacklevel=3)
    state = with_base(found, parts)
    return Trained(config, found.step, channels, parts.mesh, parts.encoder(state), _embedding(parts, state))


def _embedding(parts: Parts, state: TrainState) -> Partial | None:
    """From images to what the loss compares."""
    config, params = parts.config, joined(state.params, state.frozen)
    if "head" not in params:
        return None
    chain = {"encoder": make_encoder(config.model), "head": make_head(config.model)}

    def embed(params: Any, batch_stats: Any, images: jax.Array) -> jax.Array:
        pixels = normalised(as_unit(images), config.data)
        return normalise(run(chain, params, batch_stats, pixels, train=False)[0]["head"])

    return Partial(embed, params, state.batch_stats)
