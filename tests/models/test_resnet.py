"""Published parameter counts, initialisation, and a block against numpy loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE

from jaxcl.config import ModelConfig
from jaxcl.models import make_encoder
from jaxcl.models.norms import make_norm
from jaxcl.models.resnet import BasicBlock, Bottleneck, ResNet


def count(config, size=64):
    encoder = make_encoder(config)
    variables = jax.eval_shape(encoder.init, jax.random.key(0), jnp.zeros((1, size, size, 3)))
    return sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))


@pytest.mark.parametrize(
    ("encoder", "stem", "norm", "expected"),
    [
        ("resnet18", "imagenet", "batch", 11_176_512),
        ("resnet34", "imagenet", "batch", 21_284_672),
        ("resnet50", "imagenet", "batch", 23_508_032),
        ("resnet18", "small", "batch", 11_168_832),
        ("resnet18", "small", "group", 11_168_832),
    ],
)
def test_the_backbone_has_the_published_number_of_parameters(encoder, stem, norm, expected):
    assert count(ModelConfig(encoder=encoder, stem=stem, norm=norm)) == expected


def np_conv(x, kernel, stride):
    """A padded convolution as loops over output pixels."""
    size = kernel.shape[0]
    pad = size // 2
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    rows, columns = ((pixels - size) // stride + 1 for pixels in x.shape[1:3])
    out = np.zeros((len(x), rows, columns, kernel.shape[3]))
    for i in range(rows):
        for j in range(columns):
            window = x[:, i * stride : i * stride + size, j * stride : j * stride + size]
            out[:, i, j] = np.einsum("nhwc,hwcf->nf", window, kernel)
    return out


def np_norm(x, params, stats):
    if stats is None:
        mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    else:
        mean, var = stats["batch"]["mean"], stats["batch"]["var"]
    return (x - mean) / np.sqrt(var + 1e-5) * params["batch"]["scale"] + params["batch"]["bias"]


def np_block(variables, x, strides, train):
    """relu(shortcut + conv, norm, relu, conv, norm, ...), from the variables of a block."""
    params = variables["params"]

    def norm(y, name):
        return np_norm(y, params[name], None if train else variables["batch_stats"][name])

    y = x
    for number, stride in enumerate(strides, 1):
        y = norm(np_conv(y, params[f"conv{number}"]["kernel"], stride), f"norm{number}")
        y = np.maximum(y, 0) if number < len(strides) else y
    if "shortcut_conv" in params:
        x = norm(np_conv(x, params["shortcut_conv"]["kernel"], max(strides)), "shortcut_norm")
    return np.maximum(x + y, 0)


def random_like(tree, seed):
    """Positive, so that they can be variances too."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.uniform(0.3, 1.7, leaf.shape).astype(np.float32), tree)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    ("block", "channels", "stride", "strides"),
    [
        (BasicBlock, 3, 1, (1, 1)),
        (BasicBlock, 5, 2, (2, 1)),
        (Bottleneck, 12, 1, (1, 1, 1)),
        (Bottleneck, 5, 2, (1, 2, 1)),
    ],
)
@pytest.mark.parametrize("size", [6, 7])
def test_a_block_equals_numpy_loops(block, channels, stride, strides, train, size):
    module = block(3, stride, make_norm("batch", momentum=0.9, dtype=jnp.float32), jnp.float32)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, size, size, channels)).astype(np.float32))
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), x, True))
    variables = random_like(shapes, seed=1)
    assert ("shortcut_conv" in variables["params"]) == (stride == 2)
    apply = jax.jit(lambda v, x: module.apply(v, x, train, mutable=["batch_stats"]), compiler_options=FAST_COMPILE)
    out, _ = apply(variables, x)
    np.testing.assert_allclose(out, np_block(variables, np.asarray(x), strides, train), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
def test_a_fresh_block_without_a_projection_is_the_identity_of_what_is_positive(block):
    module = block(4, 1, make_norm("batch", momentum=0.9, dtype=jnp.float32), jnp.float32)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5, 5, 4 * block.expansion)), jnp.float32)
    variables = jax.jit(lambda: module.init(jax.random.key(1), x, True), compiler_options=FAST_COMPILE)()
    np.testing.assert_array_equal(module.apply(variables, x, False), np.maximum(x, 0))


def test_convolutions_start_with_the_variance_of_he_by_fan_out():
    encoder = ResNet(BasicBlock, (1, 1))
    params = jax.jit(encoder.init, compiler_options=FAST_COMPILE)(jax.random.key(0), jnp.zeros((1, 8, 8, 3)))["params"]
    for name, fan_out in (("stage1_block1", 9 * 64), ("stage2_block1", 9 * 128)):
        kernel = params[name]["conv1"]["kernel"]
        np.testing.assert_allclose(jnp.var(kernel) * fan_out / 2, 1.0, rtol=0.05)


@pytest.mark.parametrize(("stem", "height"), [("imagenet", 16), ("small", 64)])
def test_the_imagenet_stem_divides_the_pixels_by_four_and_the_small_stem_keeps_them(stem, height):
    encoder = ResNet(BasicBlock, (1,), stem=stem)
    _, state = jax.eval_shape(
        lambda: encoder.init_with_output(
            jax.random.key(0), jnp.zeros((1, 64, 64, 3)), capture_intermediates=lambda m, _: m.name == "stage1_block1"
        )
    )
    assert state["intermediates"]["stage1_block1"]["__call__"][0].shape[1] == height
