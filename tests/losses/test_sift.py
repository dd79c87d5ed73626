"""The k largest of each row out of those above a bound."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import AS_USERS_COMPILE, FAST_COMPILE
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from jaxcl.losses import infonce, streaming_infonce, strip
from jaxcl.losses.pruning import subblocks_for
from jaxcl.losses.sift import sift, slots_for


@functools.cache
def compiled(shape, k, width):
    lowered = jax.jit(lambda x: sift(x, k, width)).lower(jax.ShapeDtypeStruct(shape, jnp.float32))
    return lowered.compile(FAST_COMPILE)


def in_order(values, places):
    """Largest first, of equal ones the lowest place; places of nothing do not matter."""
    falling, places = lax.sort((-values, places), num_keys=2)
    return -falling, jnp.where(falling < jnp.inf, places, -1)


def assert_as_lax(scores, k, width):
    found = compiled(scores.shape, k, width)(scores)
    for one, other in zip(in_order(found.values, found.places), in_order(*lax.top_k(scores, k)), strict=True):
        np.testing.assert_array_equal(one, other)
    return found


SHAPES = [((7, 90), 6, 4), ((1, 31), 1, 2), ((20, 700), 11, 16), ((3, 513), 128, 4), ((2, 64), 16, 4)]


@settings(deadline=None, max_examples=60)
@given(
    shape=st.sampled_from(SHAPES),
    kind=st.sampled_from(["smooth", "few values", "mostly nothing", "zeros", "tiny", "negative", "one infinity"]),
    seed=st.integers(0, 999),
)
def test_what_is_found_is_what_lax_finds_ties_included(shape, kind, seed):
    (rows, columns), k, width = shape
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(rows, columns)).astype(np.float32)
    if kind == "few values":
        scores = np.round(scores * 2)
    elif kind == "mostly nothing":
        scores[rng.random(scores.shape) < 0.9] = -np.inf
    elif kind == "zeros":
        scores = np.where(rng.random(scores.shape) < 0.5, -0.0, 0.0).astype(np.float32)
    elif kind == "tiny":
        scores = np.abs(scores) * 1e-30
    elif kind == "negative":
        scores = -np.abs(scores)
    elif kind == "one infinity":
        scores[:, columns // 2] = np.inf
    assert_as_lax(jnp.asarray(scores), k, width)


def test_of_random_scores_few_more_than_k_pass_and_all_but_k_sub_blocks_are_skipped():
    k, width, columns = 16, 16, 2048
    found = assert_as_lax(jax.random.normal(jax.random.key(0), (50, columns)), k, width)
    assert (found.skipped == columns // width - k).all()
    assert (found.above >= k).all()
    assert found.above.mean() < 1.2 * k
    assert not found.whole.any()


def test_a_row_with_more_above_the_bound_than_slots_is_selected_from_whole():
    k, width, columns = 3, 4, 80
    smooth = jax.random.normal(jax.random.key(1), (columns,))
    found = assert_as_lax(jnp.stack([smooth, jnp.ones(columns)]), k, width)
    assert found.whole.tolist() == [False, True]
    assert found.above[1] == columns > slots_for(k, columns)


@pytest.mark.parametrize(
    ("columns", "k", "width"), [(8192, 64, 16), (8192, 410, 8), (8192, 800, 4), (8192, 1200, 0), (64, 16, 0)]
)
def test_sub_blocks_are_as_wide_as_lets_few_scores_through(columns, k, width):
    assert subblocks_for(columns, k) == width


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

        program = jax.jit(jax.value_and_grad(mean, has_aux=True)).lower(embeddings)
        return program.compile(FAST_COMPILE)(embeddings)

    (value, stats), gradient = value_and_gradient(streaming_infonce)
    (expected, _), expected_gradient = value_and_gradient(infonce)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6)
    maxima = stats.subblocks_tested / n
    skipped = stats.subblocks_skipped / stats.subblocks_tested
    assert duplicates or skipped == pytest.approx(1 - k / maxima)
    assert (stats.elements_selected > n * 300) == duplicates  # rows selected from whole are counted


def test_another_device_selects_at_once(monkeypatch):
    monkeypatch.setattr(strip, "WORTH", 1)
    shape, groups = jax.ShapeDtypeStruct((300, 5), jnp.float32), jnp.arange(300)

    def loss(x):
        return streaming_infonce(x, x, groups, groups, temperature=0.3, top_k=3, exclude_diagonal=True).loss

    traced = jax.jit(loss).trace(shape)
    sifts = {p: "popcnt" in traced.lower(lowering_platforms=(p,)).as_text() for p in ("cpu", "cuda")}
    assert sifts == {"cpu": True, "cuda": False}


@pytest.mark.parametrize(("where", "top_k"), [("keys", 1), ("queries", 3), ("queue", 1), ("queue", 3)])
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
        options = dict(temperature=0.3, top_k=top_k, queue=queue, queue_groups=queue_groups)

        def of_rows():
            return loss(queries, keys, np.arange(n), np.arange(m), **options).loss

        return np.asarray(jax.jit(of_rows, compiler_options=AS_USERS_COMPILE)())

    expected = losses(infonce)
    assert np.isnan(expected).sum() == {"keys": n, "queries": 1, "queue": n - 1}[where]
    np.testing.assert_allclose(losses(streaming_infonce), expected, rtol=1e-5)
