"""The strip engine equals the dense definition, in the memory of one strip."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads
from loss_reference import FAST_COMPILE, assert_close, random_problem, value_and_gradients

from jaxcl.losses import infonce, streaming_infonce


def assert_equals_dense(arrays, block_size, **options):
    expected, wanted = value_and_gradients(infonce, arrays, **options)
    out, gradients = value_and_gradients(streaming_infonce, arrays, block_size=block_size, **options)
    # the dense engine also selects from keys that cannot be negatives
    stats = out.stats._replace(elements_selected=expected.stats.elements_selected)
    assert_close((out._replace(stats=stats), gradients), (expected, wanted))


@pytest.mark.parametrize(("n", "block_size", "top_k"), [(37, 8, None), (37, 64, 1), (31, 16, 2), (32, 16, 31)])
def test_it_equals_the_definition_where_queries_are_keys(n, block_size, top_k):
    arrays, options = random_problem(0, n, groups=20)
    assert_equals_dense(arrays, block_size, exclude_diagonal=True, top_k=top_k, **options)


@pytest.mark.parametrize(
    ("n", "m", "queue", "filled", "block_size", "top_k", "more"),
    [
        (1, 1, 0, None, 1, None, {}),
        (13, 29, 0, None, 13, 3, dict(named=True)),
        (29, 13, 100, 0, 28, 5, {}),
        (29, 13, 100, 57, 6, 5, {}),
        (13, 13, 300, 299, 5, 2, dict(use_key_negatives=False)),
        (13, 13, 31, 30, None, 31, dict(use_key_negatives=False)),
        (13, 13, 31, 30, 4, 2, dict(exclude_diagonal=True, named=True)),
    ],
)
def test_it_equals_the_definition_with_separate_keys_and_a_queue(n, m, queue, filled, block_size, top_k, more):
    flags = {name: more[name] for name in more if name != "named"}
    arrays, options = random_problem(1, n, m, queue=queue, filled=filled, named="named" in more, groups=9)
    assert_equals_dense(arrays, block_size, top_k=top_k, **options, **flags)


@pytest.mark.parametrize(("groups", "top_k"), [(1, None), (2, None), (2, 2), (3, 40)])
def test_it_equals_the_definition_with_few_and_with_many_positives_a_row(groups, top_k):
    arrays, options = random_problem(2, 61, groups=groups, queue=40, dim=3)
    assert_equals_dense(arrays, 16, top_k=top_k, exclude_diagonal=True, **options)


def test_long_runs_of_positives_beside_a_queue_that_alone_is_negative():
    arrays, options = random_problem(2, 61, 50, groups=2, queue=40, lowest=0)
    assert_equals_dense(arrays, 16, use_key_negatives=False, **options)


@pytest.mark.parametrize("dim", [3, 7])
def test_scores_are_kept_for_the_gradient_or_computed_again_where_they_outweigh_the_embeddings(dim):
    for keys, flags in ((None, dict(exclude_diagonal=True)), (40, dict(use_key_negatives=False))):
        arrays, options = random_problem(8, 61, keys, groups=25, queue=45, filled=40, dim=dim)
        assert_equals_dense(arrays, 16, top_k=5, **options, **flags)


@pytest.mark.parametrize("dim", [3, 7])
def test_with_fewer_negatives_than_k_nothing_is_taken_from_queue_rows_that_are_not_filled(dim):
    arrays, options = random_problem(9, 61, 40, groups=25, queue=45, filled=3, dim=dim)
    options["queue"][3:] = np.nan
    assert_equals_dense(arrays, 16, top_k=5, use_key_negatives=False, **options)


@pytest.mark.parametrize("dim", [3, 7])
def test_with_fewer_negatives_than_k_nothing_is_taken_from_keys_that_are_none(dim):
    (z, _, _, _), options = random_problem(10, 64, dim=dim)  # whole strips: behind the keys there is no zero row
    ids = (np.arange(64) < 3).astype(np.int32)  # most rows have three negatives
    assert_equals_dense((z, z, ids, ids), 16, top_k=5, exclude_diagonal=True, **options)


def test_a_long_queue_is_read_in_panels_and_many_selected_columns_in_chunks(monkeypatch):
    monkeypatch.setattr("jaxcl.losses.columns.PANEL", 16)
    monkeypatch.setattr("jaxcl.losses.backward.GATHER_ELEMENTS", 64)
    monkeypatch.setattr("jaxcl.losses.backward.SCATTER_ELEMENTS", 64)
    monkeypatch.setattr("jaxcl.losses.columns.TOGETHER", 2)
    for queue, top_k in ((53, None), (48, 3), (53, 5)):
        arrays, options = random_problem(4, 9, 10, queue=queue, filled=queue - 3)
        assert_equals_dense(arrays, 4, top_k=top_k, **options)


@settings(max_examples=5, deadline=None)
@given(st.data())
def test_it_equals_the_definition_at_any_size(data):
    n = data.draw(st.integers(1, 33))
    m = data.draw(st.none() | st.integers(1, 33))
    queue = data.draw(st.sampled_from([0, 19]))
    arrays, options = random_problem(
        data.draw(st.integers(0, 99)), n, m, dim=data.draw(st.integers(2, 9)), queue=queue,
        filled=data.draw(st.integers(0, queue)), named=data.draw(st.booleans()), groups=data.draw(st.integers(1, 30)),
    )  # fmt: skip
    exclude = len(arrays[1]) == n and data.draw(st.booleans())
    bound = len(arrays[1]) - exclude + queue
    top_k = data.draw(st.none() | st.integers(1, bound)) if bound else None
    # in two dimensions cosines tie within rounding, and ties choose different gradients
    top_k = top_k if arrays[0].shape[1] > 2 else None
    assert_equals_dense(arrays, data.draw(st.integers(1, 40)), exclude_diagonal=exclude, top_k=top_k, **options)


@pytest.mark.parametrize("loss", [infonce, streaming_infonce])
def test_of_equal_negatives_the_lowest_column_is_chosen_keys_before_queue(loss):
    query, keys = np.array([[1.0, 0.0]], np.float32), np.ones((9, 2), np.float32)
    groups = np.arange(9, dtype=np.int32)
    queue = np.repeat([[1.0, 0.0], [1.0, 1.0]], [1, 8], axis=0).astype(np.float32)  # row 0 is nearest, the rest tie

    def total(keys):
        settings = dict(temperature=0.5, top_k=4, queue=queue, queue_groups=9 + groups)
        return loss(query, keys, groups[:1], groups, **settings).loss[0]

    gradient = jax.jit(jax.grad(total), compiler_options=FAST_COMPILE)(keys)
    assert np.flatnonzero(np.any(np.asarray(gradient) != 0, axis=1)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_embeddings_are_compared_in_float32(dtype):
    (z, _, ids, _), _ = random_problem(6, 26, groups=13)
    z = jnp.asarray(z, dtype)
    out, (gradient, _, _) = value_and_gradients(
        streaming_infonce, (z, z, ids, ids), exclude_diagonal=True, block_size=8, top_k=4
    )
    exact = infonce(
        z.astype(jnp.float32), z.astype(jnp.float32), ids, ids, temperature=0.3, exclude_diagonal=True, top_k=4
    )
    np.testing.assert_allclose(out.loss, exact.loss, rtol=1e-5, atol=1e-5)
    assert gradient.dtype == dtype
    assert np.all(np.isfinite(np.asarray(gradient, np.float32)))


def test_the_gradient_is_that_of_finite_differences():
    (z, _, ids, _), _ = random_problem(7, 9, groups=4, lowest=0)

    @jax.jit
    def total(z, temperature):
        settings = dict(temperature=temperature, exclude_diagonal=True, block_size=4, top_k=3)
        return jnp.sum(streaming_infonce(z, z, ids, ids, **settings).loss)

    check_grads(total, (z, jnp.float32(0.7)), order=1, modes=["rev"], atol=2e-2, rtol=2e-2, eps=1e-2)


@pytest.mark.parametrize("impl", ["strip", "column"])
def test_one_trace_serves_every_temperature_and_every_fill_of_the_queue(impl):
    arrays, options = random_problem(8, 12, 12, queue=8)
    traces = []

    @jax.jit
    def step(arrays, temperature, filled):
        traces.append(1)
        settings = dict(options, queue_filled=filled, temperature=temperature)
        return streaming_infonce(*arrays, top_k=3, block_size=5, impl=impl, **settings).loss

    full = step(arrays, 0.1, 8)
    assert len({tuple(np.asarray(x)) for x in (full, step(arrays, 0.2, 8), step(arrays, 0.1, 2))}) == 3
    assert len(traces) == 1


QUEUE, DIM = 3072, 32


@functools.cache
def compiled(n, top_k):
    """The compiled value and gradient of a self-contrastive loss with a queue, strips of 32 anchors."""

    def total(z, ids, temperature, bank):
        settings = dict(queue=bank, queue_groups=n + jnp.arange(QUEUE))
        out = streaming_infonce(
            z, z, ids, ids, temperature=temperature, exclude_diagonal=True, block_size=32, top_k=top_k, **settings
        )
        return jnp.sum(out.loss), out

    shapes = [
        jax.ShapeDtypeStruct((n, DIM), jnp.float32),
        jax.ShapeDtypeStruct((n,), jnp.int32),
        jax.ShapeDtypeStruct((), jnp.float32),
        jax.ShapeDtypeStruct((QUEUE, DIM), jnp.float16),
    ]
    return jax.jit(jax.value_and_grad(total, argnums=(0, 2), has_aux=True)).lower(*shapes).compile(FAST_COMPILE)


@pytest.mark.parametrize("top_k", [None, 16])
def test_temporary_memory_grows_linearly_with_the_batch(top_k):
    small, large = (compiled(n, top_k).memory_analysis().temp_size_in_bytes for n in (4096, 8192))
    assert large <= 2.1 * small
    assert large < 8192 * 8192 * 4 / 20


@pytest.mark.parametrize("top_k", [None, 16])
def test_no_array_of_the_compiled_program_is_n_by_m_or_larger(top_k):
    n = 4096
    text = compiled(n, top_k).as_text()
    shapes = re.findall(r"\b(?:f|s|u|bf|pred)\d*\[([\d,]+)\]", text)
    sizes = {int(np.prod([int(d) for d in shape.split(",")])) for shape in shapes}
    assert max(sizes) < n * 16 * DIM  # N × k × D; N × M, N × K and N × |P| × D with long runs are larger
    assert max(sizes) >= 32 * (n + QUEUE)  # one strip: the search does see the shapes


def test_products_for_long_runs_of_positives_stay_in_the_loop_that_short_runs_skip():
    """XLA takes out of a loop what does not change from turn to turn, and computes it though there is no turn."""
    z, ids = jax.ShapeDtypeStruct((64, DIM), jnp.float32), jax.ShapeDtypeStruct((64,), jnp.int32)

    def total(z, ids):
        options = dict(temperature=0.1, exclude_diagonal=True, block_size=16, top_k=4)
        return jnp.sum(streaming_infonce(z, z, ids, ids, **options).loss)

    text = jax.jit(jax.grad(total)).lower(z, ids).compile(FAST_COMPILE).as_text()
    products = [(name, loops) for name, loops in products_of(text) if "transpose" in name]
    assert len(products) == 3  # of the backward pass: scores of long runs, what queries and what keys get
    assert [name for name, loops in products if name.count("while/body") != loops] == []


def products_of(text):
    """Name of each product of a compiled program, and in how many loops it lies."""
    blocks = re.split(r"\n\n", text)
    bodies = {re.match(r"(?:ENTRY )?%?([\w.-]+)", block.strip()).group(1): block for block in blocks if "ROOT" in block}

    def visit(name, loops):
        for product in re.findall(r' dot\(.*op_name="([^"]*)"', bodies[name]):
            yield product, loops
        for kind, called in re.findall(r"(body|calls|to_apply)=%?([\w.-]+)", bodies[name]):
            yield from visit(called, loops + (kind == "body"))
        for branches in re.findall(r"branch_computations=\{([^}]*)\}", bodies[name]):
            for called in branches.split(", "):
                yield from visit(called.lstrip("%"), loops)

    yield from visit(re.search(r"^ENTRY %?([\w.-]+)", text, re.MULTILINE).group(1), 0)


def test_an_unknown_engine_and_an_impossible_block_are_errors():
    z, ids = np.ones((4, 3), np.float32), np.arange(4, dtype=np.int32)
    for options, message in (
        (dict(impl="rows"), "impl='rows' must be 'strip' or 'column'"),
        (dict(block_size=0), "block_size=0 must be an int of at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            streaming_infonce(z, z, ids, ids, temperature=0.1, **options)
