"""Tiny random originals, made, run and saved by the libraries that published weights come from.

Their numbers are rounded to float16, so that a file of half the size holds exactly what ran in float32.
"""

from __future__ import annotations

import contextlib
import io
from functools import partial

import numpy as np

WIDTH, HEADS, DEPTH, PATCH, SIDE, OTHER_SIDE = 8, 2, 2, 4, 16, 24
LENGTH = 12  # positions of a text
BERT_VOCAB, CLIP_VOCAB, PROJECTION = 110, 60, 6
START, END = {"bert": 101, "clip": CLIP_VOCAB - 2}, {"bert": 102, "clip": CLIP_VOCAB - 1}
LAYERS = dict(hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=HEADS, intermediate_size=4 * WIDTH)


def images(side):
    return np.random.default_rng(side).normal(size=(2, side, side, 3)).astype(np.float16).astype(np.float32)


def texts():
    """Rows as `jaxcl.data.tokens` makes them: start 1, end 2, padding 0, and tokens of the library from 3 on."""
    rows = np.zeros((3, 9), np.int32)
    for row, inner in zip(rows, ([5, 40, 7, 7, 31], [], [9, 12, 50, 33, 3, 8, 21]), strict=True):
        row[: len(inner) + 2] = [1, *inner, 2]
    return rows


def as_theirs(rows, kind):
    """The same texts in the numbers of the original, and which of them are no padding."""
    ids = np.where(rows == 1, START[kind], np.where(rows == 2, END[kind], np.maximum(rows - 3, 0)))
    return ids.astype(np.int64), (rows != 0).astype(np.int64)


def randomise(model, seed=0):
    """Every number matters, and none is what it was at the start."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                spread = 1 / value[0].numel() ** 0.5 if value.ndim > 1 else 0.3
                drawn = spread * torch.randn(value.shape, generator=generator)
                if value.ndim < 2 and name.endswith(("weight", "running_var", "gamma", "lambda1")):
                    drawn = (1 + drawn).clamp(0.3)
                if any(part in name for part in ("embeddings", "pos_embed", "token")):
                    drawn = torch.randn(value.shape, generator=generator)
                value.copy_(drawn.half().float())
    return model.eval()


def transformers_model(name, **settings):
    import transformers

    return randomise(getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**settings)))


def run(model, *arguments, **options):
    import torch

    given = (torch.tensor(np.moveaxis(x, -1, 1) if x.ndim == 4 else x) for x in arguments)
    with torch.no_grad():
        return model(*given, **options)


def pooled(model, output, **options):
    """Image features at two sizes."""
    return {side: output(run(model, images(side), **options)).numpy() for side in (SIDE, OTHER_SIDE)}


def hf_vit():
    model = transformers_model("ViT", image_size=SIDE, patch_size=PATCH, **LAYERS)
    return model, pooled(model, lambda out: out.last_hidden_state[:, 0], interpolate_pos_encoding=True)


def hf_dinov2():
    model = transformers_model("Dinov2", image_size=SIDE, patch_size=PATCH, **{**LAYERS, "mlp_ratio": 4})
    return model, pooled(model, lambda out: out.pooler_output)


def hf_resnet(layer_type, hidden, depths):
    model = transformers_model(
        "ResNet", embedding_size=2, hidden_sizes=hidden, depths=list(depths), layer_type=layer_type
    )
    return model, pooled(model, lambda out: out.pooler_output[:, :, 0, 0])


def hf_clip():
    towers = dict(vision_config=dict(image_size=SIDE, patch_size=PATCH, **LAYERS))
    towers["text_config"] = dict(
        vocab_size=CLIP_VOCAB,
        max_position_embeddings=LENGTH,
        bos_token_id=START["clip"],
        eos_token_id=END["clip"],
        **LAYERS,
    )
    model = transformers_model("CLIP", projection_dim=PROJECTION, **towers)
    # transformers 5 returns an output with the projected features in it, older ones the features
    features = partial(run, model.get_image_features, interpolate_pos_encoding=True)
    out = {side: plain(features(images(side))) for side in (SIDE, OTHER_SIDE)}
    return model, out | {"texts": plain(run(model.get_text_features, as_theirs(texts(), "clip")[0]))}


def plain(out):
    return getattr(out, "pooler_output", out).numpy()


def hf_bert():
    model = transformers_model("Bert", vocab_size=BERT_VOCAB, max_position_embeddings=LENGTH, **LAYERS)
    return model, {"texts": mean_of(model, *as_theirs(texts(), "bert"))}


def mean_of(model, ids, mask):
    import torch

    hidden = run(model, ids, attention_mask=torch.tensor(mask)).last_hidden_state
    weight = torch.tensor(mask)[..., None]
    return ((hidden * weight).sum(1) / weight.sum(1)).numpy()


def timm_vit(**settings):
    from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn

    shape = dict(patch_size=PATCH, embed_dim=WIDTH, depth=DEPTH, num_heads=HEADS, num_classes=0, **settings)
    model, larger = randomise(VisionTransformer(SIDE, **shape)), VisionTransformer(OTHER_SIDE, **shape)
    larger.load_state_dict(checkpoint_filter_fn(model.state_dict(), larger))
    outputs = {side: run(each.eval(), images(side)).numpy() for side, each in ((SIDE, model), (OTHER_SIDE, larger))}
    return model, outputs


def timm_clip():
    import torch

    return timm_vit(pre_norm=True, norm_layer=partial(torch.nn.LayerNorm, eps=1e-5), act_layer="quick_gelu")


ORIGINALS = {
    "hf_vit": hf_vit,
    "hf_dinov2": hf_dinov2,
    "hf_clip": hf_clip,
    "hf_bert": hf_bert,
    "hf_resnet_basic": partial(hf_resnet, "basic", [2, 4, 8, 16], (2, 1, 1, 2)),
    "hf_resnet_bottleneck": partial(hf_resnet, "bottleneck", [8, 16, 32, 64], (1, 1, 2, 1)),
    "timm_vit": timm_vit,
    "timm_dinov2": partial(timm_vit, init_values=1.0),
    "timm_clip": timm_clip,
}


def save(model, file):
    """As its library saves it, in float16."""
    model = model.half()
    if hasattr(model, "save_pretrained"):
        with contextlib.redirect_stderr(io.StringIO()):
            model.save_pretrained(file.parent / "saved")
        (file.parent / "saved" / "model.safetensors").rename(file)
    else:
        from safetensors.torch import save_file

        save_file(model.state_dict(), file)
    return file


def make(name, file):
    """Saves an original; returns its outputs by side of the images or "texts"."""
    model, outputs = ORIGINALS[name]()
    save(model, file)
    return outputs
