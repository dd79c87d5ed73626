"""From `data.name` to the images to train on and those held out."""

from __future__ import annotations

import difflib

from jaxcl.config import ConfigError, DataConfig
from jaxcl.data.record import Splits
from jaxcl.data.subset import hold_out_training

KNOWN = ("emoji", "fashion_mnist", "folder:/path", "tfds:NAME")


def open_source(config: DataConfig, *, captions: bool = False) -> Splits:
    """Open the data set that `config.name` asks for; no image is decoded yet.

    Args:
        config: the data settings.
        captions: whether records are to carry them, where the set has any.

    Returns:
        Both splits, whose ids do not overlap; with `config.validation` both are of the training images. The split never
        depends on the run's seed.

    Raises:
        ConfigError: the name is unknown (the nearest known one is named), or the data or their captions are not there.
    """
    check_name(config.name)
    splits = _open(config, captions)
    return hold_out_training(splits, config.validation) if config.validation else splits


def _open(config: DataConfig, captions: bool) -> Splits:
    """The data set's own two splits."""
    kind, _, rest = config.name.partition(":")
    # Imported here, so that one set needs only what it itself reads.
    if kind == "emoji":
        from jaxcl.data.emoji import open_emoji

        return open_emoji(config, captions=captions)
    if kind == "fashion_mnist":
        from jaxcl.data.fashion_mnist import open_fashion_mnist

        return open_fashion_mnist(config)
    if kind == "folder":
        from jaxcl.data.folder import open_folder

        return open_folder(rest, config, captions=captions)
    from jaxcl.data.tfds import open_tfds

    return open_tfds(rest, config, captions=captions)


def check_name(name: str) -> None:
    """Whether `data.name` is of a kind that there is; not whether the data are.

    Args:
        name: the setting.

    Raises:
        ConfigError: it is not.

    >>> check_name("folder:/nowhere/yet")
    """
    kind, colon, rest = name.partition(":")
    if kind not in (("folder", "tfds") if rest else () if colon else ("emoji", "fashion_mnist")):
        raise ConfigError(_unknown(name))


def _unknown(name: str) -> str:
    """Which data set was probably meant."""
    nearest = difflib.get_close_matches(name.partition(":")[0].lower(), [k.partition(":")[0] for k in KNOWN], 1, 0.5)
    hint = "".join(f"; did you mean {k}?" for k in KNOWN if nearest and k.startswith(nearest[0]))
    return f"data.name={name!r} is not one of {', '.join(KNOWN)}{hint}"
