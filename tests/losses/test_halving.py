"""The k largest without a sort."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE
from jax import lax

from jaxcl.losses.halving import bound, largest


@pytest.mark.parametrize("k", [1, 2, 17, 39, 40])
def test_just_k_scores_reach_the_bound(k):
    scores = 10.0 ** jax.random.uniform(jax.random.key(k), (9, 40), minval=-30, maxval=30)
    scores = scores * jax.random.rademacher(jax.random.key(0), scores.shape)
    assert (
        jnp.sum(
            scores >= jax.jit(bound, static_argnums=1, compiler_options=FAST_COMPILE)(scores, k)[:, None], axis=1
        ).tolist()
        == [k] * 9
    )


def test_with_equal_scores_at_the_edge_the_bound_is_the_kth_largest():
    assert bound(jnp.array([[3.0, 1.0, 2.0, 2.0, 2.0]]), 3).tolist() == [2.0]


def test_the_bound_of_rows_without_k_scores_is_minus_infinity():
    assert bound(jnp.full((1, 8), -jnp.inf).at[0, 3].set(1.0), 2).tolist() == [-jnp.inf]


@pytest.mark.parametrize("k", [1, 5, 30, 31])
def test_of_equal_scores_the_lowest_columns_stay_wherever_they_stand(k):
    rng = np.random.default_rng(k)
    scores = jnp.asarray(rng.integers(0, 4, (6, 31)).astype(np.float32))
    shuffled = rng.permutation(31)
    columns = jnp.broadcast_to(jnp.asarray(shuffled, jnp.int32), scores.shape)
    program = jax.jit(largest, static_argnums=2, compiler_options=FAST_COMPILE)
    _, found = program(scores[:, shuffled], columns, k)
    np.testing.assert_array_equal(np.sort(found), np.sort(lax.top_k(scores, k)[1]))
