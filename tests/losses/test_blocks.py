"""Negatives that come block by block give the loss and the gradient of negatives that are all here."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcl.losses import infonce, streaming_infonce
from jaxcl.losses.blocks import Block, meet_block, nothing_met, pull_block
from jaxcl.losses.columns import NOTHING
from jaxcl.losses.normalise import through_norm

N, D, K = 13, 4, 23


def a_problem(seed=0, *, exact=False):
    """Queries, keys, a queue and their groups; `exact`: cosines are multiples of ½, so that many are equal."""
    rng = np.random.default_rng(seed)
    draw = (lambda *shape: rng.choice([-1.0, 1.0], shape)) if exact else (lambda *shape: rng.normal(size=shape))
    queries, keys, queue = (jnp.asarray(draw(n, D), jnp.float32) for n in (N, N, K))
    groups = jnp.asarray(rng.permutation(N), jnp.int32)
    return queries, keys, queue, groups, jnp.asarray(rng.integers(0, 2 * N, K), jnp.int32)


@functools.partial(jax.jit, static_argnames=("rows", "top_k", "with_keys"))
def in_blocks(queries, keys, queue, groups, queue_groups, filled, *, rows, top_k, with_keys=True):
    """Loss and gradient of the queries, and what they met, the first block being here."""
    size, given = queue.shape[0], dict(temperature=0.25, top_k=top_k, keys=N)
    whole = -size % rows
    padded, own = jnp.pad(queue, ((0, whole), (0, 0)), constant_values=jnp.inf), jnp.pad(queue_groups, (0, whole))
    blocks = [
        Block(padded[s : s + rows], own[s : s + rows], jnp.int32(s), jnp.asarray(filled, jnp.int32))
        for s in range(0, size, rows)
    ]
    met = functools.reduce(lambda m, b: meet_block(m, queries, groups, b, **given), blocks[1:], nothing_met(N, top_k))

    def loss(queries, values, repulsion):
        before = met._replace(part=met.part._replace(values=values, repulsion=repulsion))
        first = dict(queue=blocks[0].values, queue_groups=blocks[0].groups, queue_filled=jnp.minimum(filled, rows))
        found = dict(met=before, met_size=size - rows) if len(blocks) > 1 else {}
        same = dict(temperature=0.25, top_k=top_k, positive_index=jnp.arange(N), use_key_negatives=with_keys)
        out = streaming_infonce(queries, keys, groups, groups, **same, **first, **found)
        return jnp.sum(out.loss), out

    grads, out = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(queries, met.part.values, met.part.repulsion)
    sums = [pull_block(grads[1:], met, queries, groups, b, **given) for b in blocks[1:]]
    return out, grads[0] + through_norm(queries, sum(sums, jnp.zeros_like(queries))), met


@functools.partial(jax.jit, static_argnames=("top_k", "with_keys"))
def at_once(queries, keys, queue, groups, queue_groups, filled, *, top_k, with_keys=True):
    """The definition."""

    def loss(queries):
        given = dict(queue=queue, queue_groups=queue_groups, queue_filled=filled, use_key_negatives=with_keys)
        same = dict(temperature=0.25, top_k=top_k, positive_index=jnp.arange(N))
        out = infonce(queries, keys, groups, groups, **same, **given)
        return jnp.sum(out.loss), out

    return jax.grad(loss, has_aux=True)(queries)[::-1]


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(float(jnp.max(jnp.abs(b))), 1e-6))


@pytest.mark.parametrize(
    ("rows", "top_k", "with_keys"),
    [(7, 3, True), (8, None, True), (12, 20, False), (23, 1, True), (11, 35, True)],
)
@pytest.mark.parametrize("filled", [0, 9, K])
def test_loss_gradient_and_stats_are_those_of_the_definition(rows, top_k, with_keys, filled):
    problem = a_problem()
    out, gradient, _ = in_blocks(*problem, filled, rows=rows, top_k=top_k, with_keys=with_keys)
    expected, wanted = at_once(*problem, filled, top_k=top_k, with_keys=with_keys)
    close(out.loss, expected.loss)
    close(gradient, wanted)
    for name in ("hardest", "kth"):
        mine, theirs = getattr(out.stats, name), getattr(expected.stats, name)
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(out.stats.negatives, expected.stats.negatives)
    np.testing.assert_array_equal(out.valid, expected.valid)
    np.testing.assert_allclose(out.stats.tail_mass, expected.stats.tail_mass, atol=1e-5)


def test_of_equal_scores_the_lowest_column_is_selected_whatever_the_blocks():
    queries, keys, queue, groups, queue_groups = a_problem(1, exact=True)
    normal = [x / 2 for x in (queries, queue)]
    scores = np.asarray(normal[0] @ normal[1].T) / 0.25
    scores[np.asarray(groups)[:, None] == np.asarray(queue_groups)] = -np.inf
    for rows in (5, 8):
        _, _, met = in_blocks(queries, keys, queue, groups, queue_groups, K, rows=rows, top_k=6)
        for row, own in enumerate(scores[:, rows:]):  # the first block was met last, by the loss
            best = np.argsort(-own, kind="stable")[:6]
            np.testing.assert_array_equal(np.sort(met.part.chosen[row]), np.sort(N + rows + best))


def test_the_gradient_of_equal_scores_goes_to_the_lowest_columns_alone():
    problem = a_problem(1, exact=True)
    for rows in (5, 8):
        _, gradient, _ = in_blocks(*problem, K, rows=rows, top_k=6)
        close(gradient, at_once(*problem, K, top_k=6)[1])


def test_a_queue_that_is_not_finite_makes_the_loss_nan_and_is_counted():
    queries, keys, queue, groups, queue_groups = a_problem()
    out, _, met = in_blocks(queries, keys, queue.at[17].set(jnp.nan), groups, queue_groups, K, rows=8, top_k=3)
    rows = np.asarray(groups) != int(queue_groups[17])
    np.testing.assert_array_equal(np.isnan(out.loss), rows)
    assert (out.stats.nonfinite, met.nonfinite) == (1, 1)
    out, _, met = in_blocks(queries, keys, queue.at[17].set(jnp.nan), groups, queue_groups, 17, rows=8, top_k=3)
    assert not np.isnan(out.loss).any()
    assert met.nonfinite == 0


def test_before_the_first_block_nothing_is_met():
    part = nothing_met(3, 2).part
    assert (part.values == -jnp.inf).all()
    assert (part.chosen == NOTHING).all()
    assert (part.negatives == 0).all()


def test_more_negatives_than_there_are_is_an_error_that_counts_those_elsewhere():
    queries, keys, queue, groups, queue_groups = a_problem()
    with pytest.raises(ValueError, match=rf"top_k={N + K + 1} must be None or in \[1, {N + K}\]"):
        in_blocks(queries, keys, queue, groups, queue_groups, K, rows=6, top_k=N + K + 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict(top_k=2), r"met has selected \(13, 3\), must be \(13, 2\)"),
        (dict(top_k=3, skip_hardest=0.1), r"met works with skip_hardest=0 and tail='drop', got 0.1 and 'drop'"),
        (dict(top_k=3, tail="sampled", tail_samples=1, tail_key=jax.random.key(0)), "got 0.0 and 'sampled'"),
    ],
)
def test_what_needs_the_blocks_again_is_an_error(given, message):
    queries, keys, _, groups, _ = a_problem()
    with pytest.raises(ValueError, match=message):
        streaming_infonce(queries, keys, groups, groups, temperature=1.0, met=nothing_met(N, 3), met_size=9, **given)


@pytest.mark.parametrize("top_k", [8, None])
def test_scores_exist_for_a_strip_of_anchors_at_a_time(top_k):
    n, d, rows = 2048, 16, 1024

    def temp(function, *more):
        queries, block = jnp.zeros((n, d)), Block(jnp.zeros((rows, d)), jnp.zeros(rows, jnp.int32), *jnp.int32([0, 9]))
        met, groups = nothing_met(n, top_k), jnp.zeros(n, jnp.int32)
        given = dict(temperature=0.1, top_k=top_k, keys=n)
        call = jax.jit(lambda *args: function(*args, **given))
        cotangent = [(met.part.values, met.part.repulsion)] if more else []
        return call.lower(*cotangent, met, queries, groups, block).compile().memory_analysis().temp_size_in_bytes

    assert temp(meet_block) < n * rows * 4 / 2
    assert temp(pull_block, 1) < n * rows * 4 / 2
