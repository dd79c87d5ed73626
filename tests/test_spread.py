import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcl.spread import LOOKED_AT, PAIRED, spread


def values(rows):
    return {name: float(value) for name, value in spread(jnp.asarray(rows)).items()}


def test_evenly_spread_directions_have_spread_one_all_dimensions_and_the_uniformity_of_the_sphere():
    rows = jax.random.normal(jax.random.key(0), (4000, 16))
    found = values(rows)
    assert found["feature_spread"] == pytest.approx(1, abs=0.01)
    assert found["effective_rank"] == pytest.approx(16, rel=0.02)
    assert found["uniformity"] == pytest.approx(-4 + 16 / 32, abs=0.1)  # log E exp(4 c), c of variance 1/d: 8/d


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_equal_embeddings_have_none_whatever_their_length(scale):
    found = values(scale * jnp.ones((9, 5)))
    np.testing.assert_allclose([found["feature_spread"], found["effective_rank"], found["uniformity"]], 0, atol=1e-3)


def test_embeddings_along_one_line_use_one_dimension():
    rows = np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]] * 4, np.float32)
    assert values(rows)["effective_rank"] == pytest.approx(1)


def test_uniformity_is_the_mean_over_pairs_as_a_loop_has_it():
    rows = np.random.default_rng(1).normal(size=(7, 3)).astype(np.float32)
    z = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    pairs = [np.exp(-2 * np.sum((z[i] - z[j]) ** 2)) for i in range(7) for j in range(i)]
    assert values(rows)["uniformity"] == pytest.approx(np.log(np.mean(pairs)), rel=1e-4)


def test_of_a_large_batch_the_first_embeddings_are_compared():
    rows = np.random.default_rng(2).normal(size=(PAIRED + 50, 4)).astype(np.float32)
    assert values(rows)["uniformity"] == pytest.approx(values(rows[:PAIRED])["uniformity"], rel=1e-5)


def test_one_embedding_has_no_spread_and_nothing_is_nan():
    assert values(np.ones((1, 4), np.float32)) == {"feature_spread": 0, "effective_rank": 0, "uniformity": 0}


def test_no_gradient_runs_through_it():
    rows = jax.random.normal(jax.random.key(0), (5, 3))
    assert not np.any(jax.grad(lambda x: sum(spread(x).values()))(rows))


def test_of_a_large_batch_the_first_rows_are_looked_at():
    rows = np.random.default_rng(0).normal(size=(LOOKED_AT + 50, 3))
    first = values(rows[:LOOKED_AT])
    rows[LOOKED_AT:] = 1.0
    assert values(rows) == first
