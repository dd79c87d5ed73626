"""A convolution with few pixels equals the library's, in value and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE
from jax import lax

from jaxcl.models.convolve import convolve, convolve_in_loops

LAYOUT = ("NHWC", "HWIO", "NHWC")


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def both_of(function, x, kernel):
    """Value and gradients."""

    def total(x, kernel):
        return jnp.sum(jnp.sin(function(x, kernel)))

    def value_and_gradients(x, kernel):
        return function(x, kernel), *jax.grad(total, argnums=(0, 1))(x, kernel)

    return jax.jit(value_and_gradients, compiler_options=FAST_COMPILE)(x, kernel)


@pytest.mark.parametrize(
    ("pixels", "size", "strides", "padding"),
    [
        ((1, 1), 3, (1, 1), ((1, 1), (1, 1))),
        ((5, 4), 3, (1, 1), ((1, 1), (1, 1))),
        ((9, 8), 3, (2, 2), ((1, 1), (1, 1))),
        ((9, 7), 7, (2, 2), ((3, 3), (3, 3))),
        ((7, 9), 1, (2, 2), ((0, 0), (0, 0))),
        ((7, 10), 4, (4, 3), "SAME"),
        ((8, 9), 2, (2, 1), "VALID"),
        ((8, 9), 3, (1, 2), ((2, 0), (0, 1))),
    ],
)
def test_within_loops_it_is_the_librarys_convolution_too(pixels, size, strides, padding):
    x, kernel = normal(0, 5, *pixels, 3), normal(1, size, size, 3, 4)
    actual = both_of(lambda x, k: convolve_in_loops(x, k, strides, padding, dimension_numbers=None), x, kernel)
    expected = both_of(
        lambda x, k: lax.conv_general_dilated(x, k, strides, padding, dimension_numbers=LAYOUT), x, kernel
    )
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=2e-5)


def test_within_loops_the_gradient_to_the_kernel_is_products_alone():
    # a convolution whose kernel is as large as the result is what XLA computes so slowly there
    x, kernel = normal(0, 5, 8, 8, 3), normal(1, 3, 3, 3, 4)
    gradient = jax.jit(jax.grad(lambda k: jnp.sum(convolve_in_loops(x, k, (1, 1), "SAME") ** 2)))
    text = gradient.lower(kernel).compile(FAST_COMPILE).as_text()
    assert text.count(" convolution(") == 1  # forward


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_within_loops_gradients_are_of_the_compute_type(dtype):
    x, kernel = normal(0, 5, 8, 8, 3).astype(dtype), normal(1, 3, 3, 3, 4).astype(dtype)
    of_x, of_kernel = both_of(lambda x, k: convolve_in_loops(x, k, (1, 1), "SAME"), x, kernel)[1:]
    assert of_x.dtype == of_kernel.dtype == dtype


@pytest.mark.parametrize(
    ("pixels", "size", "stride", "is_product"),
    [
        ((1, 1), 3, 1, True),
        ((2, 2), 3, 1, True),
        ((2, 2), 3, 2, True),
        ((3, 2), 3, 2, True),
        ((4, 4), 3, 2, True),
        ((2, 1), 1, 2, True),
        ((4, 4), 7, 2, True),
        ((5, 4), 3, 1, False),
        ((9, 9), 7, 2, False),
    ],
)
def test_it_equals_the_librarys_convolution(pixels, size, stride, is_product):
    x, kernel = normal(0, 5, *pixels, 3), normal(1, size, size, 3, 4)
    pad = ((size // 2, size // 2),) * 2

    def ours(x, k):
        return convolve(x, k, (stride, stride), pad, dimension_numbers=None, feature_group_count=1)

    def theirs(x, k):
        return lax.conv_general_dilated(x, k, (stride, stride), pad, dimension_numbers=LAYOUT)

    actual, expected = both_of(ours, x, kernel), both_of(theirs, x, kernel)
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)
    text = str(jax.make_jaxpr(lambda x, k: convolve(x, k, (stride, stride), pad))(x, kernel))
    assert ("conv_general_dilated" not in text) == is_product


def test_a_row_of_the_kernel_that_only_meets_padding_is_not_multiplied():
    text = str(
        jax.make_jaxpr(lambda x, k: convolve(x, k, (1, 1), ((1, 1), (1, 1))))(
            normal(0, 5, 1, 1, 3), normal(1, 3, 3, 3, 4)
        )
    )
    assert "f32[3,4]" in text
    assert "f32[27,4]" not in text
