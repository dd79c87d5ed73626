"""Every way to select finds the k largest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcl.bench.programs import embeddings
from jaxcl.bench.selection import (
    group_size,
    row_maximum,
    row_maximum_in_strips,
    select_in_strips,
    selections,
    two_levels,
)

select = jax.jit(two_levels, static_argnums=1, compiler_options={"xla_backend_optimization_level": 0})


@given(n=st.integers(1, 200), share=st.floats(0, 1), seed=st.integers(0, 99), ties=st.booleans())
@settings(max_examples=12, deadline=None)
def test_two_levels_are_exact(n, share, seed, ties):
    k = max(1, round(share * n))
    scores = np.random.default_rng(seed).normal(size=(3, n)).astype(np.float32)
    scores = np.round(scores) if ties else scores
    values, columns = select(scores, k)
    np.testing.assert_array_equal(values, -np.sort(-scores, axis=1)[:, :k])
    np.testing.assert_array_equal(np.take_along_axis(scores, np.asarray(columns), axis=1), values)
    assert all(len(set(row)) == k for row in np.asarray(columns).tolist())


@pytest.mark.parametrize(("n", "k"), [(1, 1), (17, 17), (65536, 256), (8192, 16)])
def test_there_are_at_least_k_groups(n, k):
    assert n / group_size(n, k) >= k


@pytest.mark.parametrize("name", selections("cpu"))
def test_each_way_equals_the_sort_after_the_product(name):
    z = embeddings(24, 5)
    values, columns = jax.jit(lambda z: select_in_strips(z, selections("cpu")[name].select, 3, 8))(z)
    scores = np.asarray(z, np.float64) @ np.asarray(z, np.float64).T
    order = np.argsort(-scores, axis=1)[:, :3]
    np.testing.assert_array_equal(columns, order)
    np.testing.assert_allclose(values, np.take_along_axis(scores, order, axis=1), rtol=1e-5)


def test_a_gpu_has_the_kernels_that_do_not_keep_the_order_of_equals():
    assert len(selections("gpu")) == 4


def test_the_row_maximum_is_the_same_in_strips():
    z = embeddings(24, 5)
    np.testing.assert_allclose(row_maximum_in_strips(z, 8), row_maximum(z), rtol=1e-6)


def test_a_product_of_half_precision_is_summed_in_float32():
    assert row_maximum(embeddings(6, 3, "bfloat16")).dtype == jnp.float32
