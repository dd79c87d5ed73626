"""The sampled tail has the value of all negatives, and on average their gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_reference import FAST_COMPILE, assert_close, findings, random_problem, value_and_gradients

from jaxcl.losses import infonce, streaming_infonce
from jaxcl.losses.tail import choose_tail, draw_columns

KEY = jax.random.key(7)


def sampled(samples, key=KEY):
    return dict(tail="sampled", tail_samples=samples, tail_key=key)


@pytest.mark.parametrize("loss", [infonce, streaming_infonce])
def test_the_value_is_that_of_all_negatives(loss):
    arrays, options = random_problem(0, 37, 41, queue=60, filled=50)
    full, _ = value_and_gradients(infonce, arrays, **options)
    out, _ = value_and_gradients(loss, arrays, top_k=3, **sampled(2), **options)
    np.testing.assert_allclose(out.loss, full.loss, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("top_k", "samples", "queue"), [(1, 1, 500), (2, 9, 90), (40, 5, 0)])
def test_streamed_and_dense_draw_the_same_columns(top_k, samples, queue):
    arrays, options = random_problem(1, 33, 47, queue=queue, filled=queue * 2 // 3, groups=11)
    settings = dict(top_k=top_k, **sampled(samples), **options)
    expected, gradients = value_and_gradients(infonce, arrays, **settings)
    out, actual = value_and_gradients(streaming_infonce, arrays, block_size=7, **settings)
    assert_close((findings(out), actual), (findings(expected), gradients))


def gradients(loss, samples, keys, *, n=96, top_k=4):
    """The gradient of the mean loss for several random keys, and that of all negatives."""
    (z, _, ids, _), _ = random_problem(2, n, groups=n // 2, dim=5, lowest=0)

    def total(z, **settings):
        out = loss(z, z, ids, ids, temperature=0.5, exclude_diagonal=True, **settings)
        return jnp.mean(out.loss)

    one = jax.grad(lambda z, key: total(z, top_k=top_k, **sampled(samples, key)))
    # a loop over keys: they share one program
    many = jax.jit(lambda z, keys: jax.lax.map(lambda key: one(z, key), keys), compiler_options=FAST_COMPILE)
    full = jax.jit(jax.grad(total), compiler_options=FAST_COMPILE)(z)
    return np.asarray(many(z, keys)), np.asarray(full)


@pytest.mark.parametrize("loss", [infonce, streaming_infonce])
def test_its_error_falls_with_the_root_of_the_samples_and_its_mean_approaches_the_full_gradient(loss):
    keys = jax.random.split(jax.random.key(0), 48)

    def errors(samples):
        each, full = gradients(loss, samples, keys)
        norm = np.linalg.norm(full)
        one = np.sqrt(np.mean(np.sum((each - full) ** 2, axis=(1, 2)))) / norm
        return one, np.linalg.norm(each.mean(axis=0) - full) / norm

    (few, mean_of_few), (many, mean_of_many) = errors(3), errors(48)
    assert few / many == pytest.approx(4, rel=0.25)  # √(48 / 3)
    assert mean_of_few < few / 2  # what is left beside chance is the bias of dividing by an estimate, of order 1/m
    assert mean_of_many < many / 3


def test_the_gradient_reaches_selected_drawn_and_positive_columns_and_no_others():
    arrays, options = random_problem(3, 1, 200, groups=1, lowest=0)
    queries, keys, query_groups, _ = arrays
    groups = np.where(np.arange(200) < 2, 0, 9).astype(np.int32)  # two positives

    def total(keys):
        out = streaming_infonce(queries, keys, query_groups, groups, temperature=0.3, top_k=5, **sampled(6), **options)
        return out.loss[0]

    step = jax.jit(jax.grad(total), compiler_options=FAST_COMPILE)
    moved = np.flatnonzero(np.any(np.asarray(step(keys)) != 0, axis=1))
    assert 2 + 5 < len(moved) <= 2 + 5 + 6
    assert {0, 1} <= set(moved.tolist())


def test_a_row_that_draws_nothing_of_its_tail_lets_the_selected_carry_it():
    scores = np.array([[3.0, 2.0, 1.0]], np.float32)  # the third is the tail, and only the first two are drawn
    values, numbers = jnp.asarray(scores[:, :2]), jnp.array([[0, 1]], jnp.int32)
    selected, every = (jnp.log(jnp.exp(x).sum(axis=1)) for x in (values, jnp.asarray(scores)))
    tail = choose_tail(values, numbers, values, numbers, selected, every, 2)
    weights = np.exp(values + np.asarray(tail.boost)[:, :1])
    np.testing.assert_allclose(weights.sum(), np.exp(scores).sum(), rtol=1e-6)
    assert np.all(np.asarray(tail.numbers) == np.iinfo(np.int32).max)


def test_rows_without_a_tail_have_the_gradient_of_all_negatives():
    arrays, options = random_problem(4, 12, 9, groups=30)
    expected = value_and_gradients(infonce, arrays, **options)
    out, actual = value_and_gradients(streaming_infonce, arrays, top_k=9, **sampled(3), **options)
    assert_close(actual, expected[1])
    assert_close(out.loss, expected[0].loss)


def test_draws_are_uniform_over_keys_and_filled_queue_rows():
    drawn = np.asarray(draw_columns(KEY, jnp.arange(64), 1000, keys=3, queue_start=10, filled=jnp.int32(2)))
    numbers, counts = np.unique(drawn, return_counts=True)
    assert numbers.tolist() == [0, 1, 2, 10, 11]
    # 64,000 draws of five columns: a standard deviation of 101
    np.testing.assert_allclose(counts, 12_800, atol=5 * 101)
    again = draw_columns(KEY, jnp.array([5]), 1000, keys=3, queue_start=10, filled=jnp.int32(2))
    np.testing.assert_array_equal(again[0], drawn[5])


@pytest.mark.parametrize("loss", [infonce, streaming_infonce])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(tail="sampled", tail_samples=2, tail_key=KEY), "needs top_k"),
        (dict(tail="sampled", tail_samples=0, tail_key=KEY, top_k=2), "tail_samples=0 must be an int of at least 1"),
        (dict(tail="sampled", tail_samples=2, top_k=2), "tail_key=None must be a random key"),
        (dict(tail_samples=2, top_k=2), "read only with tail='sampled'"),
        (dict(tail="all", top_k=2), "tail='all' must be 'drop' or 'sampled'"),
    ],
)
def test_settings_that_do_not_fit_are_errors(loss, options, message):
    z, ids = np.eye(4, dtype=np.float32), np.arange(4, dtype=np.int32)
    with pytest.raises(ValueError, match=message):
        loss(z, z, ids, ids, temperature=0.1, **options)
