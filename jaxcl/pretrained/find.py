"""The weights that a config names: found, checked against its networks, read when a run starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from jaxcl.config import Config, ConfigError, first_of
from jaxcl.integrity import by_path
from jaxcl.pretrained.beside import check_settings_beside
from jaxcl.pretrained.files import Arrays, open_arrays
from jaxcl.pretrained.fit import Fitted, as_tree, fit, root_of
from jaxcl.pretrained.notes import hint_for, notes
from jaxcl.pretrained.resnets import resnets
from jaxcl.pretrained.rules import Family
from jaxcl.pretrained.transformers import TEXTS, VITS

_SHOWN = 3  # names of arrays in a message
_MOVED = "where it lies now says --config.{0}.pretrained with --resume, or --pretrained of jaxcl.evaluate"
TOWERS = {"encoder": "model", "text": "text"}  # by network, the settings of which it is made
# where weights of a flavour are, by the names of Hugging Face
EXAMPLES = {
    "hf": "google/vit-base-patch16-224",
    "clip": "openai/clip-vit-base-patch32",
    "dinov2": "facebook/dinov2-small",
    "clip_text": "openai/clip-vit-base-patch32",
    "bert": "sentence-transformers/all-MiniLM-L6-v2",
}


class _Source(NamedTuple):
    """A file for one tower: the setting and its value, who is meant, what it needs, and which parts it may fill."""

    setting: str
    path: Path
    families: tuple[Family, ...]
    needs: str
    flavour: str
    parts: tuple[str, ...]


def find_weights(
    config: Config, like: Mapping[str, Any], *, check: bool = True, fresh: bool = True
) -> Callable[[], dict[str, Any]] | None:
    """The weights that the encoder, and the text tower where there is one, start with.

    A head of one linear layer between two towers takes the projection of a CLIP file, and the temperature is that of
    the file where both towers come from one.

    Args:
        config: `model.pretrained` and `text.pretrained`.
        like: shapes of all variables, `{"params": …, "batch_stats": …}`.
        check: look into the files now; False where a checkpoint will be restored and they may be gone.
        fresh: whether a run begins, which may still be given other settings.

    Returns:
        A function that reads them, says in a line how much of what they fill, and returns as much of the tree of
        variables as they do; None where the config names none.

    Raises:
        ConfigError: no file, or none where a flavour of published weights begins; names of no known network, other
            settings than it was made with, numbers that are not finite, or arrays that are missing, unexpected or
            mis-shaped, unless `model.allow_partial`.

    >>> find_weights(Config(), {}) is None
    True
    """
    if fresh:
        _check_named(config, like.get("params", {}))
    sources = _sources(config, like)
    if not sources:
        return None

    def load() -> dict[str, Any]:
        leaves: dict[str, Any] = {}
        for source in sources:
            fitted, title = _fitted(source, config, like, fresh=fresh)
            leaves |= fitted.leaves
            print(_sentence(source, title, fitted), flush=True)
            for note in notes(source.path, config, source.setting):
                print(f"note: {note}", flush=True)
        return as_tree(leaves)

    if check:
        for source in sources:
            _fitted(source, config, like, fresh=fresh)
    return load


def whole_paths(config: Config) -> Config:
    """The same settings with paths of weights that mean the same from any folder.

    Args:
        config: of a run.

    Returns:
        Settings with absolute paths, for `config.json`.

    >>> whole_paths(Config()) == Config()
    True
    """
    for group in TOWERS.values():
        section: Any = getattr(config, group)
        if section.pretrained is not None:
            path = str(Path(section.pretrained).expanduser().absolute())
            config = replace(config, **{group: replace(section, pretrained=path)})
    return config


def random_parts(config: Config, networks: Iterable[str]) -> str:
    """Which networks a run begins with at random weights, and whether these are frozen.

    Args:
        config: of the run.
        networks: by name, as in a tree of parameters.

    Returns:
        A line each, without a line break at the end; empty where a file is named for all of them.

    >>> random_parts(Config(), ["encoder", "head"])
    'encoder: random weights (model.pretrained is empty)'
    """
    rank, lines = config.lora.rank, []
    for name in networks:
        if name in TOWERS and not getattr(config, TOWERS[name]).pretrained:
            frozen = (
                f", which lora.rank = {rank} freezes: it learns beside a network that knows nothing" if rank else ""
            )
            lines.append(f"{name}: random weights ({TOWERS[name]}.pretrained is empty){frozen}")
    if rank and lines:
        lines.append(
            "they are made anew from the seed by --resume and jaxcl.evaluate: keep the version of jax and XLA_FLAGS"
        )
    return "\n".join(lines)


def _check_named(config: Config, networks: Iterable[str]) -> None:
    """Raises where a flavour of published weights would begin without them."""
    for name in networks:
        setting = TOWERS.get(name)
        owner: Any = getattr(config, setting) if setting else None
        if owner and owner.flavour != "plain" and not owner.pretrained:
            raise ConfigError(
                f"{setting}.pretrained is empty, but {setting}.flavour = {owner.flavour!r} is a network of published "
                f"weights: name their file, such as model.safetensors of {EXAMPLES[owner.flavour]} on Hugging Face; "
                f"{setting}.flavour = 'plain' begins with random weights"
            )


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


def _fitted(source: _Source, config: Config, like: Mapping[str, Any], *, fresh: bool) -> tuple[Fitted, str]:
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
        paths = by_path(like)
        fitted = fit(arrays, family, paths, source.parts)
    except ConfigError as error:
        moved = f"; {_MOVED.format(source.setting)}" if not fresh and not source.path.exists() else ""
        raise ConfigError(f"{name}: {error}{moved}") from error
    if fitted.problem and not config.model.allow_partial:
        hint = hint_for(arrays, family, paths, config.model.patch) if source.setting == "model" else ""
        hint = hint or ("model.allow_partial = True takes what fits" if fresh else "")
        raise ConfigError(
            f"{name}, {family.title}, is not what {source.needs} needs: {fitted.problem}" + (hint and f" ({hint})")
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
