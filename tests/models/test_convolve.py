"""A convolution with few pixels equals the library's, in value and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE
from jax import lax

from jaxcl.models.convolve import convolve

LAYOUT = ("NHWC", "HWIO", "NHWC")


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


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

    def both(function):
        def total(x, kernel):
            return jnp.sum(jnp.sin(function(x, kernel)))

        def value_and_gradients(x, kernel):
            return function(x, kernel), *jax.grad(total, argnums=(0, 1))(x, kernel)

        return jax.jit(value_and_gradients, compiler_options=FAST_COMPILE)(x, kernel)

    actual = both(lambda x, k: convolve(x, k, (stride, stride), pad, dimension_numbers=None, feature_group_count=1))
    expected = both(lambda x, k: lax.conv_general_dilated(x, k, (stride, stride), pad, dimension_numbers=LAYOUT))
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
