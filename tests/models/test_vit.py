"""Published parameter counts, a layer against numpy, the scan over layers and what remat saves."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE
from jax.extend import core

from jaxcl import lora
from jaxcl.config import ConfigError, LoraConfig, ModelConfig
from jaxcl.models import make_encoder
from jaxcl.models.vit import POLICIES, Block, ViT, split_patches


@pytest.mark.parametrize(("encoder", "expected"), [("vit_b", 85_798_656), ("vit_s", 21_665_664), ("vit_ti", 5_524_416)])
@pytest.mark.parametrize("remat", ["none", "blocks"])
def test_the_backbone_at_224_pixels_has_the_published_number_of_parameters(encoder, expected, remat):
    module = make_encoder(ModelConfig(encoder=encoder, patch=16, remat=remat))
    variables = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 224, 224, 3)))
    assert set(variables) == {"params"}
    assert sum(leaf.size for leaf in jax.tree.leaves(variables)) == expected


def np_layer_norm(x, params):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-6) * params["scale"] + params["bias"]


def np_dense(x, params):
    return x @ params["kernel"] + params["bias"]


def np_gelu(x):
    return 0.5 * x * (1 + np.vectorize(__import__("math").erf)(x / np.sqrt(2)))


def np_block(params, x, heads):
    """One layer as loops over images and heads."""
    width = x.shape[-1]
    size = width // heads
    qkv = np_dense(np_layer_norm(x, params["norm1"]), params["qkv"])
    mixed = np.zeros_like(x)
    for image in range(len(x)):
        for head in range(heads):
            q, k, v = (qkv[image, :, part * width + head * size :][:, :size] for part in range(3))
            weights = np.exp(q @ k.T / np.sqrt(size))
            weights /= weights.sum(1, keepdims=True)
            mixed[image, :, head * size : (head + 1) * size] = weights @ v
    x = x + np_dense(mixed, params["project"])
    hidden = np_gelu(np_dense(np_layer_norm(x, params["norm2"]), params["mlp1"]))
    return x + np_dense(hidden, params["mlp2"])


def random_like(tree, seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: 0.3 * rng.normal(size=leaf.shape).astype(np.float32), tree)


def test_a_layer_equals_numpy_loops():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 12)).astype(np.float32))
    block = Block(3, jnp.float32)
    params = random_like(jax.eval_shape(lambda: block.init(jax.random.key(0), x))["params"], seed=1)
    out, none = jax.jit(block.apply, compiler_options=FAST_COMPILE)({"params": params}, x)
    assert none is None
    np.testing.assert_allclose(out, np_block(params, np.asarray(x), heads=3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pool", ["cls", "mean", "cls_mean"])
def test_the_encoder_is_its_layers_one_after_another_and_pools_the_normed_tokens(pool):
    encoder = ViT(12, 3, depth=3, patch=4, pool=pool)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 12, 3)).astype(np.float32))
    params = random_like(jax.eval_shape(lambda: encoder.init(jax.random.key(0), x))["params"], seed=1)
    tokens = np_dense(np.asarray(split_patches(x, 4)), params["patches"])
    if pool != "mean":
        tokens = np.concatenate([np.broadcast_to(params["cls"], (2, 1, 12)), tokens], 1)
    tokens = tokens + params["position"]
    for layer in range(3):
        tokens = np_block(jax.tree.map(lambda leaf, n=layer: leaf[n], params["layers"]), tokens, heads=3)
    tokens = np_layer_norm(tokens, params["norm"])
    patches = tokens if pool == "mean" else tokens[:, 1:]
    parts = {"cls": [tokens[:, 0]], "mean": [patches.mean(1)], "cls_mean": [tokens[:, 0], patches.mean(1)]}
    expected = np.concatenate(parts[pool], axis=1)
    out = jax.jit(encoder.apply, compiler_options=FAST_COMPILE)({"params": params}, x)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_patches_are_cut_row_by_row_and_each_keeps_its_own_pixels():
    x = jax.random.normal(jax.random.key(0), (2, 6, 9, 2))
    patches = split_patches(x, 3)
    for number, (row, column) in enumerate([(0, 0), (0, 3), (0, 6), (3, 0), (3, 3), (3, 6)]):
        expected = x[:, row : row + 3, column : column + 3].reshape(2, -1)
        np.testing.assert_array_equal(patches[:, number], expected)


def test_every_layer_starts_different_and_with_the_published_spread():
    encoder = make_encoder(ModelConfig(encoder="vit_ti", patch=4))
    params = jax.jit(encoder.init, compiler_options=FAST_COMPILE)(jax.random.key(0), jnp.zeros((1, 8, 8, 3)))["params"]
    kernels = np.asarray(params["layers"]["qkv"]["kernel"])
    for one in range(12):
        np.testing.assert_allclose(kernels[one].std(), 0.02, rtol=0.03)
        for other in range(one):
            assert np.mean(kernels[one] == kernels[other]) < 1e-3
    assert np.abs(kernels).max() < 0.05  # truncated at two standard deviations of the untruncated normal
    assert not np.any(params["cls"])


def compiled(depth, remat, x):
    """Parameters of an encoder, and its value and gradient as a program."""
    encoder = ViT(64, 2, depth=depth, patch=4, remat=remat)
    params = random_like(jax.eval_shape(lambda: encoder.init(jax.random.key(1), x))["params"], seed=1)

    def loss(params):
        return jnp.mean(jnp.square(encoder.apply({"params": params}, x, train=True)[:, :7]))

    return params, jax.jit(jax.value_and_grad(loss)).lower(params).compile(FAST_COMPILE)


def test_a_policy_keeps_value_and_gradient_and_stores_of_each_layer_what_its_name_says():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(8, 16, 16, 3)), jnp.float32)
    tokens, width, heads = 17, 64, 2
    one = 8 * tokens * width * 4  # bytes of an array of tokens
    # qkv is three, the MLP's first product four; the tokens, the products before both sums but one, and mixed values
    stored = {"none": 10 * one + 8 * heads * tokens**2 * 4, "dots": 9 * one, "blocks": one}
    values, temp = {}, {}
    for remat in stored:
        for depth in (2, 6):
            params, program = compiled(depth, remat, x)
            values[remat, depth], temp[remat, depth] = program(params), program.memory_analysis().temp_size_in_bytes
        chex.assert_trees_all_close(values[remat, 2], values["none", 2], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose((temp[remat, 6] - temp[remat, 2]) / 4, stored[remat], rtol=0.05)
    assert temp["none", 6] > temp["dots", 6] > temp["blocks", 6]


def products(jaxpr):
    """How many products of arrays a jaxpr has, those of the programs inside it included."""
    inner = [j for eqn in jaxpr.eqns for j in core.jaxprs_in_params(eqn.params)]
    return sum(eqn.primitive.name == "dot_general" for eqn in jaxpr.eqns) + sum(map(products, inner))


def test_beside_frozen_kernels_no_product_is_computed_twice():
    encoder, x = ViT(12, 2, depth=2, patch=4), jnp.ones((2, 8, 8, 3))
    params = {"encoder": jax.eval_shape(encoder.init, jax.random.key(0), x)["params"]}
    params = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), params)
    trained, frozen = lora.split(jax.random.key(0), params, LoraConfig(rank=2))

    def loss(trained):
        with lora.adapting():
            return jnp.sum(encoder.apply({"params": lora.joined(trained, frozen)["encoder"]}, x))

    forward, backward = jax.make_jaxpr(loss)(trained).jaxpr, jax.make_jaxpr(jax.grad(loss))(trained).jaxpr
    # patches, and of a layer two products of attention and of each of four kernels W, A and B
    assert products(forward) == 1 + 2 + 4 * 3
    # each layer has the gradients of two factors of each product but W; of that by A and B in x, and by W in x
    assert products(backward) == products(forward) + 4 + 4 * (1 + 2 + 2)


@pytest.mark.parametrize(("remat", "more"), [("none", 0), ("dots", 2), ("blocks", 5)])
@pytest.mark.parametrize("flavour", ["plain", "dinov2", "bert"])
def test_a_policy_computes_as_many_products_again_as_it_says(flavour, remat, more):
    block, x = Block(2, jnp.float32, flavour), jnp.ones((2, 5, 12))
    params = block.init(jax.random.key(0), x)
    run = jax.checkpoint(block.apply, policy=POLICIES[remat])
    forward, backward = (
        jax.make_jaxpr(jax.grad(lambda p, x, run=run: jnp.sum(run(p, x)[0]), (0, 1)))(params, x).jaxpr
        for run in (block.apply, run)
    )
    assert products(forward) == 6 + 12  # four with kernels and two of attention; each has two in the backward pass
    # the last product is in no gradient unless a factor or a norm stands behind it
    assert products(backward) == 18 + more + (remat == "blocks" and flavour != "plain")


@pytest.mark.parametrize(("size", "patch", "nearest"), [(30, 4, "28 and 32"), (30, 7, "28 and 35"), (8, 16, "16")])
def test_a_patch_that_does_not_divide_the_image_is_an_error_with_both_settings_and_the_nearest(size, patch, nearest):
    encoder = make_encoder(ModelConfig(encoder="vit_ti", patch=patch))
    message = rf"data.image_size = {size} .*model.patch = {patch}; .*data.image_size are {nearest}"
    with pytest.raises(ConfigError, match=message):
        jax.eval_shape(encoder.init, jax.random.key(0), jnp.zeros((1, size, size, 3)))
