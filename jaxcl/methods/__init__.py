"""The registry of training methods: every file in this folder but `base` is one, and `parts` is what they share."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from jaxcl.config import (
    MAX_LOGIT_SCALE,
    Config,
    ConfigError,
    DistillConfig,
    loss_size,
    micro_size,
    suggestion,
)
from jaxcl.losses.arguments import share_of
from jaxcl.methods.base import Method, Traits

# of the loss, where a student is compared with its teacher by similarities
READ_BY_SIMILARITY = ("temperature", "temperature_end", "temperature_schedule", "impl", "block_size")


def available() -> list[str]:
    """The names of all methods.

    >>> "simclr" in available()
    True
    """
    return sorted(item.name for item in pkgutil.iter_modules(__path__) if not item.ispkg and item.name != "base")


def find(name: str) -> Callable[..., Method]:
    """The constructor of a method.

    Args:
        name: the setting `method`.

    Returns:
        `make_method` of the file of that name.

    Raises:
        ConfigError: no such file; the nearest name is offered.

    >>> find("simclr").__name__
    'make_method'
    """
    return _module(name).make_method


def traits(name: str) -> Traits:
    """What a method reads of a config.

    Args:
        name: the setting `method`.

    Returns:
        `TRAITS` of its file.

    Raises:
        ConfigError: no such file.

    >>> traits("byol").target
    True
    """
    return _module(name).TRAITS


def check(config: Config, *, has_labels: bool, has_captions: bool = False) -> None:
    """Raises where a config asks for what its method does not do, or offers less than it needs.

    Args:
        config: the run.
        has_labels: whether its training images have labels.
        has_captions: whether they have captions.

    Raises:
        ConfigError: names the setting, its value and what would do.

    >>> check(Config(), has_labels=False)
    """
    own, method, loss = traits(config.method), f"method = {config.method!r}", config.loss
    _check_teacher(config, own)
    compares = own.negatives is not None or (own.teacher and config.distill.similarity_weight > 0)
    if own.negatives is None:
        read = READ_BY_SIMILARITY if compares else ()
        why = "has distill.similarity_weight = 0" if own.teacher and not compares else "has no negatives"
        _check_unread(method, why, "loss", loss, read=read)
    if not own.target:
        _check_unread(method, "has no momentum encoder", "target", config.target)
    if config.queue.size and not own.queue:
        others = ", ".join(name for name in available() if traits(name).queue)
        raise ConfigError(f"queue.size = {config.queue.size}, but {method} has no queue: 0, or one of {others}")
    if own.negatives is not None and not own.negatives(loss_size(config), config.queue.sample or config.queue.size):
        raise ConfigError(f"queue.size = {config.queue.size} leaves {method} without negatives; 4096 is a first value")
    if not config.queue.size:
        _check_unread(method, "has queue.size = 0", "queue", config.queue)
    if loss.top_k is not None and own.negatives is not None:
        every = own.negatives(loss_size(config), config.queue.sample or config.queue.size)
        most = every - share_of(loss.skip_hardest, every)
        if loss.top_k > most:
            skipped = f" without the loss.skip_hardest = {loss.skip_hardest} of them" if loss.skip_hardest else ""
            raise ConfigError(
                f"loss.top_k = {loss.top_k} is more than the negatives that {method} has with {loss_size(config)} "
                f"images at once and {config.queue.size} in the queue{skipped}; the largest valid value is {most}"
            )
        if loss.tail_samples is not None and loss.tail_samples > most - loss.top_k:
            left = most - loss.top_k
            hint = (
                f"the largest valid value is {left}" if left else "without a tail, loss.tail = 'drop', it is the same"
            )
            raise ConfigError(
                f"loss.tail_samples = {loss.tail_samples} is more than the {left} negatives that loss.top_k = "
                f"{loss.top_k} leaves of {most}; {hint}"
            )
    if config.model.remat != "none" and not (own.captions or config.model.encoder.startswith("vit")):
        raise ConfigError(
            f"model.remat = {config.model.remat!r} is read only with a ViT, not with {config.model.encoder!r}; leave "
            "it out"
        )
    for reads, lacks, group, items in (
        (own.predictor, "no predictor", "model", ("predictor_layers", "predictor_hidden")),
        (own.predictor, "no predictor", "optim", ("predictor_rate",)),
        (own.key_norm, "no keys that it concerns", "target", ("key_norm", "key_splits")),
    ):
        for item in () if reads else items:
            value, unset = (getattr(getattr(c, group), item) for c in (config, Config()))
            if value != unset:
                raise ConfigError(
                    f"{group}.{item} = {value!r}, but {method} has {lacks}; leave it out, or at {unset!r}"
                )
    if own.key_norm:
        _check_keys(config)
    if own.learns_temperature:
        _check_learned_temperature(config)
    _check_captions(config, own, has_captions)
    if own.labels and not has_labels:
        raise ConfigError(f"{method} needs labels, and data.name = {config.data.name!r} has none; simclr needs none")


def _check_unread(method: str, why: str, group: str, settings: Any, read: Sequence[str] = ()) -> None:
    """Nobody reads this group of settings but for some, so that all others have their defaults."""
    for item in dataclasses.fields(settings):
        value = getattr(settings, item.name)
        if value != item.default and item.name not in read:
            raise ConfigError(
                f"{group}.{item.name} = {value!r}, but {method} {why}; the only valid value is {item.default!r}"
            )


def _check_teacher(config: Config, own: Traits) -> None:
    """A teacher where the method has one and nowhere else, and something to learn from it; nothing unread is set."""
    distill, method = config.distill, f"method = {config.method!r}"
    if not own.teacher:
        _check_unread(method, "has no teacher", "distill", distill)
        return
    if distill.teacher is None:
        raise ConfigError(f"distill.teacher is empty; {method} needs the folder of a finished run")
    if config.loss.impl == "column":
        raise ConfigError(f"loss.impl = 'column', but {method} has no such engine; 'strip' or 'dense'")
    if distill.similarity_weight:
        return
    if not distill.feature_weight:
        raise ConfigError("distill.feature_weight = 0.0 and distill.similarity_weight = 0.0: one must be above 0")
    for name, value, unset in (
        ("queue.size", config.queue.size, 0),
        ("distill.teacher_temperature", distill.teacher_temperature, DistillConfig().teacher_temperature),
    ):
        if value != unset:
            raise ConfigError(f"{name} = {value} is read only with distill.similarity_weight above 0; leave it out")


def _check_captions(config: Config, own: Traits, has_captions: bool) -> None:
    """Captions are there where they are read, and a text tower is set only where there is one."""
    if own.captions and not has_captions:
        raise ConfigError(
            f"method = {config.method!r} needs captions, and data.name = {config.data.name!r} has none; emoji has, a "
            "folder with a captions.tsv, and a TFDS set with data.caption"
        )
    if not own.captions and config.data.caption is not None:
        raise ConfigError(
            f"data.caption = {config.data.caption!r}, but method = {config.method!r} reads no captions; leave it out"
        )
    if not own.captions:
        _check_unread(f"method = {config.method!r}", "reads no captions", "text", config.text)


def _check_learned_temperature(config: Config) -> None:
    """A learned temperature starts within its bounds and follows no schedule."""
    loss, method = config.loss, f"method = {config.method!r}"
    if loss.temperature_schedule != "constant":
        raise ConfigError(
            f"loss.temperature_schedule = {loss.temperature_schedule!r}, but {method} learns its temperature; "
            "'constant' is the only valid value"
        )
    low, high = 1 / MAX_LOGIT_SCALE, MAX_LOGIT_SCALE
    if not low <= loss.temperature <= high:
        raise ConfigError(
            f"loss.temperature = {loss.temperature}, but {method} learns it between {low:g} and {high:g}; "
            f"the nearest valid value is {low if loss.temperature < low else high:g}"
        )


def _check_keys(config: Config) -> None:
    """Keys of group norm meet no batch norm, and those of parts of the batch have parts of 2 images or more."""
    model, target, images = config.model, config.target, micro_size(config)
    if target.key_norm == "group":
        for name, value, valid in (
            ("model.norm", "group" if model.encoder.startswith("vit") else model.norm, "group"),  # a ViT reads none
            ("model.head_norm", model.head_norm, False),
            ("model.head_norm_out", model.head_norm_out, False),
        ):
            if value != valid:
                raise ConfigError(
                    f"target.key_norm = 'group' needs {name} = {valid!r}, not {value!r}: "
                    "batch norm of a whole batch gives its keys away"
                )
        return
    splits, short = target.key_splits, config.batch.size % images  # of the last micro-batch, with cached gradients
    sizes = {"batch.size" if config.batch.micro is None else "batch.micro": images}
    sizes |= {"the last micro-batch": short} if short else {}
    fits = [n for n in range(1, min(sizes.values())) if not any(size % n for size in sizes.values())]
    if splits in fits:
        return
    near = [max(parts for parts in fits if parts < splits), *[parts for parts in fits if parts > splits][:1]]
    known = f"the nearest valid values of target.key_splits are {' and '.join(map(str, near))}"
    known = known if len(near) > 1 else f"the largest valid value is {near[0]}"
    for whole, size in sizes.items():
        if size % splits:
            raise ConfigError(f"{whole} = {size} is not divisible by target.key_splits = {splits}; {known}")
        if size == splits:
            raise ConfigError(
                f"target.key_splits = {splits} leaves one image a part of {whole} = {size}, which has no batch "
                f"statistics; {known}"
            )


def _module(name: str) -> ModuleType:
    """The file of a method."""
    if name not in available():
        raise ConfigError(f"method = {name!r} is unknown{suggestion(name, available())}")
    return importlib.import_module(f"{__name__}.{name}")
