"""The hardest negatives of all can be left out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_reference import FAST_COMPILE, assert_close, evaluate, findings, random_problem, value_and_gradients

from jaxcl.losses import infonce, streaming_infonce


@pytest.mark.parametrize("impl", ["strip", "column"])
@pytest.mark.parametrize(("n", "m", "queue", "top_k", "share"), [(33, 47, 20, 5, 0.1), (40, None, 0, 2, 0.5)])
def test_streamed_and_dense_leave_out_the_same(impl, n, m, queue, top_k, share):
    arrays, options = random_problem(4, n, m, queue=queue, filled=queue // 2, groups=19)
    settings = dict(top_k=top_k, skip_hardest=share, exclude_diagonal=m is None, **options)
    expected, gradients = value_and_gradients(infonce, arrays, **settings)
    out, actual = value_and_gradients(streaming_infonce, arrays, block_size=7, impl=impl, **settings)
    assert_close((findings(out), actual), (findings(expected), gradients))


@pytest.mark.parametrize("loss", [infonce, streaming_infonce])
def test_it_is_the_loss_without_those_columns(loss):
    angles = np.linspace(0.2, 1.5, 11)  # column j is the j-th most similar of all
    keys = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    query, group = np.array([[1.0, 0.0]], np.float32), np.zeros(1, np.int32)
    groups = np.where(np.arange(11) == 10, 0, 5).astype(np.int32)  # the last one is the positive
    settings = dict(temperature=0.2, top_k=3)
    out = evaluate(loss, query, keys, group, groups, skip_hardest=2 / 11, **settings)
    without = evaluate(loss, query, keys[2:], group, groups[2:], **settings)
    np.testing.assert_allclose(out.loss, without.loss, rtol=1e-6)
    np.testing.assert_allclose(out.stats.kth, without.stats.kth, rtol=1e-6)
    np.testing.assert_allclose(out.stats.hardest, np.cos(0.2) / 0.2, rtol=1e-6)
    moved = jax.jit(
        jax.grad(lambda keys: loss(query, keys, group, groups, skip_hardest=2 / 11, **settings).loss[0]),
        compiler_options=FAST_COMPILE,
    )(keys)
    assert np.flatnonzero(np.any(np.asarray(moved) != 0, axis=1)).tolist() == [2, 3, 4, 10]


@pytest.mark.parametrize("loss", [infonce, streaming_infonce])
def test_a_row_with_fewer_negatives_than_are_left_out_has_none(loss):
    groups = jnp.zeros(6, jnp.int32).at[5].set(1)
    out = evaluate(loss, jnp.eye(6), jnp.eye(6), groups, groups, temperature=0.01, top_k=2, skip_hardest=0.2)
    np.testing.assert_allclose(out.loss[:5], np.log(1) + 80.0, rtol=1e-4)  # 1/5 · 100 − log Σ, of its five positives
    assert np.isfinite(out.loss).all()


@pytest.mark.parametrize("loss", [infonce, streaming_infonce])
def test_a_low_temperature_does_not_lose_what_is_left(loss):
    """The scores that stay may be thousands below those that were left out."""
    keys = jnp.array([[1.0, 0.0], [-1.0, 0.01], [-1.0, 0.02], [-1.0, 0.02]])
    group, groups = jnp.array([0]), jnp.array([3, 0, 4, 5])
    out = evaluate(loss, keys[:1], keys, group, groups, temperature=1e-4, top_k=2, skip_hardest=0.3)
    assert float(out.loss[0]) == pytest.approx(np.log1p(2 * np.exp((0.0002 - 0.00005) / 1e-4)), rel=0.05)
