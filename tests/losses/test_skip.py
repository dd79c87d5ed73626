"""The hardest negatives of all can be left out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_reference import (
    FAST_COMPILE,
    assert_close,
    evaluate,
    findings,
    loop_loss,
    random_problem,
    value_and_gradients,
)

from jaxcl.losses import infonce, streaming_infonce


@pytest.mark.parametrize("impl", ["strip", "column"])
@pytest.mark.parametrize(
    ("n", "m", "queue", "filled", "groups", "top_k", "share"),
    [(33, 47, 20, 10, 19, 5, 0.1), (40, None, 0, None, 2, 20, 0.5), (9, 9, 60, 3, 3, 30, 0.4)],
)
def test_streamed_and_dense_leave_out_the_same(impl, n, m, queue, filled, groups, top_k, share):
    arrays, options = random_problem(4, n, m, queue=queue, filled=filled, groups=groups)
    settings = dict(top_k=top_k, skip_hardest=share, exclude_diagonal=m is None, **options)
    expected, gradients = value_and_gradients(infonce, arrays, **settings)
    np.testing.assert_allclose(expected.loss, loop_loss(*arrays, temperature=0.3, **settings)[0], rtol=2e-5, atol=2e-5)
    out, actual = value_and_gradients(streaming_infonce, arrays, block_size=7, impl=impl, **settings)
    assert_close((findings(out), actual), (findings(expected), gradients))


@pytest.mark.parametrize("loss", [infonce, streaming_infonce])
def test_it_is_the_loss_without_those_columns(loss):
    angles = np.linspace(0.2, 1.5, 11)  # column j is the j-th most similar of all
    keys = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    query, group = np.array([[1.0, 0.0]], np.float32), np.zeros(1, np.int32)
    groups = np.where(np.arange(11) == 10, 0, 5).astype(np.int32)  # the last one is the positive
    settings = dict(temperature=0.2, top_k=3)
    out = evaluate(loss, query, keys, group, groups, skip_hardest=0.2, **settings)
    without = evaluate(loss, query, keys[2:], group, groups[2:], **settings)
    np.testing.assert_allclose(out.loss, without.loss, rtol=1e-6)
    np.testing.assert_allclose(out.stats.kth, without.stats.kth, rtol=1e-6)
    assert (out.stats.negatives.tolist(), without.stats.negatives.tolist()) == ([8], [8])
    np.testing.assert_allclose(out.stats.hardest, np.cos(0.2) / 0.2, rtol=1e-6)
    moved = jax.jit(
        jax.grad(lambda keys: loss(query, keys, group, groups, skip_hardest=0.2, **settings).loss[0]),
        compiler_options=FAST_COMPILE,
    )(keys)
    assert np.flatnonzero(np.any(np.asarray(moved) != 0, axis=1)).tolist() == [2, 3, 4, 10]


@pytest.mark.parametrize("loss", [infonce, streaming_infonce])
@pytest.mark.parametrize("filled", [0, 1, 3, 8, 64])
def test_the_share_is_of_the_negatives_that_a_row_has_and_not_of_the_rows_of_the_queue(loss, filled):
    """All are equally similar, so that the loss is the log of how many count."""
    ones, own = np.ones((2, 3), np.float32), np.zeros(2, np.int32)
    groups = np.arange(64, dtype=np.int32)  # the first is the row's own
    settings = dict(temperature=0.2, top_k=32, skip_hardest=0.34, use_key_negatives=False, positive_index=np.arange(2))
    bank = dict(queue=np.ones((64, 3)), queue_groups=groups, queue_filled=jnp.int32(filled))
    out = evaluate(loss, ones, ones, own, own, **settings, **bank)
    has = max(filled - 1, 0)
    left = has - int(0.34 * has)
    assert out.stats.negatives.tolist() == [left] * 2
    np.testing.assert_allclose(out.loss, np.log(1 + min(left, 32)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", [infonce, streaming_infonce])
def test_a_row_with_one_negative_keeps_it(loss):
    groups = jnp.zeros(6, jnp.int32).at[5].set(1)
    out = evaluate(loss, jnp.eye(6), jnp.eye(6), groups, groups, temperature=1.0, top_k=2, skip_hardest=0.6)
    np.testing.assert_allclose(out.loss[:5], np.log(np.e + 5) - 1 / 5, rtol=1e-5)  # of its five positives and that one
    np.testing.assert_allclose(out.loss[5], np.log(np.e + 2) - 1, rtol=1e-5)  # of 5 negatives 3 are left out
    assert out.stats.negatives.tolist() == [1] * 5 + [2]


@pytest.mark.parametrize("loss", [infonce, streaming_infonce])
def test_a_nan_is_not_left_out_as_the_hardest(loss):
    keys, groups = np.eye(5, dtype=np.float32), np.array([0, 1, 2, 3, 3], np.int32)
    keys[4, 4] = np.nan
    out = evaluate(loss, np.eye(5), keys, groups, groups, temperature=1.0, top_k=1, skip_hardest=0.5)
    assert np.isnan(out.loss).tolist() == [True] * 5
    assert int(out.stats.nonfinite) == 1


@pytest.mark.parametrize("loss", [infonce, streaming_infonce])
def test_a_low_temperature_does_not_lose_what_is_left(loss):
    """The scores that stay may be thousands below those that were left out."""
    keys = jnp.array([[1.0, 0.0], [-1.0, 0.01], [-1.0, 0.02], [-1.0, 0.02]])
    group, groups = jnp.array([0]), jnp.array([3, 0, 4, 5])
    out = evaluate(loss, keys[:1], keys, group, groups, temperature=1e-4, top_k=2, skip_hardest=0.4)
    assert float(out.loss[0]) == pytest.approx(np.log1p(2 * np.exp((0.0002 - 0.00005) / 1e-4)), rel=0.05)
