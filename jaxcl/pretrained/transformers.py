"""Names of transformers: the ViT, DINOv2, CLIP and BERT of Hugging Face, and the `vit_*` of timm."""

from __future__ import annotations

from typing import Any

from jaxcl.pretrained.rules import (
    Family,
    Rule,
    dense,
    norm,
    patches,
    positions,
    row,
    same,
    text_positions,
    tokens,
    zeros,
)


def _layers(
    part: str, prefix: str, *, norms: tuple[str, str], qkv: tuple[str, ...], project: str, mlp: tuple[str, str]
) -> tuple[Rule, ...]:
    """The rules of a stack of layers, by the names below one of them."""
    layers = f"params/{part}/layers"
    return (
        *norm(f"{layers}/norm1", prefix + norms[0]),
        *dense(f"{layers}/qkv", *(prefix + name for name in qkv)),
        *dense(f"{layers}/project", prefix + project),
        *norm(f"{layers}/norm2", prefix + norms[1]),
        *dense(f"{layers}/mlp1", prefix + mlp[0]),
        *dense(f"{layers}/mlp2", prefix + mlp[1]),
    )


def _scales(prefix: str, names: tuple[str, str]) -> tuple[Rule, ...]:
    """The rules of LayerScale."""
    return tuple(
        Rule(f"params/encoder/layers/scale{number}", (prefix + name,), same) for number, name in enumerate(names, 1)
    )


def _image(cls: str, position: str, conv: str, *, antialias: bool, bias: bool = True) -> tuple[Rule, ...]:
    """The rules of what stands before the layers."""
    return (
        Rule("params/encoder/cls", (cls,), row),
        Rule("params/encoder/position", (position,), positions(antialias=antialias)),
        Rule("params/encoder/patches/kernel", (f"{conv}.weight",), patches),
        *([Rule("params/encoder/patches/bias", (f"{conv}.bias",), same)] if bias else []),
    )


_HF_IMAGE = (
    *_image(
        "embeddings.cls_token",
        "embeddings.position_embeddings",
        "embeddings.patch_embeddings.projection",
        antialias=False,
    ),
    *norm("params/encoder/norm", "layernorm"),
)
_HF_REST = ("pooler.", "classifier.", "embeddings.mask_token", "embeddings.position_ids", "head.")
# on disk, and in the memory of transformers 5, from where an exporter or `state_dict` takes them
_DISK: dict[str, Any] = dict(
    qkv=tuple(f"attention.attention.{name}" for name in ("query", "key", "value")), project="attention.output.dense"
)
_MEMORY: dict[str, Any] = dict(qkv=tuple(f"attention.{name}_proj" for name in "qkv"), project="attention.o_proj")
_FC: tuple[str, str] = ("mlp.fc1", "mlp.fc2")
_AROUND: tuple[str, str] = ("layernorm_before", "layernorm_after")


def _hf_vit(anchor: str, layers: tuple[Rule, ...]) -> Family:
    """ViT by the rules of its layers."""
    return Family("ViT of Hugging Face", "hf", anchor, _HF_IMAGE + layers, _HF_REST)


def _hf_dinov2(anchor: str, attention: dict[str, Any]) -> Family:
    """DINOv2 by the names in its attention."""
    prefix = "encoder.layer.{}."
    layers = _layers("encoder", prefix, norms=("norm1", "norm2"), mlp=_FC, **attention)
    scales = _scales(prefix, ("layer_scale1.lambda1", "layer_scale2.lambda1"))
    return Family("DINOv2 of Hugging Face", "dinov2", anchor, _HF_IMAGE + layers + scales, _HF_REST)


HF_VITS = (
    _hf_vit(
        "encoder.layer.0.layernorm_before.weight",
        _layers("encoder", "encoder.layer.{}.", norms=_AROUND, mlp=("intermediate.dense", "output.dense"), **_DISK),
    ),
    _hf_vit("layers.0.layernorm_before.weight", _layers("encoder", "layers.{}.", norms=_AROUND, mlp=_FC, **_MEMORY)),
)
HF_DINOV2S = (
    _hf_dinov2("encoder.layer.0.attention.attention.query.bias", _DISK),
    _hf_dinov2("encoder.layer.0.attention.q_proj.bias", _MEMORY),
)

