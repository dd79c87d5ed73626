"""All that is compared computes the same thing."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxcl.bench.programs import ENGINES, Variant, arguments_of, embeddings, function_of, shapes_of

VARIANTS = [Variant("strip", 7, 3, 2), Variant("strip", 8, 3, two=True), Variant("strip", 6, 4, dtype="bfloat16")]


def run(variant, options):
    return jax.jit(function_of(variant), compiler_options=options)(*arguments_of(variant))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_shapes_without_arrays_are_those_of_the_arrays(variant):
    arrays = arguments_of(variant)
    assert [(x.shape, x.dtype) for x in shapes_of(variant)] == [(x.shape, x.dtype) for x in arrays]


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "dense"])
@pytest.mark.parametrize("two", [False, True])
def test_an_engine_computes_its_own_definition(name, two, fast_compile):
    variant = Variant(name, 37, 5, 4, two=two, block=8)
    value, gradients = run(variant, fast_compile)
    # an engine whose tail is sampled has the value of the full softmax
    k = None if "tail" in ENGINES[name].options else 4
    expected, its = run(Variant("dense", 37, 5, k, two=two), fast_compile)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert [g.shape for g in gradients] == [(37, 5)] * (1 + two)
    if k is not None:
        for actual, wanted in zip(gradients, its, strict=True):
            np.testing.assert_allclose(actual, wanted, atol=1e-5 * np.abs(wanted).max())


def test_a_learned_temperature_has_a_gradient_too(fast_compile):
    _, gradients = run(Variant("strip", 6, 3, 2, learned=True), fast_compile)
    assert [g.shape for g in gradients] == [(), (6, 3)]


def test_a_forward_variant_has_no_gradient(fast_compile):
    assert run(Variant("dense", 6, 3, backward=False), fast_compile).shape == ()


def test_two_arrays_differ_and_the_same_seed_gives_the_same_numbers():
    _, _, queries, keys = arguments_of(Variant("strip", 6, 3, two=True))
    assert not np.allclose(queries, keys)
    np.testing.assert_array_equal(queries, embeddings(6, 3))


def test_names_tell_variants_apart():
    variant = Variant("strip", 6, 3, 2)
    changes = [{}, {"k": None}, {"two": True}, {"learned": True}, {"engine": "dense"}]
    assert len({dataclasses.replace(variant, **change).name for change in changes}) == len(changes)
