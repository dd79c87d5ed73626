"""What every encoder promises: shapes, dtypes, finite gradients, and which images may influence which features."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE

from jaxcl.config import ModelConfig
from jaxcl.models import ConvEncoder, ResNet, ViT, make_encoder, make_head
from jaxcl.models.resnet import BasicBlock, Bottleneck

WIDTHS = dict(conv=512, resnet18=512, resnet34=512, resnet50=2048, vit_ti=192, vit_s=384, vit_b=768)
TINY_WIDTHS = dict(conv=512, resnet=128, vit=32)
SMALL = ("conv", "resnet", "vit")
KINDS = [("conv", "batch"), ("conv", "group"), ("resnet", "batch"), ("resnet", "group"), ("vit", "none")]


def tiny(name, *, norm="batch", dtype="float32", norm_momentum=0.9):
    """Encoders of the same code that compile in a second."""
    dtype = jnp.dtype(dtype)
    if name == "vit":
        return ViT(32, 2, depth=2, patch=4, dtype=dtype)
    if name == "resnet":
        return ResNet(BasicBlock, (1, 1), norm=norm, norm_momentum=norm_momentum, dtype=dtype)
    return ConvEncoder(norm=norm, norm_momentum=norm_momentum, dtype=dtype)


def images(n, size=8, channels=3, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, size, size, channels)), jnp.float32)


def init(encoder, x, seed=1):
    """Variables drawn by numpy, none at its initial zero or one, so that no branch is silent."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        noise = rng.normal(size=leaf.shape).astype(np.float32)
        name = path[-1].key
        if name == "kernel":
            return jnp.asarray(noise / np.sqrt(leaf.size / leaf.shape[-1]))
        return jnp.asarray(np.exp(0.1 * noise) if name in ("scale", "var") else 0.1 * noise)

    shapes = jax.eval_shape(encoder.init, jax.random.key(0), x)
    return jax.tree_util.tree_map_with_path(draw, shapes)


def encode(encoder, variables, x, train=False):
    return jax.jit(
        lambda v, x: encoder.apply(v, x, train=train, mutable=["batch_stats"]), compiler_options=FAST_COMPILE
    )(variables, x)


@pytest.mark.parametrize(
    ("name", "dtype", "channels"),
    [("conv", "float32", 3), ("conv", "float16", 1), *((name, "bfloat16", 3) for name in WIDTHS)],
)
def test_features_parameters_and_statistics_are_float32_whatever_the_compute_type(name, dtype, channels):
    encoder = make_encoder(ModelConfig(encoder=name, dtype=dtype, norm="batch"))
    x = jax.ShapeDtypeStruct((5, 16, 16, channels), jnp.float32)
    variables = jax.eval_shape(encoder.init, jax.random.key(0), x)
    features, updates = jax.eval_shape(
        lambda v, x: encoder.apply(v, x, train=True, mutable=["batch_stats"]), variables, x
    )
    chex.assert_shape(features, (5, WIDTHS[name]))
    assert {leaf.dtype for leaf in jax.tree.leaves((features, variables, updates))} == {jnp.dtype("float32")}
    assert set(variables) <= {"params", "batch_stats"}
    assert jax.tree.structure(updates) == jax.tree.structure({k: v for k, v in variables.items() if k != "params"})


@pytest.mark.parametrize("name", SMALL)
def test_half_precision_computes_in_half_precision_and_stays_near_float32(name):
    x = images(6)
    full, half = tiny(name), tiny(name, dtype="bfloat16")
    variables = init(full, x)
    expected, _ = encode(full, variables, x, train=True)
    got, _ = encode(half, variables, x, train=True)
    error = float(jnp.linalg.norm(got - expected) / jnp.linalg.norm(expected))
    assert 1e-4 < error < 0.05


@pytest.mark.parametrize(("name", "norm"), KINDS)
def test_every_parameter_has_a_finite_gradient_that_is_not_zero(name, norm):
    encoder = tiny(name, norm=norm)
    x = images(6)
    variables = init(encoder, x)
    weights = np.random.default_rng(9).normal(size=(6, TINY_WIDTHS[name]))

    def loss(params):
        features, _ = encoder.apply(variables | {"params": params}, x, train=True, mutable=["batch_stats"])
        return jnp.sum(features * weights)

    for path, leaf in jax.tree_util.tree_leaves_with_path(
        jax.jit(jax.grad(loss), compiler_options=FAST_COMPILE)(variables["params"])
    ):
        assert np.all(np.isfinite(leaf)), path
        assert np.any(leaf != 0), path


