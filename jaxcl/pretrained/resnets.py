"""Names of ResNets: those of Hugging Face, and those that timm and torchvision share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from jaxcl.pretrained.rules import Family, Rule, convolution, same

BLOCK = re.compile(r"params/encoder/stage(\d+)_block(\d+)/conv(\d+)/kernel")
_REST = ("fc.", "classifier.")


def resnets(leaves: Iterable[str]) -> tuple[Family, ...]:
    """The names of a ResNet.

    Args:
        leaves: paths of ours; its stages, blocks and convolutions are read from them.

    Returns:
        Both families.
    """
    numbers = sorted(tuple(map(int, found.groups())) for found in map(BLOCK.fullmatch, leaves) if found)
    hf, timm = (tuple(rule for each in numbers for rule in block(*each)) for block in (_hf_block, _timm_block))
    stems = (
        _pair("stem_conv", "stem_norm", "embedder.embedder.convolution", "embedder.embedder.normalization"),
        _pair("stem_conv", "stem_norm", "conv1", "bn1"),
    )
    return (
        Family("ResNet of Hugging Face", None, "embedder.embedder.convolution.weight", (*stems[0], *hf), _REST),
        Family("ResNet of timm and torchvision", None, "layer1.0.conv1.weight", (*stems[1], *timm), _REST),
    )


def _pair(conv: str, norm: str, their_conv: str, their_norm: str) -> Iterator[Rule]:
    """A convolution, and the batch norm behind it with its running statistics."""
    yield Rule(f"params/encoder/{conv}/kernel", (f"{their_conv}.weight",), convolution)
    for kind, ours, theirs in (
        ("params", "scale", "weight"),
        ("params", "bias", "bias"),
        ("batch_stats", "mean", "running_mean"),
        ("batch_stats", "var", "running_var"),
    ):
        yield Rule(f"{kind}/encoder/{norm}/batch/{ours}", (f"{their_norm}.{theirs}",), same)


def _block(stage: int, block: int, number: int, *, layer: tuple[str, str], shortcut: tuple[str, str]) -> Iterator[Rule]:
    """One convolution of a block, and with the first one its shortcut, which a block may have."""
    ours = f"stage{stage}_block{block}"
    yield from _pair(f"{ours}/conv{number}", f"{ours}/norm{number}", *layer)
    if number == 1:
        yield from _pair(f"{ours}/shortcut_conv", f"{ours}/shortcut_norm", *shortcut)


def _hf_block(stage: int, block: int, number: int) -> Iterator[Rule]:
    """As Hugging Face counts: from 0."""
    above = f"encoder.stages.{stage - 1}.layers.{block - 1}"
    layer, shortcut = f"{above}.layer.{number - 1}", f"{above}.shortcut"
    named = [(f"{name}.convolution", f"{name}.normalization") for name in (layer, shortcut)]
    return _block(stage, block, number, layer=named[0], shortcut=named[1])


def _timm_block(stage: int, block: int, number: int) -> Iterator[Rule]:
    """As torchvision counts: stages and convolutions from 1, blocks from 0."""
    above = f"layer{stage}.{block - 1}"
    layer, shortcut = (f"{above}.conv{number}", f"{above}.bn{number}"), tuple(f"{above}.downsample.{n}" for n in (0, 1))
    return _block(stage, block, number, layer=layer, shortcut=(shortcut[0], shortcut[1]))
