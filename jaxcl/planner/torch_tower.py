"""The ViT of `jaxcl.models.vit` and its projection head, as they are written in PyTorch (extra `torch`)."""

from __future__ import annotations

from typing import Any, NamedTuple

EPSILON = 1e-6  # of the layer norms


class Shape(NamedTuple):
    """Sizes of the image tower and its head.

    Attributes:
        image_size: pixels a side.
        patch: pixels a side of a patch.
        width: of a token.
        depth: layers.
        heads: attention heads.
        mlp: hidden width of the MLPs.
        head_dim: dimensions of an embedding.
        head_hidden: widths of the head's hidden layers, each with batch norm and ReLU.
        channels: of an image.
        pool: "cls", "mean" or "cls_mean".
    """

    image_size: int
    patch: int
    width: int
    depth: int
    heads: int
    mlp: int
    head_dim: int
    head_hidden: tuple[int, ...] = ()
    channels: int = 3
    pool: str = "cls"


def make_tower(shape: Shape) -> Any:
    """The parameters of a ViT and its head, named as in `jaxcl.models.vit`.

    Args:
        shape: of the tower.

    Returns:
        A `torch.nn.ModuleDict` for `embed`.
    """
    import torch
    from torch import nn

    width, tokens = shape.width, (shape.image_size // shape.patch) ** 2 + (shape.pool != "mean")

    def layer() -> Any:
        dense = dict(qkv=(width, 3 * width), project=(width, width), mlp1=(width, shape.mlp), mlp2=(shape.mlp, width))
        parts = {name: nn.Linear(*sizes) for name, sizes in dense.items()}
        return nn.ModuleDict(parts | {name: nn.LayerNorm(width, eps=EPSILON) for name in ("norm1", "norm2")})

    head: list[Any] = []
    features = 2 * width if shape.pool == "cls_mean" else width
    for hidden in shape.head_hidden:
        head += [nn.Linear(features, hidden, bias=False), nn.BatchNorm1d(hidden, track_running_stats=False)]
        features = hidden
    tower = nn.ModuleDict(
        dict(
            patches=nn.Linear(shape.patch**2 * shape.channels, width),
            layers=nn.ModuleList(layer() for _ in range(shape.depth)),
            norm=nn.LayerNorm(width, eps=EPSILON),
            head=nn.ModuleList([*head, nn.Linear(features, shape.head_dim)]),
        )
    )
    tower.register_parameter("cls", nn.Parameter(torch.zeros(1, 1, width)) if shape.pool != "mean" else None)
    tower.register_parameter("position", nn.Parameter(torch.zeros(1, tokens, width)))
    return tower


def embed(tower: Any, images: Any, shape: Shape) -> Any:
    """Images to embeddings; under autocast in the compute type, with the residual stream in it too.

    Args:
        tower: from `make_tower`.
        images: [n, c, h, w], uint8.
        shape: of the tower.

    Returns:
        Embeddings [n, head_dim], float32, not normalised.
    """
    import torch

    side, patch = shape.image_size // shape.patch, shape.patch
    kind = torch.get_autocast_dtype(images.device.type) if torch.is_autocast_enabled(images.device.type) else None
    pixels = (images.to(kind or torch.float32) / 255 - 0.5) / 0.25
    grid = pixels.reshape(-1, shape.channels, side, patch, side, patch).permute(0, 2, 4, 3, 5, 1)
    x = _linear(tower["patches"], grid.reshape(len(images), side * side, -1))
    if shape.pool != "mean":
        x = torch.cat([tower.cls.to(x.dtype).expand(len(x), 1, -1), x], dim=1)
    x = x + tower.position.to(x.dtype)
    for layer in tower["layers"]:
        x = x + _attention(layer, x, shape.heads)
        hidden = torch.nn.functional.gelu(_linear(layer["mlp1"], _norm(layer["norm2"], x)))
        x = x + _linear(layer["mlp2"], hidden)
    x = x[:, :1] if shape.pool == "cls" else x
    x = _norm(tower["norm"], x.float())
    pooled = dict(cls=lambda: x[:, 0], mean=lambda: x.mean(1), cls_mean=lambda: _both(x))
    return _head(tower["head"], pooled[shape.pool]()).float()


def _both(x: Any) -> Any:
    """Class token and mean of the patches side by side."""
    import torch

    return torch.cat([x[:, 0], x[:, 1:].mean(1)], dim=1)


def _attention(layer: Any, x: Any, heads: int) -> Any:
    """What attention adds to the tokens."""
    import torch

    n, tokens, width = x.shape
    qkv = _linear(layer["qkv"], _norm(layer["norm1"], x)).reshape(n, tokens, 3, heads, width // heads)
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    return _linear(layer["project"], mixed.transpose(1, 2).reshape(n, tokens, width))


def _head(layers: Any, x: Any) -> Any:
    """The projection head, with the statistics of these features."""
    import torch

    for layer in layers:
        if isinstance(layer, torch.nn.BatchNorm1d):
            x = torch.nn.functional.batch_norm(x, None, None, layer.weight, layer.bias, training=True, eps=layer.eps)
            x = torch.relu(x)
        else:
            x = _linear(layer, x)
    return x


def _linear(layer: Any, x: Any) -> Any:
    """A linear layer; called as a module, `MemTracker` would look at it, and refuse to do so twice a step."""
    import torch

    return torch.nn.functional.linear(x, layer.weight, layer.bias)


def _norm(norm: Any, x: Any) -> Any:
    """Layer norm in the type of its input; autocast would keep a float32 copy of it on a GPU."""
    import torch

    with torch.autocast(x.device.type, enabled=False):
        weight, bias = norm.weight.to(x.dtype), norm.bias.to(x.dtype)
        return torch.nn.functional.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps)
