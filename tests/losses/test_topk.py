"""The k largest of each row, in parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxcl.losses.topk import PARTS, WORTH, top_k


def _scores(rows, columns, *, of_few_values=False):
    key = jax.random.key(rows + columns)
    if of_few_values:
        return jax.random.randint(key, (rows, columns), 0, 9).astype(jnp.float32)
    return jax.random.normal(key, (rows, columns))


@pytest.mark.parametrize("of_few_values", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(PARTS, WORTH // PARTS), (64, 1027), (17, 5000), (3, 7)])
def test_parts_find_what_one_call_finds_ties_included(rows, columns, of_few_values):
    scores = _scores(rows, columns, of_few_values=of_few_values)
    for found, expected in zip(jax.jit(top_k, static_argnums=1)(scores, 5), lax.top_k(scores, 5), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_nan_and_minus_infinity_stand_where_lax_puts_them():
    scores = _scores(64, 1027).at[3, 5].set(jnp.nan).at[4].set(-jnp.inf)
    for found, expected in zip(top_k(scores, 5), lax.top_k(scores, 5), strict=True):
        np.testing.assert_array_equal(found, expected)


def _selections(rows, columns, platform):
    lowered = jax.jit(lambda x: top_k(x, 5)).trace(jax.ShapeDtypeStruct((rows, columns), jnp.float32))
    return lowered.lower(lowering_platforms=(platform,)).as_text().count("chlo.top_k")


def test_a_cpu_gets_as_many_selections_as_may_run_side_by_side():
    assert _selections(64, 1027, "cpu") == PARTS


def test_another_device_gets_one():
    assert _selections(64, 1027, "cuda") == 1


def test_few_scores_stay_together():
    assert _selections(PARTS, WORTH // PARTS - 1, "cpu") == 1
