"""Operations of a program, by hand."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxcl.config import ModelConfig
from jaxcl.losses import streaming_infonce
from jaxcl.mesh import DATA, make_mesh
from jaxcl.models import make_encoder
from jaxcl.planner.cost import Op, costs, flops_of, seconds_of
from jaxcl.planner.targets import Rates


def flops(function, *arguments):
    return flops_of(costs(jax.make_jaxpr(function)(*arguments)))


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def test_a_dense_layer_forward_and_backward():
    n, i, o = 7, 5, 3
    x, w, b = shape(n, i), shape(i, o), shape(o)

    def loss(w, b, x):
        return jnp.sum(x @ w + b)

    assert flops(lambda x, w: x @ w, x, w) == 2 * n * i * o
    assert flops(jax.grad(loss, argnums=(0, 1)), w, b, x) == 2 * 2 * n * i * o  # forward, and for the kernel
    assert flops(jax.grad(loss, argnums=(0, 2)), w, b, x) == 3 * 2 * n * i * o


def test_it_is_what_xla_counts_of_a_program_without_loops():
    x, w = jnp.ones((32, 64)), jnp.ones((64, 16))
    analysis = jax.jit(lambda x, w: x @ w).lower(x, w).compile().cost_analysis()
    assert flops(lambda x, w: x @ w, x, w) == analysis["flops"]


@pytest.mark.parametrize("length", [1, 5])
def test_a_loop_counts_as_often_as_it_turns(length):
    def run(x):
        return jax.lax.scan(lambda c, _: (c @ c, None), x, None, length=length)[0]

    assert flops(run, shape(4, 4)) == length * 2 * 4**3


def test_a_fori_loop_and_a_conditional():
    def run(x, flag):
        x = jax.lax.fori_loop(0, 3, lambda _, c: c @ c, x)
        return jax.lax.cond(flag, lambda c: c @ c, lambda c: c, x)

    assert flops(run, shape(4, 4), True) == 3 * 2 * 4**3  # the branch that does nothing


def test_a_loop_whose_turns_depend_on_data_may_not_turn():
    def run(x, turns):
        return jax.lax.fori_loop(0, turns, lambda _, c: c @ c, x)

    assert flops(run, shape(4, 4), 3) == 0


def test_of_branches_for_platforms_the_targets_own_counts():
    def run(x):
        return jax.lax.platform_dependent(x, cpu=lambda x: x @ x @ x, default=lambda x: x @ x)

    traced = jax.make_jaxpr(run)(jnp.ones((4, 4)))
    assert [flops_of(costs(traced, platform)) for platform in ("cpu", "cuda")] == [2 * 2 * 4**3, 2 * 4**3]


@pytest.mark.parametrize(("top_k", "products"), [(None, 3), (8, 1)])
def test_a_streamed_loss_multiplies_every_pair_forward_and_where_all_count_twice_more_backward(top_k, products):
    n, d = 256, 16
    ids = jnp.repeat(jnp.arange(n // 2), 2)

    def loss(rows):
        given = dict(temperature=0.2, top_k=top_k, exclude_diagonal=True)
        return jnp.sum(streaming_infonce(rows, rows, ids, ids, **given).loss)

    ops = costs(jax.make_jaxpr(jax.grad(loss))(shape(n, d)), "cuda")
    assert flops_of(ops) == products * 2 * n * n * d  # chosen rows are added one by one, which is no product


def test_a_convolution():
    n, h, w, i, o, k = 2, 8, 6, 3, 5, 3

    def run(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    assert flops(run, shape(n, h, w, i), shape(k, k, i, o)) == 2 * n * h * w * o * k * k * i


def test_recomputation_counts_again():
    def layer(w, x):
        return jnp.tanh(jnp.tanh(x @ w) @ w)

    plain, again = (jax.grad(lambda w, x, f=f: jnp.sum(f(w, x))) for f in (layer, jax.checkpoint(layer)))
    w, x = shape(4, 4), shape(3, 4)
    # all of the forward pass but its last product, whose result the backward pass needs as well
    assert flops(again, w, x) - flops(plain, w, x) in (2 * 3 * 16, 2 * 2 * 3 * 16)


def test_a_scanned_vit():
    side, patch, width, depth, batch = 32, 8, 192, 12, 3
    tokens = (side // patch) ** 2 + 1
    encoder = make_encoder(ModelConfig(encoder="vit_ti", patch=patch))
    images = shape(batch, side, side, 3)
    variables = jax.eval_shape(lambda x: encoder.init(jax.random.key(0), x, train=False), images)
    counted = flops(lambda v, x: encoder.apply(v, x, train=False), variables, images)
    embed = 2 * (tokens - 1) * patch * patch * 3 * width
    attention = 4 * 2 * tokens * width**2 + 2 * 2 * tokens**2 * width
    mlp = 2 * 2 * tokens * width * 4 * width
    assert counted == batch * (embed + depth * (attention + mlp))


def test_a_shard_counts_once_for_each_device():
    mesh = make_mesh(4)
    spec = PartitionSpec(DATA)
    run = jax.shard_map(lambda x, w: x @ w, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec)
    assert flops(run, jnp.ones((8, 4)), jnp.ones((4, 4))) == 2 * 8 * 4 * 4


@pytest.mark.parametrize(
    ("dtype", "precision", "kind"),
    [
        (jnp.float32, None, "tf32"),
        (jnp.float32, jax.lax.Precision.HIGHEST, "float32"),
        (jnp.bfloat16, None, "bfloat16"),
        (jnp.float16, None, "float16"),
    ],
)
def test_a_product_has_the_rate_of_its_type(dtype, precision, kind):
    x = shape(4, 4, dtype=dtype)
    ops = costs(jax.make_jaxpr(lambda x: jnp.matmul(x, x, precision=precision))(x))
    assert {op.kind for op in ops} == {kind}


def test_an_operation_takes_the_longer_of_computing_and_moving():
    rates = Rates({"float32": 100.0}, memory=10.0, host=1.0)
    assert seconds_of(Counter({Op("float32", 200, 10): 1}), rates) == 2
    assert seconds_of(Counter({Op("float32", 200, 50): 3}), rates, devices=2) == 7.5
    assert np.isclose(seconds_of(Counter({Op("", 0, 50): 1}), rates), 5)
