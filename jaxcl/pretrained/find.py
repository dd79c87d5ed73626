"""The weights that a config names: found, checked against its networks, read when a run starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxcl.config import Config, ConfigError, first_of
from jaxcl.integrity import by_path
from jaxcl.pretrained.beside import check_settings_beside
from jaxcl.pretrained.files import Arrays, open_arrays
from jaxcl.pretrained.fit import Fitted, as_tree, fit, root_of
from jaxcl.pretrained.resnets import resnets
from jaxcl.pretrained.rules import Family
from jaxcl.pretrained.transformers import TEXTS, VITS

_SHOWN = 3  # names of arrays in a message


class _Source(NamedTuple):
    """A file for one tower: the setting and its value, who is meant, what it needs, and which parts it may fill."""

    setting: str
    path: Path
    families: tuple[Family, ...]
    needs: str
    flavour: str
    parts: tuple[str, ...]


def find_weights(config: Config, like: Mapping[str, Any], *, check: bool = True) -> Callable[[], dict[str, Any]] | None:
    """The weights that the encoder, and the text tower where there is one, start with.

    A head of one linear layer between two towers takes the projection of a CLIP file, and the temperature is that of
    the file where both towers come from one.

    Args:
        config: `model.pretrained` and `text.pretrained`.
        like: shapes of all variables, `{"params": …, "batch_stats": …}`.
        check: look into the files now; False where a checkpoint will be restored and they may be gone.

    Returns:
        A function that reads them, says in a line how much of what they fill, and returns as much of the tree of
        variables as they do; None where the config names none.

    Raises:
        ConfigError: no file, names of no known network, other settings than it was made with, or arrays that are
            missing, unexpected or mis-shaped, unless `model.allow_partial`.

    >>> find_weights(Config(), {}) is None
    True
    """
    sources = _sources(config, like)
    if not sources:
        return None

    def load() -> dict[str, Any]:
        leaves: dict[str, Any] = {}
        for source in sources:
            fitted, title = _fitted(source, config, like)
            leaves |= fitted.leaves
            print(_sentence(source, title, fitted), flush=True)
        return as_tree(leaves)

    if check:
        for source in sources:
            _fitted(source, config, like)
    return load


def _sources(config: Config, like: Mapping[str, Any]) -> list[_Source]:
    """The files that are named."""
    model, text, sources = config.model, config.text, []
    two_towers = "text" in like.get("params", {})
    heads = two_towers and model.head_layers == 1 and not model.head_norm_out
    scale = ("log_scale",) if two_towers and model.pretrained == text.pretrained else ()
    if model.pretrained is not None:
        kind = model.encoder.partition("_")[0].rstrip("0123456789")
        families = {"vit": VITS, "resnet": resnets(by_path(like))}.get(kind, ())
        if not families:
            raise ConfigError(
                f"model.pretrained = {model.pretrained!r}: there are no published weights of model.encoder = "
                f"{model.encoder!r}; a ViT or a ResNet has some"
            )
        parts = ("encoder", *(("head",) if heads else ()), *scale)
        path = Path(model.pretrained).expanduser()
        sources.append(_Source("model", path, families, f"model.encoder = {model.encoder!r}", model.flavour, parts))
    if text.pretrained is not None:
        parts = ("text", *(("text_head",) if heads else ()))
        path = Path(text.pretrained).expanduser()
        sources.append(_Source("text", path, TEXTS, "the text tower", text.flavour, parts))
    return sources


def _fitted(source: _Source, config: Config, like: Mapping[str, Any]) -> tuple[Fitted, str]:
    """What a file gives, and what it is."""
    name = f"{source.setting}.pretrained = '{source.path}'"
    try:
        arrays = open_arrays(source.path)
        family = _family(arrays, source.families)
        if family.flavour not in (None, source.flavour):
            raise ConfigError(
                f"it holds the {family.title}, which needs {source.setting}.flavour = {family.flavour!r}, not "
                f"{source.flavour!r}"
            )
        check_settings_beside(source.path, config, source.setting)
        fitted = fit(arrays, family, by_path(like), source.parts)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    if fitted.problem and not config.model.allow_partial:
        raise ConfigError(
            f"{name}, {family.title}, is not what {source.needs} needs: {fitted.problem} "
            "(model.allow_partial = True takes what fits)"
        )
    return fitted, family.title


def _family(arrays: Arrays, families: tuple[Family, ...]) -> Family:
    """The first family whose names a file has."""
    for family in families:
        if root_of(arrays, family) is not None:
            return family
    titles = ", ".join(dict.fromkeys(family.title for family in families))
    if not arrays:
        raise ConfigError(f"it holds no arrays; those of {titles} are known")
    raise ConfigError(f"its arrays ({first_of(list(arrays), _SHOWN)}) have the names of none of {titles}")


def _sentence(source: _Source, title: str, fitted: Fitted) -> str:
    """What was read, for people."""
    parts = " and ".join(dict.fromkeys(path.split("/")[1] for path in fitted.leaves)) or "nothing"
    text = f"{parts} from {source.path}, {title}: {100 * fitted.share:.4g} % of the numbers wanted"
    if fitted.problem:
        text += f"; {fitted.problem}"
    return text + (f"; left out: {first_of(fitted.left_out, _SHOWN)}" if fitted.left_out else "")
