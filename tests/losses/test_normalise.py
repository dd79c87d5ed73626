"""Unit vectors: the same numbers whichever way their gradient is taken, and finite where a norm is nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import AS_USERS_COMPILE

from jaxcl.losses.normalise import inverse_norm, normalise, unit_rows


def rows_of(dtype):
    """Rows of many lengths, one of them nothing at all."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(7, 5)) * np.array([1, 1e-3, 30, 0, 1e-18, 1, 200])[:, None]
    return jnp.asarray(rows, dtype), jnp.asarray(rng.normal(size=(7, 5)), jnp.float32)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_the_two_ways_agree_in_value_and_gradient(dtype):
    rows, given = rows_of(dtype)
    (mine, pull), (theirs, expected) = jax.vjp(unit_rows, rows), jax.vjp(normalise, rows)
    np.testing.assert_array_equal(mine, theirs)
    gradient = pull(given)[0]
    assert gradient.dtype == dtype
    assert np.isfinite(gradient.astype(np.float32)).all()
    scale = 1e-5 if dtype == jnp.float32 else 1e-2
    np.testing.assert_allclose(
        gradient.astype(np.float32), expected(given)[0].astype(np.float32), rtol=scale, atol=scale
    )


def test_the_gradient_is_that_of_differences():
    rows, given = (np.random.default_rng(1).normal(size=(3, 4)) for _ in range(2))
    by_hand = jax.vjp(unit_rows, jnp.asarray(rows, jnp.float32))[1](jnp.asarray(given, jnp.float32))[0]
    for place in np.ndindex(*rows.shape):
        step = np.zeros_like(rows)
        step[place] = 1e-6
        up, down = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (rows + step, rows - step))
        np.testing.assert_allclose(by_hand[place], np.sum(given * (up - down)) / 2e-6, atol=1e-5)


def test_a_zero_vector_stays_zero_and_passes_its_gradient_on():
    value, pull = jax.vjp(unit_rows, jnp.zeros((1, 3)))
    np.testing.assert_array_equal(value, jnp.zeros((1, 3)))
    np.testing.assert_array_equal(pull(jnp.array([[1.0, 2.0, 3.0]]))[0], [[1.0, 2.0, 3.0]])


def test_a_row_without_a_finite_norm_is_nan_as_a_whole():
    value = unit_rows(jnp.array([[jnp.inf, 1.0], [3e38, 3e38], [0.0, 2.0]]))
    np.testing.assert_array_equal(np.isnan(value), [[True, True], [True, True], [False, False]])
    assert np.isnan(inverse_norm(jnp.array([[jnp.nan, 1.0]]))).all()


def test_their_gradient_needs_no_broadcast_of_the_norms_from_the_first_pass():
    n, d = 4096, 64

    def step(rows, weights):
        value, pull = jax.vjp(unit_rows, rows)
        return pull(jnp.sin(value @ weights) @ weights.T)[0]

    shapes = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((n, d), (d, d)))
    program = jax.jit(step).lower(*shapes).compile(compiler_options=AS_USERS_COMPILE)
    # the unit rows, and one array for what becomes of them
    assert program.memory_analysis().temp_size_in_bytes < 2.2 * n * d * 4
