"""The dense definition against loops, closed forms and the situations it must survive."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_reference import FAST_COMPILE, evaluate, loop_loss, random_problem, value_and_gradients

from jaxcl.losses import infonce, streaming_infonce

both = pytest.mark.parametrize("loss", [infonce, streaming_infonce])


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_it_is_the_formula_written_as_three_loops(data):
    n = data.draw(st.sampled_from([1, 4, 7]))
    same = data.draw(st.booleans())
    queue = data.draw(st.sampled_from([0, 1, 6]))
    arrays, options = random_problem(
        data.draw(st.integers(0, 99)),
        n,
        None if same else data.draw(st.sampled_from([1, 4, 9])),
        queue=queue,
        filled=data.draw(st.integers(0, queue)),
        named=data.draw(st.booleans()),
    )
    m = len(arrays[1])
    options["exclude_diagonal"] = n == m and data.draw(st.booleans())
    options["use_key_negatives"] = not queue or data.draw(st.booleans())
    bound = m * options["use_key_negatives"] - options["exclude_diagonal"] + queue
    if bound >= 1:
        options["top_k"] = data.draw(st.none() | st.integers(1, bound))
    if options.get("top_k"):
        most = bound - options["top_k"]
        options["skip_hardest"] = data.draw(
            st.sampled_from([s for s in (0.0, 0.1, 0.3, 0.5, 0.9) if s * bound <= most])
        )
    expected, valid = loop_loss(*arrays, temperature=0.3, **options)
    out = evaluate(infonce, *arrays, temperature=0.3, **options)
    np.testing.assert_array_equal(out.valid, valid)
    np.testing.assert_allclose(out.loss, expected, rtol=2e-5, atol=2e-5)


@both
def test_equal_embeddings_give_the_log_of_the_candidates(loss):
    ids = jnp.arange(9, dtype=jnp.int32)
    out = evaluate(loss, jnp.ones((9, 5)), jnp.ones((9, 5)), ids, ids, temperature=0.1)
    np.testing.assert_allclose(out.loss, np.log(9), rtol=1e-6)
    queued = dict(queue=jnp.ones((40, 5)), queue_groups=100 + jnp.arange(40), use_key_negatives=False)
    out = evaluate(loss, jnp.ones((9, 5)), jnp.ones((9, 5)), ids, ids, temperature=0.1, **queued)
    np.testing.assert_allclose(out.loss, np.log(41), rtol=1e-6)


@both
def test_a_copy_of_an_image_costs_ln_2_unless_groups_say_that_it_is_one(loss):
    views = np.repeat(np.eye(8, dtype=np.float32), 2, axis=0)  # 8 pairs, each image twice
    unique, copies = np.arange(16, dtype=np.int32), np.repeat(np.arange(8, dtype=np.int32), 2)
    floor = evaluate(loss, views, views + 0.0, unique, unique, temperature=0.1).loss
    np.testing.assert_allclose(floor, np.log(2), atol=1e-3)
    named = evaluate(loss, views, views + 0.0, copies, copies, temperature=0.1, positive_index=unique)
    assert float(jnp.max(named.loss)) < 2e-3
    assert named.stats.negatives.tolist() == [14] * 16


@both
def test_supcon_anchors_without_a_partner_are_left_out_and_counted(loss):
    features = jax.random.normal(jax.random.key(0), (4, 3))
    labels = jnp.array([0, 1, 1, 3], jnp.int32)

    def mean(features):
        out = loss(features, features, labels, labels, temperature=0.8, exclude_diagonal=True)
        return jnp.sum(out.loss) / jnp.sum(out.valid), out

    (value, out), gradient = jax.jit(jax.value_and_grad(mean, has_aux=True), compiler_options=FAST_COMPILE)(features)
    assert out.valid.tolist() == [False, True, True, False]
    assert out.loss[0] == out.loss[3] == 0
    assert out.stats.positives.tolist() == [0, 1, 1, 0]
    assert jnp.isfinite(value)
    assert jnp.all(jnp.isfinite(gradient))


@both
def test_a_row_whose_candidates_are_all_its_own_has_the_log_sum_of_its_positives(loss):
    group = jnp.zeros(5, jnp.int32)
    out = evaluate(
        loss, jnp.ones((5, 3)), jnp.ones((5, 3)), group, group, temperature=0.5, exclude_diagonal=True, top_k=2
    )
    np.testing.assert_allclose(out.loss, np.log(4), rtol=1e-6)
    assert np.all(np.isneginf(out.stats.hardest))
    assert out.stats.negatives.tolist() == [0] * 5


@both
def test_a_group_below_zero_is_nobodys_partner_but_still_a_negative(loss):
    groups = np.array([0, 0, -1, -1], np.int32)
    z = np.eye(4, dtype=np.float32)
    out = evaluate(loss, z, z, groups, groups, temperature=1.0, exclude_diagonal=True)
    assert out.valid.tolist() == [True, True, False, False]
    np.testing.assert_allclose(out.loss[:2], np.log(3), rtol=1e-6)
    named = evaluate(loss, z, z, groups, groups, temperature=1.0, positive_index=np.array([2, 1, 2, -1], np.int32))
    assert named.valid.tolist() == [False, True, False, False]


@both
@pytest.mark.parametrize("top_k", [None, 3])
def test_a_nan_key_spoils_exactly_the_rows_that_could_select_it(loss, top_k):
    (queries, keys, _, _), _ = random_problem(0, 8, 8)
    keys[5, 2] = np.nan
    groups = np.array([0, 1, 2, 3, 4, 5, 5, 6], np.int32)
    partners = np.array([0, 1, 2, 3, 4, 6, 6, 7], np.int32)  # rows 5 and 6 have key 5 in their group, unnamed
    out = evaluate(loss, queries, keys, groups, groups, temperature=0.2, top_k=top_k, positive_index=partners)
    assert np.isnan(out.loss).tolist() == [True] * 5 + [False] * 2 + [True]
    assert int(out.stats.nonfinite) == 1


@both
def test_rows_of_the_queue_that_are_not_filled_do_not_matter(loss):
    arrays, options = random_problem(3, 6, 6, queue=9, filled=4)
    clean = value_and_gradients(loss, arrays, top_k=3, **options)
    options["queue"][4:] = np.nan
    dirty = value_and_gradients(loss, arrays, top_k=3, **options)
    jax.tree.map(np.testing.assert_array_equal, clean, dirty)
    assert int(dirty[0].stats.nonfinite) == 0
    expected = sum(int(g != arrays[2][0] or g < 0) for g in [*arrays[3], *options["queue_groups"][:4]])
    assert int(dirty[0].stats.negatives[0]) == expected


@both
def test_a_zero_vector_has_a_finite_value_and_gradient_in_half_precision(loss):
    z = np.full((6, 2048), 6.0, np.float16)
    z[2] = 0
    ids = np.arange(6, dtype=np.int32) // 2
    out, (gradient, _, by_temperature) = value_and_gradients(loss, (z, z, ids, ids), exclude_diagonal=True)
    assert gradient.dtype == jnp.float16
    assert np.all(np.isfinite(out.loss))
    assert np.all(np.isfinite(gradient))
    assert np.isfinite(by_temperature)


def test_the_mass_left_out_is_that_of_the_unselected_negatives():
    z = np.ones((1, 3), np.float32)
    keys, groups = np.ones((8, 3), np.float32), np.arange(8, dtype=np.int32)
    out = evaluate(infonce, z, keys, groups[:1], groups, temperature=0.5, top_k=3)
    np.testing.assert_allclose(out.stats.tail_mass, 1 - 4 / 8, rtol=1e-5)
    np.testing.assert_allclose(out.stats.kth, 2.0, rtol=1e-5)


def test_no_gradient_reaches_the_queue_or_an_unselected_negative():
    (queries, keys, _, _), options = random_problem(5, 1, 9, queue=4)
    groups = np.arange(9, dtype=np.int32)
    options["queue_groups"] = 100 + np.arange(4)

    for loss in (infonce, streaming_infonce):

        def total(keys, queue, loss=loss):
            settings = dict(options, queue=queue, top_k=2)
            return jnp.sum(loss(queries, keys, groups[:1], groups, temperature=0.2, **settings).loss)

        by_keys, by_queue = jax.jit(jax.grad(total, argnums=(0, 1)), compiler_options=FAST_COMPILE)(
            keys, options["queue"]
        )
        assert not np.any(by_queue)
        scores = np.r_[keys / np.linalg.norm(keys, axis=1, keepdims=True)] @ queries[0]
        queued = options["queue"].astype(np.float32)
        scores = np.r_[scores[1:], queued @ queries[0] / np.linalg.norm(queued, axis=1)]
        chosen = {0} | {1 + j for j in np.argsort(-scores)[:2] if j < 8}
        assert set(np.flatnonzero(np.any(np.asarray(by_keys) != 0, axis=1))) == chosen


ONES = np.ones((4, 3), np.float32)
IDS = np.arange(4, dtype=np.int32)
WRONG = [
    (dict(top_k=0), "top_k=0 .*at least 1"),
    (dict(top_k=5), r"top_k=5 .*\[1, 4\]"),
    (dict(top_k=4, exclude_diagonal=True), r"top_k=4 .*\[1, 3\]"),
    (dict(top_k=True), "top_k=True .*int of at least 1"),
    (dict(temperature=0.0), "temperature=0.0 must be finite and above 0"),
    (dict(temperature=-1), "temperature=-1.0"),
    (dict(temperature=float("nan")), "temperature=nan"),
    (dict(temperature=np.ones(2)), r"temperature has shape \(2,\)"),
    (dict(queries=np.ones(3)), r"queries has shape \(3,\)"),
    (dict(queries=np.ones((4, 2), np.float32)), "keys has 3 dimensions, must have 2"),
    (dict(keys=np.ones((4, 3), np.int32)), "keys has dtype int32, must be a float type"),
    (dict(keys=np.ones((0, 3), np.float32)), r"keys has shape \(0, 3\)"),
    (dict(query_groups=IDS[:3]), r"query_groups has shape \(3,\), must be \(4,\)"),
    (dict(key_groups=ONES[:, 0]), "key_groups has dtype float32"),
    (dict(positive_index=IDS[None]), "positive_index has shape"),
    (dict(keys=ONES[:3], key_groups=IDS[:3], exclude_diagonal=True), "exclude_diagonal=True needs .* 4 .* 3 keys"),
    (dict(use_key_negatives=False), "use_key_negatives=False needs a queue"),
    (dict(queue_groups=IDS), "queue_groups was given without queue"),
    (dict(queue_filled=2), "queue_filled was given without queue"),
    (dict(queue=ONES[:, :2]), r"queue has shape \(4, 2\), must be \[rows, 3\]"),
    (dict(queue=np.ones((4, 3), np.int8)), "queue has dtype int8"),
    (dict(queue=ONES, queue_groups=IDS[:2]), r"queue_groups has shape \(2,\), must be \(4,\)"),
    (dict(queue=ONES, queue_groups=IDS, queue_filled=5), r"queue_filled=5 must be in \[0, 4\]"),
    (dict(queue=ONES, queue_groups=IDS, queue_filled=0.5), "queue_filled .* integer scalar"),
    (dict(tail="mean"), "tail='mean' must be 'drop' or 'sampled'"),
    (dict(tail="sampled"), "tail='sampled' needs top_k"),
    (dict(skip_hardest=0.1), "skip_hardest=0.1 needs top_k"),
    (dict(top_k=1, skip_hardest=1.0), r"skip_hardest=1.0 must be a number in \[0, 1\)"),
    (dict(top_k=1, skip_hardest=float("nan")), "skip_hardest=nan must be"),
    (dict(top_k=4, skip_hardest=0.3), r"top_k=4 .*\[1, 3\].*less the 1 that skip_hardest=0.3 leaves out"),
    (
        dict(top_k=1, skip_hardest=0.5, tail="sampled", tail_samples=1, tail_key=jax.random.key(0)),
        "would bring back the negatives that skip_hardest leaves out",
    ),
    (dict(top_k=2, tail_samples=3), "tail_samples=3 .*only with tail='sampled'"),
]


@both
@pytest.mark.parametrize(("changed", "message"), WRONG)
def test_a_wrong_argument_is_an_error_that_names_it_and_its_value(loss, changed, message):
    arguments = dict(queries=ONES, keys=ONES, query_groups=IDS, key_groups=IDS, temperature=0.1) | changed
    with pytest.raises(ValueError, match=message):
        loss(**arguments)


def test_a_queue_without_groups_is_everybodys_negative():
    out = evaluate(infonce, ONES, ONES, IDS, IDS, temperature=0.1, queue=ONES, use_key_negatives=False)
    np.testing.assert_allclose(out.loss, np.log(5), rtol=1e-6)
