import jax.numpy as jnp

from jaxcl.integrity import array_types, differing, misfit


def test_a_tree_that_fits_has_no_misfit_and_one_that_does_not_names_three_arrays():
    types = array_types({"a": (jnp.zeros(2), jnp.zeros((), jnp.int32))})
    assert types == {"a/0": "float32[2]", "a/1": "int32[]"}
    assert misfit(types, dict(reversed(types.items()))) == ""
    wanted = {"a/0": "float32[3]", "b": "int32[]", "c": "int32[]"}
    assert misfit(types, wanted) == "a/0 is float32[2], not float32[3]; b is missing; c is missing and 1 more"


def test_an_array_that_a_process_sees_only_a_part_of_is_not_compared():
    assert differing({"a": None, "b": "1"}, {"a": "0", "b": "1"}) is None
    assert differing({"a": "0", "b": "1"}, {"a": None, "b": "2"}) == "b"
