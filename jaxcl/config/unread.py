"""Settings that only some choices read: set beside another choice, they would do nothing, which is an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxcl.config.errors import ConfigError
from jaxcl.config.settings import Config


class Reader(NamedTuple):
    """Who reads some settings.

    Attributes:
        names: dotted, of the settings.
        reads: whether a config has such a reader.
        where: the choice that has one, and which setting makes it.
    """

    names: Sequence[str]
    reads: Callable[[Config], bool]
    where: str


READERS = (
    Reader(("model.patch", "model.pool"), lambda c: c.model.encoder.startswith("vit"), "a ViT as model.encoder"),
    Reader(("model.stem",), lambda c: c.model.encoder.startswith("resnet"), "a ResNet as model.encoder"),
    Reader(("model.norm",), lambda c: not c.model.encoder.startswith("vit"), "a ResNet or conv as model.encoder"),
    Reader(("model.head_hidden",), lambda c: c.model.head_layers > 1, "model.head_layers of 2 or 3"),
    Reader(("model.predictor_hidden",), lambda c: c.model.predictor_layers > 1, "model.predictor_layers of 2 or 3"),
    Reader(
        ("optim.loss_scale", "optim.loss_scale_steps"),
        lambda c: c.model.dtype == "float16",
        "model.dtype = 'float16'",
    ),
    Reader(("lora.alpha", "lora.targets"), lambda c: c.lora.rank > 0, "lora.rank above 0"),
    Reader(
        ("optim.offload",),
        lambda c: c.batch.images != "device",
        "batch.images = 'host' or 'disk', whose update is a program of its own",
    ),
    Reader(
        ("data.label", "data.skin_tones", "data.background"),
        lambda c: c.data.name == "emoji",
        "data.name = 'emoji'",
    ),
    Reader(("data.holdout",), lambda c: c.data.name != "fashion_mnist", "data without a test set of its own"),
    Reader(
        ("data.root",),
        lambda c: c.data.name == "fashion_mnist" or c.data.name.startswith("tfds:"),
        "data.name = 'fashion_mnist' or 'tfds:NAME'",
    ),
    Reader(("data.mean", "data.std"), lambda c: c.data.statistics == "given", "data.statistics = 'given'"),
    Reader(("data.caption",), lambda c: c.data.name.startswith("tfds:"), "data.name = 'tfds:NAME'"),
    Reader(
        ("augment.brightness", "augment.contrast", "augment.saturation", "augment.hue"),
        lambda c: c.augment.jitter_prob > 0,
        "augment.jitter_prob above 0",
    ),
    Reader(
        ("augment.blur_sigma_min", "augment.blur_sigma_max"),
        lambda c: c.augment.blur_prob > 0,
        "augment.blur_prob above 0",
    ),
    Reader(("augment.solarize_threshold",), lambda c: c.augment.solarize_prob > 0, "augment.solarize_prob above 0"),
)
COLOUR = ("augment.saturation", "augment.hue", "augment.grayscale_prob")


def check_read(config: Config) -> None:
    """Raises where a setting differs from its default and nothing in the run reads it.

    Args:
        config: the run.

    Raises:
        ConfigError: names the setting, its value and the choice that reads it.

    >>> check_read(Config())
    """
    for reader in READERS:
        if not reader.reads(config):
            _refuse(config, reader.names, reader.where)


def check_colour(config: Config, channels: int) -> None:
    """Raises where colours are to be changed of images that have none.

    Args:
        config: the run.
        channels: of its images.

    Raises:
        ConfigError: names the setting and its value.

    >>> check_colour(Config(), 1)
    """
    if channels == 1:
        _refuse(config, COLOUR, f"images in colour, and those of data.name = {config.data.name!r} are grey")


def _refuse(config: Config, names: Sequence[str], where: str) -> None:
    """The first of some settings that differs from its default."""
    for name in names:
        group, item = name.split(".")
        value, unset = (getattr(getattr(c, group), item) for c in (config, Config()))
        if value != unset:
            raise ConfigError(f"{name} = {value!r} is read only with {where}; leave it out, or at {unset!r}")
