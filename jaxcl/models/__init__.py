"""Encoders and projection heads: images to float32 features, features to float32 embeddings."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp

from jaxcl.config import ModelConfig, TextConfig
from jaxcl.models.conv import ConvEncoder
from jaxcl.models.heads import ProjectionHead
from jaxcl.models.resnet import ResNet, ResNet18, ResNet34, ResNet50
from jaxcl.models.text import TextTower
from jaxcl.models.vit import ViT, ViTB, ViTS, ViTTi

__all__ = [
    "ConvEncoder",
    "ProjectionHead",
    "ResNet",
    "TextTower",
    "ViT",
    "make_encoder",
    "make_head",
    "make_predictor",
    "make_text_tower",
]

RESNETS: dict[str, Callable[..., ResNet]] = {"resnet18": ResNet18, "resnet34": ResNet34, "resnet50": ResNet50}
VITS: dict[str, Callable[..., ViT]] = {"vit_ti": ViTTi, "vit_s": ViTS, "vit_b": ViTB}


def make_encoder(config: ModelConfig, *, norm_momentum: float = 0.9, looped: bool = False) -> nn.Module:
    """The encoder that a config names, ready for `init` and `apply`.

    Call `encoder.apply(variables, images, train=True, mutable=["batch_stats"])` with normalised float32 images
    [n, h, w, c]; features are float32 [n, f]. Group norm and ViT have no `batch_stats` collection.

    Args:
        config: which encoder, its normalisation and its compute dtype.
        norm_momentum: share of the running batch statistics kept at each call with `train`, in [0, 1); with m
            micro-batches an update, momentum ** (1 / m) keeps the memory of the running average the same.
        looped: whether it is trained within a loop on a CPU, as in `jaxcl.models.convolve`.

    Returns:
        A Linen module.

    >>> make_encoder(ModelConfig(encoder="vit_ti", patch=8)).patch
    8
    """
    dtype = jnp.dtype(config.dtype)
    if config.encoder in VITS:
        return VITS[config.encoder](
            patch=config.patch, pool=config.pool, remat=config.remat, dtype=dtype, flavour=config.flavour
        )
    if config.encoder in RESNETS:
        return RESNETS[config.encoder](
            stem=config.stem, norm=config.norm, norm_momentum=norm_momentum, dtype=dtype, looped=looped
        )
    return ConvEncoder(norm=config.norm, norm_momentum=norm_momentum, dtype=dtype, looped=looped)


def make_head(config: ModelConfig, *, norm_momentum: float = 0.9) -> ProjectionHead:
    """The projection head that a config describes.

    Args:
        config: layers, widths, norm and compute dtype of the head.
        norm_momentum: as in `make_encoder`.

    Returns:
        A Linen module, called like an encoder on float32 features [n, f]; embeddings are float32 [n, head_dim].
    """
    return ProjectionHead(
        layers=config.head_layers,
        hidden=config.head_hidden,
        dim=config.head_dim,
        norm=config.head_norm,
        norm_out=config.head_norm_out,
        norm_momentum=norm_momentum,
        dtype=jnp.dtype(config.dtype),
    )


def make_text_tower(config: TextConfig, model: ModelConfig, *, vocab: int) -> TextTower:
    """The text tower that a config describes.

    Args:
        config: length, width, depth and heads.
        model: compute dtype, and what is recomputed.
        vocab: different tokens, padding included.

    Returns:
        A Linen module, called like an encoder on int32 tokens [n, t]; features are float32 [n, width].
    """
    return TextTower(
        vocab=vocab,
        length=config.length,
        width=config.width,
        depth=config.depth,
        heads=config.heads,
        remat=model.remat,
        dtype=jnp.dtype(model.dtype),
        flavour=config.flavour,
    )


def make_predictor(config: ModelConfig, *, norm_momentum: float = 0.9) -> ProjectionHead:
    """The predictor that a config describes: from embeddings to embeddings.

    Args:
        config: layers, widths, norm and compute dtype of the predictor.
        norm_momentum: as in `make_encoder`.

    Returns:
        A Linen module, float32 [n, head_dim] to the same.
    """
    return ProjectionHead(
        layers=config.predictor_layers,
        hidden=config.predictor_hidden,
        dim=config.head_dim,
        norm=config.head_norm,
        norm_momentum=norm_momentum,
        dtype=jnp.dtype(config.dtype),
    )
