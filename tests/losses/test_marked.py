"""Places of marked columns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE

from jaxcl.losses.marked import places_of, values_at


@pytest.mark.parametrize("columns", [1, 31, 512, 513, 1700, 40_000])
@pytest.mark.parametrize("share", [0.02, 0.5, 1.0])
def test_every_mark_is_found_once(columns, share):
    marks = np.random.default_rng(columns).random((5, columns)) < share
    places, counts = places_of(jnp.asarray(marks), columns)
    np.testing.assert_array_equal(counts, marks.sum(axis=1))
    for row, (found, count) in enumerate(zip(np.asarray(places), counts, strict=True)):
        assert sorted(found[:count]) == list(np.flatnonzero(marks[row]))


def test_more_marks_than_slots_are_counted_and_the_slots_filled():
    places, counts = places_of(jnp.ones((1, 40), bool), 3)
    assert counts.tolist() == [40]
    assert len(set(places[0].tolist())) == 3


def test_a_row_without_marks_has_none():
    _, counts = places_of(jnp.zeros((2, 40), bool), 4)
    assert counts.tolist() == [0, 0]


def test_a_place_beyond_the_row_has_the_last_value():
    assert values_at(jnp.array([[1, 2], [3, 4]]), jnp.array([[5], [0]])).tolist() == [[2], [3]]


def test_memory_grows_linearly_with_the_columns():
    def temp(columns):
        shape = jax.ShapeDtypeStruct((16, columns), jnp.bool_)
        program = jax.jit(lambda marks: places_of(marks, 20)).lower(shape).compile(compiler_options=FAST_COMPILE)
        return program.memory_analysis().temp_size_in_bytes

    assert temp(1 << 19) <= 2.1 * temp(1 << 18)
