"""A trained encoder that another run learns from: found in the folder of its run, checked, read when training starts.

Nothing is ever written into that folder. A run remembers its teacher's settings in a file of its own, and its
checkpoints hold the teacher's variables: once there is one, the teacher's folder is not needed any more.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcl.checkpoint import Found, newest_step, newest_whole, restore_part, saved_types
from jaxcl.config import Config, ConfigError, from_earlier, resolve, to_dict
from jaxcl.integrity import array_types, misfit
from jaxcl.methods.base import Teacher, Variables
from jaxcl.methods.parts.networks import make_init, run
from jaxcl.models import make_encoder, make_head
from jaxcl.pixels import channels_seen, seen_by_another
from jaxcl.workdir import CHECKPOINTS, CONFIG, TEACHER, read_json, write_json

CHANNELS = (1, 3)  # of the images of any source


class TeacherRun(NamedTuple):
    """A teacher, before its variables are read.

    Attributes:
        config: of its run.
        teacher: what a method gets.
        like: shapes of its variables, `TrainState.target`.
        load: `(shardings) -> variables`, read from the newest checkpoint in its folder that is whole.
    """

    config: Config
    teacher: Teacher
    like: Variables
    load: Callable[[Any], Variables]


def find_teacher(config: Config, *, channels: int, known: Config | None = None) -> TeacherRun:
    """The teacher that a config names; its arrays stay on disk.

    Args:
        config: of the student.
        channels: of its images.
        known: settings of the teacher as the student's run remembers them, whose folder may then be gone; None: those
            in its folder, which is looked through.

    Returns:
        The teacher, with the head only where similarities are compared.

    Raises:
        ConfigError: no folder, no checkpoint that is whole, settings that do not resolve, a tree that they do not
            explain, or images or embeddings that the student does not share.
    """
    folder, name = _folder(config)
    its = known or _config_of(folder, name)
    _check_alike(config, its, name)
    network = _Network(config, its, channels)

    def check(step: int) -> None:
        _check_step(saved_types(folder / CHECKPOINTS, step), step, channels, network.like)

    def load(shardings: Any) -> Variables:
        wanted = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), like, shardings)

        def read(step: int) -> Variables:
            check(step)
            return restore_part(folder / CHECKPOINTS, step, wanted)

        found = _newest(folder, name, read)
        if found.damaged:
            what = "; ".join(found.damaged.values())
            warnings.warn(f"{name}: {what}: its step {found.step} is the teacher instead", stacklevel=2)
        return found.read

    if known is None:
        _newest(folder, name, check)
    like = network.like(channels)
    return TeacherRun(its, network.teacher(), like, load)


def imagined_teacher(config: Config, *, channels: int) -> TeacherRun:
    """A teacher as large as its student, to plan memory by where there is none yet.

    Args:
        config: of the student.
        channels: of its images.

    Returns:
        The teacher; it cannot be loaded.

    >>> imagined_teacher(Config(), channels=3).teacher.feature_dim
    512
    """

    def load(shardings: Any) -> Variables:
        raise ConfigError(f"distill.teacher = {config.distill.teacher!r} was imagined, and cannot be read")

    network = _Network(config, config, channels)
    return TeacherRun(config, network.teacher(), network.like(channels), load)


class _Network:
    """Encoder, and head where similarities are compared, of a teacher."""

    def __init__(self, config: Config, its: Config, channels: int) -> None:
        self._config, self._its, self._channels = config, its, channels
        self._chain = {"encoder": make_encoder(its.model)}
        if config.distill.similarity_weight:
            self._chain["head"] = make_head(its.model)

    def like(self, channels: int) -> Variables:
        """Shapes of its variables for images of some channels."""
        side = self._its.data.image_size
        images = jnp.zeros((1, 1, side, side, channels_seen(self._its.data, channels)))
        return jax.eval_shape(make_init(self._chain), jax.random.key(0), images)

    def teacher(self) -> Teacher:
        """What a method gets."""
        side, seen = self._its.data.image_size, channels_seen(self._config.data, self._channels)
        images = jax.ShapeDtypeStruct((1, side, side, seen), jnp.float32)
        features = jax.eval_shape(self._apply, self.like(self._channels), images)["encoder"].shape[-1]
        return Teacher(self._apply, features)

    def _apply(self, variables: Variables, images: Any) -> dict[str, Any]:
        """What it says of images normalised as the student's."""
        pixels = seen_by_another(images, self._config.data, self._its.data)
        pixels = pixels[..., : channels_seen(self._its.data, self._channels)]
        return run(self._chain, variables["params"], variables["batch_stats"], pixels, train=False)[0]


