"""Compute types: what is float32 whatever the type, and gradients in half precision against float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE
from jax.extend import core

from jaxcl.losses import streaming_infonce
from jaxcl.models import ConvEncoder, ProjectionHead, TextTower
from jaxcl.models.resnet import BasicBlock, ResNet
from jaxcl.models.vit import ViT

IMAGES = jax.ShapeDtypeStruct((4, 8, 8, 3), jnp.float32)
NETWORKS = {
    "vit": (lambda dtype: ViT(12, 2, depth=2, patch=4, dtype=dtype), IMAGES),
    "clip": (lambda dtype: ViT(12, 2, depth=2, patch=4, dtype=dtype, flavour="clip"), IMAGES),
    "bert": (
        lambda dtype: TextTower(9, 5, 12, 2, 2, dtype=dtype, flavour="bert"),
        jax.ShapeDtypeStruct((4, 5), jnp.int32),
    ),
    "batch norm": (lambda dtype: ConvEncoder("batch", dtype=dtype), IMAGES),
    "group norm": (lambda dtype: ConvEncoder("group", dtype=dtype), IMAGES),
    "resnet": (lambda dtype: ResNet(BasicBlock, (1, 1), width=8, dtype=dtype), IMAGES),
    "head": (lambda dtype: ProjectionHead(hidden=8, dim=4, dtype=dtype), jax.ShapeDtypeStruct((4, 6), jnp.float32)),
}
HALF = (jnp.float16, jnp.bfloat16)


def operations(jaxpr):
    """Every operation, those of the programs inside it included."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in core.jaxprs_in_params(eqn.params):
            yield from operations(inner)


def types_of(jaxpr, names):
    """The types of the floats that some operations take and give."""
    found = [v.aval.dtype for eqn in operations(jaxpr) if eqn.primitive.name in names for v in eqn.invars + eqn.outvars]
    return {dtype for dtype in found if jnp.issubdtype(dtype, jnp.floating)}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", NETWORKS)
def test_variances_and_softmax_are_float32_and_products_are_of_the_compute_type(name, dtype):
    make, given = NETWORKS[name]
    network = make(dtype)
    variables = jax.eval_shape(lambda key: network.init(key, jnp.ones(given.shape, given.dtype)), jax.random.key(0))

    def loss(params, x):
        out, _ = network.apply({**variables_of, "params": params}, x, train=True, mutable=["batch_stats"])
        assert out.dtype == jnp.float32
        return jnp.sum(out)

    variables_of = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), variables)
    jaxpr = jax.make_jaxpr(jax.grad(loss))(variables_of["params"], jnp.ones(given.shape, given.dtype)).jaxpr
    statistics = {"rsqrt"} | ({"reduce_max"} if name in ("vit", "clip", "bert") else set())
    assert types_of(jaxpr, statistics) == {jnp.dtype("float32")}
    products = [eqn for eqn in operations(jaxpr) if eqn.primitive.name in ("dot_general", "conv_general_dilated")]
    # the grid of the small encoder's features is averaged in float32
    narrow = [eqn for eqn in products if {v.aval.dtype for v in eqn.invars} == {jnp.dtype(dtype)}]
    assert len(narrow) >= (len(products) if name not in ("batch norm", "group norm") else 2)
    assert {x.aval.dtype for x in jaxpr.outvars} == {jnp.dtype("float32")}


@pytest.mark.parametrize("dtype", HALF)
def test_the_loss_is_float32_whatever_the_embeddings_and_the_queue_are(dtype):
    def loss(z, bank):
        given = dict(queue=bank, queue_groups=jnp.arange(9) + 50, queue_filled=7, exclude_diagonal=True)
        return jnp.mean(streaming_infonce(z, z, groups, groups, temperature=0.1, top_k=3, **given).loss)

    groups = jnp.arange(8, dtype=jnp.int32) // 2
    jaxpr = jax.make_jaxpr(jax.value_and_grad(loss))(jnp.ones((8, 4), dtype), jnp.ones((9, 4), jnp.float16)).jaxpr
    assert types_of(jaxpr, {"exp", "log", "rsqrt", "reduce_sum", "reduce_max", "dot_general"}) == {jnp.dtype("float32")}


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float16, 0.005), (jnp.bfloat16, 0.04)])
@pytest.mark.parametrize("flavour", ["plain", "dinov2"])
def test_the_gradient_is_that_of_float32_up_to_the_rounding_of_the_compute_type(flavour, dtype, tolerance):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 8, 12, 3)), jnp.float32)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(6, 16)), jnp.float32)
    made = {kind: ViT(16, 2, depth=2, patch=4, dtype=kind, flavour=flavour) for kind in (jnp.float32, dtype)}
    params = jax.jit(made[dtype].init, compiler_options=FAST_COMPILE)(jax.random.key(0), x)
    wanted, got = (
        jax.jit(jax.grad(lambda p, n=network: jnp.sum(weights * n.apply(p, x))), compiler_options=FAST_COMPILE)(params)
        for network in made.values()
    )
    gap, size = (
        np.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(tree)))
        for tree in (jax.tree.map(jnp.subtract, got, wanted), wanted)
    )
    assert 1e-5 < gap / size < tolerance
