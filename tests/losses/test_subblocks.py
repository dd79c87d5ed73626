"""The k largest by way of sub-blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from jaxcl.losses import infonce, streaming_infonce, strip
from jaxcl.losses.pruning import subblocks_for
from jaxcl.losses.subblocks import two_levels


def _descending(values, places):
    return -values, places


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(1, 20),
    columns=st.integers(30, 90),
    k=st.integers(1, 6),
    width=st.sampled_from([2, 4]),
    values=st.sampled_from([3, 20, None]),
    seed=st.integers(0, 99),
)
def test_two_levels_find_what_one_selection_finds_ties_included(rows, columns, k, width, values, seed):
    scores = jax.random.normal(jax.random.key(seed), (rows, columns))
    if values:
        scores = jnp.round(scores * values / 6)
    found = lax.sort(_descending(*two_levels(scores, k, width)[:2]), num_keys=2)
    for one, other in zip(found, _descending(*lax.top_k(scores, k)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_rows_without_enough_scores_keep_what_they_have():
    scores = jnp.full((2, 40), -jnp.inf).at[0, 7].set(1.0)
    values, places, tied = two_levels(scores, 3, 4)
    assert values.tolist() == [[1, -jnp.inf, -jnp.inf], [-jnp.inf] * 3]
    assert places[0, 0] == 7
    assert not tied.any()


def test_a_nan_comes_first():
    values, _, _ = two_levels(jnp.arange(40.0)[None].at[0, 3].set(jnp.nan), 3, 4)
    assert jnp.isnan(values[0, 0])


def test_only_tied_rows_are_reported():
    _, _, tied = two_levels(jnp.stack([jnp.arange(40.0), jnp.ones(40)]), 3, 4)
    assert tied.tolist() == [False, True]


@pytest.mark.parametrize(
    ("columns", "k", "pays"), [(8192, 64, True), (8192, 410, False), (65536, 410, True), (64, 8, False)]
)
def test_the_strip_engine_takes_them_where_they_pay(columns, k, pays):
    assert bool(subblocks_for(columns, k)) == pays


@pytest.mark.parametrize("k", range(1, 2000, 37))
def test_there_are_more_sub_blocks_than_scores_to_find(k):
    for columns in (2000, 30000):
        sub = subblocks_for(columns, k)
        assert not sub or -(-columns // sub) > k


@pytest.mark.parametrize("duplicates", [False, True])
def test_the_strip_engine_equals_the_definition_by_way_of_them(monkeypatch, duplicates):
    monkeypatch.setattr(strip, "WORTH", 1)
    n, k = 300, 3
    assert subblocks_for(n, k)
    embeddings = jax.random.normal(jax.random.key(0), (n, 5))
    if duplicates:
        embeddings = embeddings[jnp.arange(n) // 10]
    groups = jnp.arange(n) // 2

    def value_and_gradient(loss):
        def mean(x):
            out = loss(x, x, groups, groups, temperature=0.3, top_k=k, exclude_diagonal=True)
            return out.loss.mean(), out.stats

        return jax.jit(jax.value_and_grad(mean, has_aux=True))(embeddings)

    (value, stats), gradient = value_and_gradient(streaming_infonce)
    (expected, _), expected_gradient = value_and_gradient(infonce)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6)
    assert stats.subblocks_skipped > 0
    maxima = stats.subblocks_tested / n
    assert stats.subblocks_skipped / stats.subblocks_tested == pytest.approx(1 - k / maxima)
    assert (stats.elements_selected > n * 300) == duplicates  # rows selected again are counted


def test_another_device_selects_at_once(monkeypatch):
    monkeypatch.setattr(strip, "WORTH", 1)
    shape, groups = jax.ShapeDtypeStruct((300, 5), jnp.float32), jnp.arange(300)

    def loss(x):
        return streaming_infonce(x, x, groups, groups, temperature=0.3, top_k=3, exclude_diagonal=True).loss

    traced = jax.jit(loss).trace(shape)
    selections = {p: traced.lower(lowering_platforms=(p,)).as_text().count("chlo.top_k") for p in ("cpu", "cuda")}
    assert selections["cuda"] == 1 < selections["cpu"]


@pytest.mark.parametrize("where", ["keys", "queries", "queue"])
@pytest.mark.parametrize("top_k", [1, 3])
def test_a_nan_makes_nan_of_every_row_that_could_select_it_and_of_no_other(monkeypatch, where, top_k):
    monkeypatch.setattr(strip, "WORTH", 1)
    n, m, size = 64, 509, 211
    rng = np.random.default_rng(top_k)
    arrays = {name: rng.normal(size=(rows, 5)).astype(np.float32) for name, rows in (("queries", n), ("keys", m))}
    arrays["queue"] = rng.normal(size=(size, 5)).astype(np.float32)
    arrays[where][7] = np.nan
    queries, keys, queue = arrays["queries"], arrays["keys"], arrays["queue"]
    queue_groups = np.arange(size) + 1000
    queue_groups[7] = 3  # its own group's rows are no candidates of anchor 3

    def losses(loss):
        out = loss(
            queries,
            keys,
            np.arange(n),
            np.arange(m),
            temperature=0.3,
            top_k=top_k,
            queue=queue,
            queue_groups=queue_groups,
        )
        return np.asarray(out.loss)

    expected = losses(infonce)
    assert np.isnan(expected).sum() == {"keys": n, "queries": 1, "queue": n - 1}[where]
    np.testing.assert_allclose(losses(streaming_infonce), expected, rtol=1e-5)
