"""The projection head against numpy, for every depth, with and without norm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcl.models import ProjectionHead


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("norm", [True, False])
def test_it_is_linear_layers_with_norm_and_relu_between_and_nothing_after_the_last(layers, norm):
    head = ProjectionHead(layers=layers, hidden=6, dim=4, norm=norm)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32))
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: head.init(jax.random.key(0), x))
    variables = jax.tree.map(lambda leaf: rng.uniform(0.2, 1.0, leaf.shape).astype(np.float32) - 0.5, shapes)
    params = variables["params"]
    got, _ = head.apply(variables, x, train=True, mutable=["batch_stats"])
    y = np.asarray(x)
    for number in range(1, layers):
        y = y @ params[f"dense{number}"]["kernel"] + params[f"dense{number}"].get("bias", 0.0)
        if norm:
            batch = params[f"norm{number}"]["batch"]
            y = (y - y.mean(0)) / np.sqrt(y.var(0) + 1e-5) * batch["scale"] + batch["bias"]
        y = np.maximum(y, 0)
    expected = y @ params[f"dense{layers}"]["kernel"] + params[f"dense{layers}"]["bias"]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert ("batch_stats" in variables) == (norm and layers > 1)
    assert not np.allclose(np.linalg.norm(got, axis=1), 1.0, atol=0.1)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_embeddings_parameters_and_statistics_are_float32(dtype):
    head = ProjectionHead(hidden=6, dim=4, dtype=dtype)
    out, variables = head.init_with_output(jax.random.key(0), jnp.ones((3, 5)), train=True)
    assert {leaf.dtype for leaf in jax.tree.leaves((out, variables))} == {jnp.dtype("float32")}
