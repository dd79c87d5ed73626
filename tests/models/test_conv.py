"""The small encoder: its size, its grid of features, and its layers against lax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE
from jax import lax

from jaxcl.config import ModelConfig
from jaxcl.models import make_encoder
from jaxcl.models.conv import LAYERS, grid_mean


@pytest.mark.parametrize(("channels", "size"), [(3, 32), (1, 28), (3, 8), (1, 64), (3, 37)])
def test_it_has_512_features_and_fewer_than_100_thousand_parameters_at_every_size(channels, size):
    encoder = make_encoder(ModelConfig())
    x = jnp.zeros((2, size, size, channels))
    features, variables = jax.eval_shape(lambda: encoder.init_with_output(jax.random.key(0), x))
    assert features.shape == (2, 512)
    assert sum(leaf.size for leaf in jax.tree.leaves(variables["params"])) < 100_000


@pytest.mark.parametrize("size", [28, 32])
def test_it_equals_convolution_norm_and_relu_written_out(size):
    encoder = make_encoder(ModelConfig())
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, size, size, 1)), jnp.float32)
    variables = jax.jit(encoder.init, compiler_options=FAST_COMPILE)(jax.random.key(1), x)
    encode = jax.jit(
        lambda v, x: encoder.apply(v, x, train=True, mutable=["batch_stats"]), compiler_options=FAST_COMPILE
    )
    features, _ = encode(variables, x)
    y = x
    for number, (_, _, stride) in enumerate(LAYERS, 1):
        kernel = variables["params"][f"conv{number}"]["kernel"]
        y = lax.conv_general_dilated(y, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        y = jax.nn.relu((y - y.mean((0, 1, 2))) / jnp.sqrt(y.var((0, 1, 2)) + 1e-5))
    half = y.shape[1] // 2
    cells = [y[:, i * half :, j * half :][:, :half, :half].mean((1, 2)) for i in (0, 1) for j in (0, 1)]
    np.testing.assert_allclose(features, jnp.concatenate(cells, 1), rtol=1e-3, atol=1e-4)


def test_features_know_where_in_the_image_something_is():
    encoder = make_encoder(ModelConfig())
    x = jnp.zeros((1, 32, 32, 3)).at[:, 2:14, 2:14].set(1.0)
    variables = jax.jit(encoder.init, compiler_options=FAST_COMPILE)(jax.random.key(1), x)
    encode = jax.jit(encoder.apply, static_argnames="train", compiler_options=FAST_COMPILE)
    here, there = (encode(variables, image, train=False) for image in (x, x[:, ::-1, ::-1]))
    assert float(jnp.max(jnp.abs(here - there))) > 0.01


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("cells", [1, 2, 3])
def test_the_grid_mean_equals_loops_over_overlapping_cells(size, cells):
    x = np.random.default_rng(0).normal(size=(2, size, size + 1, 3)).astype(np.float32)
    got = grid_mean(jnp.asarray(x), cells)
    for i in range(cells):
        for j in range(cells):
            rows = slice(int(np.floor(i * size / cells)), int(np.ceil((i + 1) * size / cells)))
            columns = slice(int(np.floor(j * (size + 1) / cells)), int(np.ceil((j + 1) * (size + 1) / cells)))
            np.testing.assert_allclose(got[:, i, j], x[:, rows, columns].mean((1, 2)), rtol=1e-4, atol=1e-6)
