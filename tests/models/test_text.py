import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE

from jaxcl.config import ConfigError, ModelConfig, TextConfig
from jaxcl.models import make_text_tower

CONFIG = TextConfig(length=11, width=12, depth=2, heads=3)
TOKENS = jnp.array([[1, 7, 5, 6, 2, 0, 0, 0], [1, 2, 0, 0, 0, 0, 0, 0], [1, 5, 5, 5, 5, 7, 6, 2]], jnp.int32)


@functools.cache
def variables_of(tower):
    variables = jax.jit(tower.init, compiler_options=FAST_COMPILE)(jax.random.key(0), TOKENS)
    # positions and embeddings start small: make them matter
    return jax.tree.map(lambda x: x * 10 if x.ndim > 1 else x, variables)


def make(**model):
    return make_text_tower(CONFIG, ModelConfig(**model), vocab=9)


def a_tower(**model):
    tower = make(**model)
    return jax.jit(tower.apply, compiler_options=FAST_COMPILE), variables_of(tower)


def test_features_are_float32_and_tell_captions_and_orders_apart():
    apply, variables = a_tower()
    swapped = TOKENS.at[0].set(jnp.array([1, 5, 7, 6, 2, 0, 0, 0]))
    one, other = apply(variables, TOKENS), apply(variables, swapped)
    assert one.shape == (3, 12)
    assert one.dtype == jnp.float32
    assert np.abs(one[0] - other[0]).max() > 1e-3
    np.testing.assert_array_equal(one[1:], other[1:])


def test_padding_has_no_influence_on_a_feature():
    apply, variables = a_tower()
    expected = apply(variables, TOKENS)
    for length in (9, 11):
        wider = jnp.pad(TOKENS, [(0, 0), (0, length - 8)])
        np.testing.assert_allclose(apply(variables, wider), expected, rtol=1e-5, atol=1e-6)
    alone = apply(variables, TOKENS[:1, :5])
    np.testing.assert_allclose(alone, expected[:1], rtol=1e-5, atol=1e-6)


def test_padding_has_no_gradient():
    tower, variables = make(), variables_of(make())
    weights = jax.random.normal(jax.random.key(1), (2, 12))
    grad = jax.jit(jax.grad(lambda v: jnp.sum(weights * tower.apply(v, TOKENS[:2]))), compiler_options=FAST_COMPILE)
    of = grad(variables)["params"]
    assert not of["tokens"]["embedding"][0].any()
    assert not of["position"][0, 5:].any()
    assert of["tokens"]["embedding"][jnp.array([1, 2, 5, 6, 7])].any(axis=1).all()
    assert of["position"][0, :5].any(axis=1).all()


@pytest.mark.parametrize("remat", ["dots", "blocks"])
def test_what_is_recomputed_changes_neither_features_nor_gradient(remat):
    variables = variables_of(make())

    @functools.partial(jax.jit, compiler_options=FAST_COMPILE, static_argnums=0)
    def value_and_grad(tower, variables):
        return jax.value_and_grad(lambda v: jnp.sum(tower.apply(v, TOKENS)[:, :5] ** 2))(variables)

    again, plain = (value_and_grad(make(remat=policy), variables) for policy in (remat, "none"))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4 * np.abs(y).max()), again, plain)


def test_parameters_are_float32_where_the_layers_compute_in_less():
    apply, variables = a_tower(dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    out = apply(variables, TOKENS)
    assert out.dtype == jnp.float32
    assert np.isfinite(out).all()


def test_more_tokens_than_positions_is_an_error_that_names_the_setting():
    apply, variables = a_tower()
    with pytest.raises(ConfigError, match=r"text.length = 11 is less than the 12 tokens"):
        apply(variables, jnp.ones((1, 12), jnp.int32))
