"""Attention against that of jax: value, gradients, masks, and what the backward pass is left with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcl.models.attention import attend

SHAPE = (2, 7, 3, 4)  # sequences, tokens, heads, numbers
CAUSAL = jnp.tril(jnp.ones((7, 7), bool))[None, None]
PADDED = jnp.arange(7)[None, None, None] < jnp.array([4, 7])[:, None, None, None]


def arrays(dtype=jnp.float32, scale=1.0):
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(scale * rng.normal(size=SHAPE), dtype) for _ in range(4))


def value_and_grads(function, q, k, v, g, mask):
    out, pull = jax.vjp(lambda *qkv: function(*qkv, mask), q, k, v)
    return out, *pull(g)


def reference(q, k, v, mask):
    return jax.nn.dot_product_attention(q, k, v, mask=mask)


BLIND = CAUSAL & (jnp.arange(7) > 0)  # the first query sees nothing


@pytest.mark.parametrize("mask", [None, PADDED, CAUSAL & PADDED, BLIND], ids=["none", "padded", "causal", "blind"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 2e-6), (jnp.bfloat16, 2e-2), (jnp.float16, 2e-3)])
def test_value_and_gradients_are_those_of_jax_in_float32(mask, dtype, tolerance):
    given = arrays(dtype)
    got = value_and_grads(attend, *given, mask)
    expected = value_and_grads(reference, *(x.astype(jnp.float32) for x in given), mask)
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.dtype == dtype
        np.testing.assert_allclose(mine, theirs, atol=tolerance * np.abs(theirs).max())


def test_a_token_that_no_query_sees_has_no_gradient():
    _, _, key, value = value_and_grads(attend, *arrays(), PADDED)
    assert not key[0, 4:].any()
    assert not value[0, 4:].any()
    assert np.all(np.any(key[1] != 0, axis=-1))


def test_products_beyond_float16_are_summed_in_float32():
    query, key, value, g = arrays(jnp.float16, scale=300.0)  # 300² · 4 is above 65,504
    assert np.isinf(np.asarray(jnp.einsum("nthf,nshf->nhts", query, key))).any()
    assert all(np.isfinite(x).all() for x in value_and_grads(attend, query, key, value, g / 300, None))


def test_the_backward_pass_keeps_one_array_of_the_probabilities_in_the_compute_type():
    q, k, v, _ = arrays(jnp.bfloat16)
    _, pull = jax.vjp(attend, q, k, v)
    kept = [x for x in jax.tree.leaves(pull) if x.size == 2 * 3 * 7 * 7]
    assert [x.dtype for x in kept] == [jnp.bfloat16]