def check_apart(config: Config, workdir: Path) -> None:
    """Raises where a student would be trained in the folder of its own teacher.

    Args:
        config: of the student.
        workdir: its output folder.

    Raises:
        ConfigError: the two folders, or their checkpoints, are one, whatever links lead there.
    """
    if config.distill.teacher is None:
        return
    folder, name = _folder(config)
    its, own = (path.resolve() / CHECKPOINTS for path in (folder, workdir))
    if its == own or its.resolve().is_relative_to(own.resolve()):
        raise ConfigError(f"{name} is what --workdir={workdir} would write to; give the student a folder of its own")


def remember(workdir: Path, config: Config) -> None:
    """Writes the teacher's settings into the folder of the student's run.

    Args:
        workdir: of the student.
        config: of the teacher.
    """
    write_json(workdir / TEACHER, to_dict(config))


def remembered(workdir: Path) -> Config | None:
    """The teacher's settings as a run that has a checkpoint remembers them, or None.

    Args:
        workdir: of the student.

    Returns:
        Settings; None where the run has no teacher, or must still read it.
    """
    if newest_step(workdir / CHECKPOINTS) is None or not (workdir / TEACHER).is_file():
        return None
    return resolve(from_earlier(read_json(workdir / TEACHER)))


def _folder(config: Config) -> tuple[Path, str]:
    """Where the teacher is, and what a message calls it."""
    given = config.distill.teacher or ""
    try:
        folder = Path(given).expanduser()
    except RuntimeError as error:  # ~ of nobody
        raise ConfigError(f"distill.teacher = {given!r} is not a folder: {error}") from error
    return folder, f"distill.teacher = '{folder}'"


def _config_of(folder: Path, name: str) -> Config:
    """The settings in a teacher's folder."""
    if not folder.is_dir():
        raise ConfigError(f"{name} is not a folder; train a teacher first, or name the folder of a finished run")
    try:
        return resolve(from_earlier(read_json(folder / CONFIG)))
    except ConfigError as error:
        raise ConfigError(f"{name} cannot be a teacher: {error}") from error


def _check_alike(config: Config, its: Config, name: str) -> None:
    """Raises where one cannot learn from the other: images or embeddings of another size, a teacher in parts."""
    if its.lora.rank:
        raise ConfigError(
            f"{name} was trained with lora.rank = {its.lora.rank}: its checkpoints hold what was trained, and not the "
            "frozen encoder beside it; a teacher needs lora.rank = 0"
        )
    if its.data.image_size != config.data.image_size:
        raise ConfigError(
            f"{name} was trained on images of {its.data.image_size} pixels, and data.image_size = "
            f"{config.data.image_size}: they must be the same"
        )
    if config.distill.similarity_weight and its.model.head_dim != config.model.head_dim:
        raise ConfigError(
            f"{name} has embeddings of {its.model.head_dim} numbers, and model.head_dim = {config.model.head_dim}: "
            "they must be the same, or distill.similarity_weight = 0"
        )


def _newest(folder: Path, name: str, read: Callable[[int], Any]) -> Found:
    """What a function reads of the newest whole checkpoint of a teacher."""
    try:
        found = newest_whole(folder / CHECKPOINTS, read)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    if found is None:
        raise ConfigError(f"{name} has no checkpoint; name the folder of a run that has saved one")
    return found


def _check_step(saved: dict[str, str], step: int, channels: int, like_of: Callable[[int], Variables]) -> None:
    """Raises unless the arrays of a step are those that its settings make for images of these channels."""

    def wrong(channels: int) -> str:
        like = like_of(channels)
        parts = tuple(f"{kind}/{part}/" for kind, tree in like.items() for part in tree)
        return misfit({path: kind for path, kind in saved.items() if path.startswith(parts)}, array_types(like))

    reason = wrong(channels)
    for other in CHANNELS:
        if reason and other != channels and not wrong(other):
            raise ConfigError(f"trained on images of {other} channels, and those of data.name have {channels}")
    if reason:
        raise ConfigError(f"step {step} is not what its {CONFIG} makes: {reason}")
