"""What a run says of weights that it takes, or that do not fit: settings that may be other ones than were meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxcl.config import Config
from jaxcl.pretrained.beside import folder_of, statistics_beside
from jaxcl.pretrained.files import Arrays
from jaxcl.pretrained.fit import root_of
from jaxcl.pretrained.rules import Family


def hint_for(arrays: Arrays, family: Family, like: Mapping[str, Any], patch: int) -> str:
    """The setting that would make the first layer of an image encoder fit.

    Args:
        arrays: of the file.
        family: whose names it has.
        like: shapes of all our variables by path.
        patch: `model.patch`.

    Returns:
        A sentence; empty where the first layer fits, or no setting would help.
    """
    stem, patches = "params/encoder/stem_conv/kernel", "params/encoder/patches/kernel"
    rule = next((rule for rule in family.rules if rule.leaf in (stem, patches) and rule.leaf in like), None)
    name = (root_of(arrays, family) or "") + rule.names[0] if rule else ""
    if rule is None or name not in arrays or arrays[name].ndim != 4:
        return ""
    _, theirs, side, _ = arrays[name].shape
    shape = like[rule.leaf].shape
    ours = shape[0] // patch**2 if rule.leaf == patches else shape[2]
    hints = [f"model.patch = {side} is theirs"] if rule.leaf == patches and side != patch else []
    if theirs == 3 and ours == 1:
        hints.append("data.statistics = 'half', 'imagenet' or 'clip' makes three channels of grey images")
    return "; ".join(hints)


def notes(path: Path, config: Config, tower: str) -> Iterator[str]:
    """What is not certain of weights that fit.

    Args:
        path: of the weights, a file or a folder.
        config: of the run.
        tower: "model" or "text".

    Yields:
        Sentences: CLIP exists with two activations, and pixels were normalised in some way.
    """
    flavour = getattr(config, tower).flavour
    if flavour.startswith("clip") and not (folder_of(path) / "config.json").is_file():
        yield (
            f"no config.json beside {path} says which activation it was trained with; {tower}.flavour = {flavour!r} "
            "means quick_gelu"
        )
    if tower == "text":
        return
    told, data = statistics_beside(path), config.data
    means_half = data.statistics == "given" and data.mean == data.std == 0.5
    used = "half" if means_half else data.statistics
    given = f"data.mean = {data.mean} and data.std = {data.std}" if used == "given" else f"data.statistics = {used!r}"
    if told and told[0] != used:
        yield f"{told[1]} beside the weights says data.statistics = {told[0]!r}, but pixels follow {given}"
    elif used == "given":
        yield f"pixels follow {given}, as no published weights expect them: see data.statistics"