@pytest.mark.parametrize(("name", "norm"), KINDS)
def test_in_evaluation_features_depend_neither_on_batch_mates_nor_on_their_order(name, norm):
    encoder = tiny(name, norm=norm)
    x = images(7)
    variables = init(encoder, x)
    features, updates = encode(encoder, variables, x)
    order = jnp.array([3, 0, 6, 2, 5, 1, 4])
    chex.assert_trees_all_close(encode(encoder, variables, x[order])[0], features[order], rtol=1e-5, atol=1e-6)
    mates = x.at[1:].set(images(6, seed=5))
    chex.assert_trees_all_close(encode(encoder, variables, mates)[0][0], features[0], rtol=1e-5, atol=1e-6)
    assert bool(jax.tree.leaves(updates)) == (norm == "batch")
    chex.assert_trees_all_equal(updates, {k: v for k, v in variables.items() if k != "params"})


@pytest.mark.parametrize("name", ["conv", "resnet"])
def test_in_training_group_norm_ignores_batch_mates_and_batch_norm_does_not(name):
    x = images(5)
    mates = x.at[1:].set(images(4, seed=5))

    def change(norm):
        """How far new batch mates move the features of image 0."""
        encoder = tiny(name, norm=norm)
        variables = init(encoder, x)
        first, second = (encode(encoder, variables, batch, train=True)[0][0] for batch in (x, mates))
        return float(jnp.max(jnp.abs(first - second)))

    assert change("group") < 1e-5
    assert change("batch") > 1e-2


@pytest.mark.parametrize("name", ["conv", "resnet"])
def test_running_statistics_keep_the_given_share_of_the_old(name):
    x = images(6)
    layer = {"conv": "norm1", "resnet": "stem_norm"}[name]

    def moved(momentum):
        encoder = tiny(name, norm_momentum=momentum)
        variables = init(encoder, x)
        variables["batch_stats"] = jax.tree.map(jnp.zeros_like, variables["batch_stats"])
        _, updates = encode(encoder, variables, x, train=True)
        return np.asarray(updates["batch_stats"][layer]["batch"]["mean"])

    np.testing.assert_allclose(moved(0.9), 0.1 * moved(0.0), rtol=1e-4, atol=1e-7)
    assert np.any(moved(0.0) != 0)


@pytest.mark.parametrize("name", ["conv", "resnet"])
def test_batch_statistics_and_gradients_are_global_over_eight_devices(name):
    encoder = tiny(name)
    x = images(16) * jnp.arange(1, 17)[:, None, None, None]  # images differ in scale: local statistics would show
    variables = init(encoder, x)

    def loss(params, x):
        features, updates = encoder.apply(variables | {"params": params}, x, train=True, mutable=["batch_stats"])
        return jnp.mean(jnp.sin(features)), updates

    step = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=FAST_COMPILE)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data")))
    assert len(split.sharding.device_set) == 8
    (value, updates), grads = step(variables["params"], x)
    (value8, updates8), grads8 = step(variables["params"], split)
    np.testing.assert_allclose(value8, value, rtol=1e-5)
    chex.assert_trees_all_close(updates8, updates, rtol=1e-4, atol=1e-6)
    scale = max(float(jnp.max(jnp.abs(g))) for g in jax.tree.leaves(grads))
    chex.assert_trees_all_close(grads8, grads, rtol=1e-3, atol=1e-5 * scale)


@pytest.mark.parametrize("size", [8, 17, 28, 33])
@pytest.mark.parametrize(
    "encoder",
    [
        ConvEncoder(),
        ResNet(BasicBlock, (1, 1), stem="small"),
        ResNet(BasicBlock, (1, 1), stem="imagenet"),
        ResNet(Bottleneck, (1, 1), stem="imagenet"),
    ],
    ids=["conv", "small", "imagenet", "bottleneck"],
)
def test_convolutional_encoders_take_every_image_size(encoder, size):
    widths = [
        jax.eval_shape(lambda x: encoder.init_with_output(jax.random.key(0), x)[0], jnp.zeros(shape)).shape
        for shape in ((2, size, size + 1, 3), (2, 32, 32, 3))
    ]
    assert widths[0] == widths[1]


def test_the_same_key_gives_the_same_parameters_and_another_key_others():
    encoder = make_encoder(ModelConfig())
    make = jax.jit(encoder.init, compiler_options=FAST_COMPILE)
    first, second, other = (make(jax.random.key(seed), images(2)) for seed in (4, 4, 5))
    chex.assert_trees_all_equal(first, second)
    kernels = [tree["params"]["conv1"]["kernel"] for tree in (first, other)]
    assert np.mean(kernels[0] == kernels[1]) < 1e-2


def test_encoder_and_head_compose_as_the_settings_say():
    config = ModelConfig(head_layers=3, head_hidden=24, head_dim=10)
    encoder, head = make_encoder(config), make_head(config)
    key = jax.random.key(0)
    features, _ = jax.eval_shape(lambda: encoder.init_with_output(key, images(2)))
    embeddings, variables = jax.eval_shape(lambda x: head.init_with_output(key, x), features)
    chex.assert_shape(embeddings, (2, 10))
    chex.assert_shape(variables["params"]["dense2"]["kernel"], (24, 24))
