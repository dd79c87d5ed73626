"""Settings that shapes do not show, such as the number of heads: compared with a `config.json` beside the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jaxcl.config import Config, ConfigError
from jaxcl.models import make_encoder
from jaxcl.models.flavours import FLAVOURS

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
    file = (path if path.is_dir() else path.parent) / "config.json"
    if not file.is_file():
        return
    try:
        saved: dict[str, Any] = json.loads(file.read_bytes())
        own = next((saved[key] for key in _OWN[tower] if saved.get(key)), saved)
        checked = dict(_settings(config, tower))
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    for key, (setting, value) in checked.items():
        if key in own and own[key] != value:
            raise ConfigError(f"{file.name} beside it says {key} = {own[key]!r}, but {setting} means {value!r}")


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
