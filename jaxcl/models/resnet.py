"""ResNet-18, -34 and -50 without the classifier (He et al. 2015), for small images or for ImageNet sizes.

Paper: https://arxiv.org/abs/1512.03385. Bottlenecks stride in their 3x3 convolution, and the last norm of each block
starts with scale 0, so that every block starts as the identity (Goyal et al. 2017, https://arxiv.org/abs/1706.02677).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from jaxcl.models.convolve import convolve, convolve_in_loops
from jaxcl.models.norms import Norm, make_norm

HE_FAN_OUT = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


def _conv(features: int, size: int, stride: int, dtype: Any, looped: bool, name: str) -> nn.Conv:
    """A convolution without bias that keeps ceil(pixels / stride) for every image size."""
    pad = size // 2
    return nn.Conv(
        features,
        (size, size),
        strides=stride,
        padding=((pad, pad), (pad, pad)),
        use_bias=False,
        kernel_init=HE_FAN_OUT,
        dtype=dtype,
        conv_general_dilated=convolve_in_loops if looped else convolve,
        name=name,
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: relu(shortcut(x) + norm(conv(relu(norm(conv(x)))))).

    Attributes:
        features: channels of the block.
        stride: of its first convolution and its shortcut.
        norm: builds one normalisation layer.
        dtype: compute dtype.
        looped: whether it is trained within a loop on a CPU, as in `jaxcl.models.convolve`.
    """

    features: int
    stride: int
    norm: Callable[..., Norm]
    dtype: Any
    looped: bool = False

    expansion = 1

    @nn.compact
    def __call__(self, x: Float[Array, "n h w c"], train: bool) -> Float[Array, "n h2 w2 f"]:
        """Return the block's activations, ceil(h / stride) pixels high."""
        y = _conv(self.features, 3, self.stride, self.dtype, self.looped, "conv1")(x)
        y = nn.relu(self.norm(name="norm1")(y, train))
        y = _conv(self.features, 3, 1, self.dtype, self.looped, "conv2")(y)
        y = self.norm(name="norm2", scale_init=nn.initializers.zeros)(y, train)
        return nn.relu(_shortcut(self, x, y.shape[-1], train) + y)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut; the output has four times the channels of the 3x3.

    Attributes:
        features: channels of the 3x3 convolution.
        stride: of the 3x3 convolution and the shortcut.
        norm: builds one normalisation layer.
        dtype: compute dtype.
        looped: whether it is trained within a loop on a CPU, as in `jaxcl.models.convolve`.
    """

    features: int
    stride: int
    norm: Callable[..., Norm]
    dtype: Any
    looped: bool = False

    expansion = 4

    @nn.compact
    def __call__(self, x: Float[Array, "n h w c"], train: bool) -> Float[Array, "n h2 w2 f"]:
        """Return the block's activations, ceil(h / stride) pixels high."""
        y = _conv(self.features, 1, 1, self.dtype, self.looped, "conv1")(x)
        y = nn.relu(self.norm(name="norm1")(y, train))
        y = _conv(self.features, 3, self.stride, self.dtype, self.looped, "conv2")(y)
        y = nn.relu(self.norm(name="norm2")(y, train))
        y = _conv(self.expansion * self.features, 1, 1, self.dtype, self.looped, "conv3")(y)
        y = self.norm(name="norm3", scale_init=nn.initializers.zeros)(y, train)
        return nn.relu(_shortcut(self, x, y.shape[-1], train) + y)


def _shortcut(block: BasicBlock | Bottleneck, x: Array, features: int, train: bool) -> Array:
    """`x` itself where the shapes agree, else a strided 1x1 convolution and a norm."""
    if block.stride == 1 and x.shape[-1] == features:
        return x
    x = _conv(features, 1, block.stride, block.dtype, block.looped, "shortcut_conv")(x)
    return block.norm(name="shortcut_norm")(x, train)


class ResNet(nn.Module):
    """Images to globally averaged features: [n, 512] from basic blocks, [n, 2048] from bottlenecks.

    Attributes:
        block: `BasicBlock` or `Bottleneck`.
        depths: blocks in each of the four stages.
        stem: "small" (3x3, stride 1, no pooling) or "imagenet" (7x7, stride 2, and max pooling).
        norm: "batch" or "group".
        norm_momentum: share of the running batch statistics kept at each step.
        dtype: compute dtype; parameters, statistics and features are float32.
        width: channels of the first stage; each other has twice as many as the one before.
        looped: whether it is trained within a loop on a CPU, as in `jaxcl.models.convolve`.
    """

    block: type[BasicBlock] | type[Bottleneck]
    depths: tuple[int, ...]
    stem: str = "small"
    norm: str = "batch"
    norm_momentum: float = 0.9
    dtype: Any = jnp.float32
    width: int = 64
    looped: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "n h w c"], train: bool = False) -> Float32[Array, "n f"]:
        """Encode normalised images of any height and width; `train` selects batch statistics."""
        norm = make_norm(self.norm, momentum=self.norm_momentum, dtype=self.dtype)
        large = self.stem == "imagenet"
        size, stride = (7, 2) if large else (3, 1)
        x = _conv(self.width, size, stride, self.dtype, self.looped, "stem_conv")(x)
        x = nn.relu(norm(name="stem_norm")(x, train))
        if large:
            x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        for stage, depth in enumerate(self.depths):
            for number in range(depth):
                stride = 2 if stage > 0 and number == 0 else 1
                name = f"stage{stage + 1}_block{number + 1}"
                x = self.block(self.width * 2**stage, stride, norm, self.dtype, self.looped, name=name)(x, train)
        return x.astype(jnp.float32).mean(axis=(1, 2))


ResNet18 = partial(ResNet, BasicBlock, (2, 2, 2, 2))
ResNet34 = partial(ResNet, BasicBlock, (3, 4, 6, 3))
ResNet50 = partial(ResNet, Bottleneck, (3, 4, 6, 3))
