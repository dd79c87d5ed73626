"""Settings that shapes do not show, such as the number of heads: compared with the JSON files beside the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxcl.config import Config, ConfigError
from jaxcl.models import make_encoder
from jaxcl.models.flavours import FLAVOURS
from jaxcl.pixels import PUBLISHED

_OWN = {"model": ("vision_config", "vision_config_dict"), "text": ("text_config", "text_config_dict")}


def check_settings_beside(path: Path, config: Config, tower: str) -> None:
    """Raises where the library that saved the weights ran them with other settings than these.

    Args:
        path: of the weights, a file or a folder.
        config: of the run.
        tower: "model" or "text".

    Raises:
        ConfigError: another number of heads, activation or epsilon; nothing where no `config.json` lies there.

    >>> check_settings_beside(Path("nowhere"), Config(), "text")
    """
    file = folder_of(path) / "config.json"
    if not file.is_file():
        return
    try:
        saved: Any = json.loads(file.read_bytes())
        if not isinstance(saved, dict):
            raise ConfigError(f"{file} cannot be read: it holds a {type(saved).__name__}, not settings")
        _check_timm(file, saved, config, tower)
        own = next((saved[key] for key in _OWN[tower] if saved.get(key)), saved)
        checked = dict(_settings(config, tower))
    except ConfigError:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    for key, (setting, value) in checked.items():
        if key in own and own[key] != value:
            raise ConfigError(f"{file.name} beside it says {key} = {own[key]!r}, but {setting} means {value!r}")


def statistics_beside(path: Path) -> tuple[str, str] | None:
    """How pixels were normalised for the weights, as the library that saved them says.

    Args:
        path: of the weights, a file or a folder.

    Returns:
        A value of `data.statistics` and the name of the file that says so; None where none says any of these.

    >>> statistics_beside(Path("nowhere")) is None
    True
    """
    for name, group, keys in (
        ("config.json", "pretrained_cfg", ("mean", "std")),  # of timm
        ("preprocessor_config.json", None, ("image_mean", "image_std")),  # of Hugging Face
    ):
        try:
            saved: Any = json.loads((folder_of(path) / name).read_bytes())
            said = saved[group] if group else saved
            mean, std = (np.broadcast_to(np.asarray(said[key], float), 3) for key in keys)
        except (OSError, ValueError, TypeError, LookupError):  # it says nothing that can be read
            continue
        for statistics, known in PUBLISHED.items():
            if np.allclose((mean, std), known, atol=1e-3):
                return statistics, name
    return None


def folder_of(path: Path) -> Path:
    """Where weights lie.

    Args:
        path: of the weights, a file or a folder.

    Returns:
        The folder.

    >>> folder_of(Path("a/b.npz")).name
    'a'
    """
    return path if path.is_dir() else path.parent


def _check_timm(file: Path, saved: dict[str, Any], config: Config, tower: str) -> None:
    """Raises where timm ran CLIP with the exact GELU; it names the other ones `quickgelu`."""
    architecture = saved.get("architecture")
    if tower != "model" or config.model.flavour != "clip" or not isinstance(architecture, str):
        return
    activation = (saved.get("model_args") or {}).get(
        "act_layer", "quickgelu" if "quickgelu" in architecture else "gelu"
    )
    if activation.replace("_", "") != "quickgelu":
        raise ConfigError(
            f"{file.name} beside it says architecture = {architecture!r}, which has the activation {activation}, but "
            "model.flavour = 'clip' means quick_gelu; timm has such weights with quickgelu in their name"
        )


def _settings(config: Config, tower: str) -> dict[str, tuple[str, Any]]:
    """What shapes do not show, under the names of Hugging Face: the setting that decides it, and its value."""
    owner: Any = config.text if tower == "text" else config.model
    heads: Any = config.text.heads if tower == "text" else getattr(make_encoder(config.model), "heads", None)
    if heads is None:
        return {}
    flavour, named = FLAVOURS[owner.flavour], f"{tower}.flavour = {owner.flavour!r}"
    return {
        "num_attention_heads": (
            f"text.heads = {heads}" if tower == "text" else f"model.encoder = {owner.encoder!r}",
            heads,
        ),
        "hidden_act": (named, "quick_gelu" if flavour.quick_gelu else "gelu"),
        "layer_norm_eps": (named, flavour.epsilon),
    }