_TIMM = (
    *norm("params/encoder/norm", "norm"),
    *_layers(
        "encoder",
        "blocks.{}.",
        norms=("norm1", "norm2"),
        qkv=("attn.qkv",),
        project="attn.proj",
        mlp=("mlp.fc1", "mlp.fc2"),
    ),
)
_TIMM_REST = ("head.", "mask_token")
_TIMM_IMAGE = _image("cls_token", "pos_embed", "patch_embed.proj", antialias=True)
TIMM_VIT = Family("ViT of timm", "plain", "blocks.0.attn.qkv.weight", _TIMM_IMAGE + _TIMM, _TIMM_REST)
TIMM_DINOV2 = Family(
    "DINOv2 of timm",
    "dinov2",
    "blocks.0.ls1.gamma",
    _TIMM_IMAGE + _TIMM + _scales("blocks.{}.", ("ls1.gamma", "ls2.gamma")),
    _TIMM_REST,
)
TIMM_CLIP = Family(
    "image tower of CLIP in timm",
    "clip",
    "norm_pre.weight",
    _image("cls_token", "pos_embed", "patch_embed.proj", antialias=True, bias=False)
    + tuple(norm("params/encoder/norm_in", "norm_pre"))
    + _TIMM,
    _TIMM_REST,
)


def _clip_layers(part: str, tower: str) -> tuple[Rule, ...]:
    """The rules of the layers of either tower of CLIP."""
    return _layers(
        part,
        f"{tower}.encoder.layers.{{}}.",
        norms=("layer_norm1", "layer_norm2"),
        qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        project="self_attn.out_proj",
        mlp=("mlp.fc1", "mlp.fc2"),
    )


_IMAGE_TOWER = (
    *_image(
        "vision_model.embeddings.class_embedding",
        "vision_model.embeddings.position_embedding.weight",
        "vision_model.embeddings.patch_embedding",
        antialias=False,
        bias=False,
    ),
    *norm("params/encoder/norm_in", "vision_model.pre_layrnorm"),  # its name there
    *_clip_layers("encoder", "vision_model"),
    *norm("params/encoder/norm", "vision_model.post_layernorm"),
)
_TEXT_TOWER = (
    Rule("params/text/position", ("text_model.embeddings.position_embedding.weight",), text_positions),
    # the vocabulary ends with start and end; what padding means does not matter behind the end token
    Rule("params/text/tokens/embedding", ("text_model.embeddings.token_embedding.weight",), tokens(-1, -2, -1)),
    *_clip_layers("text", "text_model"),
    *norm("params/text/norm", "text_model.final_layer_norm"),
)


def _projection(head: str, name: str) -> tuple[Rule, ...]:
    """The rules of a projection without bias, which is a head of one linear layer whose bias is 0."""
    return *dense(f"params/{head}/dense1", name, bias=False), Rule(f"params/{head}/dense1/bias", (), zeros)


_IMAGE_HEAD, _TEXT_HEAD = _projection("head", "visual_projection"), _projection("text_head", "text_projection")
_SCALE = (Rule("params/log_scale", ("logit_scale",), same),)
_OF_IMAGES, _OF_TEXTS = ("vision_model.", "visual_projection."), ("text_model.", "text_projection.")
_CLIP_REST = ("vision_model.embeddings.position_ids", "text_model.embeddings.position_ids")
_ANCHORS = ("vision_model.embeddings.patch_embedding.weight", "text_model.embeddings.token_embedding.weight")
CLIP_IMAGE = Family(
    "image tower of CLIP of Hugging Face",
    "clip",
    _ANCHORS[0],
    _IMAGE_TOWER + _IMAGE_HEAD + _SCALE,
    (*_OF_TEXTS, *_CLIP_REST),
)
CLIP_TEXT = Family(
    "text tower of CLIP of Hugging Face",
    "clip_text",
    _ANCHORS[1],
    _TEXT_TOWER + _TEXT_HEAD + _SCALE,
    (*_OF_IMAGES, *_CLIP_REST),
)
BERT = Family(
    "BERT of Hugging Face",
    "bert",
    "embeddings.word_embeddings.weight",
    (
        Rule(
            "params/text/position",
            ("embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight"),
            text_positions,
        ),
        # [PAD], [CLS] and [SEP] of every English vocabulary of BERT
        Rule("params/text/tokens/embedding", ("embeddings.word_embeddings.weight",), tokens(0, 101, 102)),
        *norm("params/text/norm_in", "embeddings.LayerNorm"),
        *_layers(
            "text",
            "encoder.layer.{}.",
            norms=("attention.output.LayerNorm", "output.LayerNorm"),
            qkv=tuple(f"attention.self.{name}" for name in ("query", "key", "value")),
            project="attention.output.dense",
            mlp=("intermediate.dense", "output.dense"),
        ),
    ),
    ("pooler.", "cls.", "embeddings.position_ids"),
)

# the first whose anchor a file has
VITS = (CLIP_IMAGE, *HF_VITS, *HF_DINOV2S, TIMM_CLIP, TIMM_DINOV2, TIMM_VIT)
TEXTS = (CLIP_TEXT, BERT)
