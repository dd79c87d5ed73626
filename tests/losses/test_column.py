"""The column engine equals the dense definition with and without pruning, and what it skips is really skipped."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_reference import FAST_COMPILE, assert_close, evaluate, findings, random_problem, value_and_gradients

from jaxcl.losses import expected_skip_rate, infonce, streaming_infonce

COUNTS = (
    "rows_tested",
    "rows_skipped",
    "elements_selected",
    "subblocks_tested",
    "subblocks_skipped",
    "maxima_selected",
)
WAYS = [(None, 0), ("rows", 0), ("blocks", 3)]
column = functools.partial(streaming_infonce, impl="column")


def force(monkeypatch, way):
    """Prune this way, whatever pays."""
    monkeypatch.setattr("jaxcl.losses.pruning.pruning_for", lambda *sizes: way)


def assert_equals_dense(arrays, block_size, **options):
    """Value, stats and gradients."""
    (a, gradients), (e, expected) = (
        value_and_gradients(loss, arrays, **options, **more)
        for loss, more in ((column, {"block_size": block_size}), (infonce, {}))
    )
    assert_close((findings(a), gradients), (findings(e), expected))


CASES = [
    # n, m, queue, filled, block_size, top_k, way, more
    (37, None, 0, None, 64, 35, ("blocks", 3), dict(exclude_diagonal=True)),
    (13, 29, 0, None, 13, 3, ("blocks", 3), dict(named=True)),
    (29, 13, 100, 57, 6, 1, ("blocks", 4), {}),
    (29, 13, 100, 57, 6, 5, ("rows", 0), {}),
    (13, 13, 31, 30, None, 31, (None, 0), dict(use_key_negatives=False)),
    (61, 50, 40, 40, 16, 9, ("blocks", 2), dict(use_key_negatives=False, groups=2)),
    (61, None, 40, 39, 16, 40, (None, 0), dict(groups=3, exclude_diagonal=True)),
]


@pytest.mark.parametrize("case", CASES)
def test_it_equals_the_definition(monkeypatch, case):
    n, m, queue, filled, block_size, top_k, way, more = case
    force(monkeypatch, way)
    flags = {name: more[name] for name in more if name not in ("named", "groups")}
    named, groups = "named" in more, more.get("groups", 9)
    arrays, options = random_problem(3, n, m, queue=queue, filled=filled, named=named, groups=groups)
    assert_equals_dense(arrays, block_size, top_k=top_k, **options, **flags)


@pytest.mark.parametrize(("groups", "use_key_negatives"), [(2, True), (2, False), (30, True)])
def test_all_negatives_are_streamed_beside_few_and_many_positives(groups, use_key_negatives):
    arrays, options = random_problem(5, 61, 61, groups=groups, queue=40, filled=33)
    assert_equals_dense(arrays, 16, exclude_diagonal=True, use_key_negatives=use_key_negatives, **options)


def test_the_sampled_tail_is_that_of_the_definition(monkeypatch):
    force(monkeypatch, ("blocks", 3))
    arrays, options = random_problem(9, 41, 47, queue=20, filled=17, groups=30)
    more = dict(top_k=4, tail="sampled", tail_samples=5, tail_key=jax.random.key(3))
    assert_equals_dense(arrays, 9, **options, **more)


@pytest.mark.parametrize(("way", "block_size"), [((None, 0), 5), (("rows", 0), 6), (("blocks", 3), 40)])
def test_of_equal_negatives_the_lowest_column_is_chosen(monkeypatch, way, block_size):
    force(monkeypatch, way)
    query, keys = np.array([[1.0, 0.0]], np.float32), np.ones((23, 2), np.float32)
    keys[[4, 17]] = [1.0, 0.5]  # nearest; of the others, all alike, the lowest fill the rest
    groups, queue = np.arange(23, dtype=np.int32), np.ones((5, 2), np.float32)

    def total(keys):
        settings = dict(temperature=0.5, top_k=7, queue=queue, block_size=block_size)
        return column(query, keys, groups[:1], groups, **settings).loss[0]

    gradient = jax.jit(jax.grad(total), compiler_options=FAST_COMPILE)(keys)
    # key 0 is the positive
    assert np.flatnonzero(np.any(np.asarray(gradient) != 0, axis=1)).tolist() == [0, 1, 2, 3, 4, 5, 6, 17]


@pytest.mark.parametrize(("way", "top_k"), [(("rows", 0), 3), (("blocks", 3), 20)])
def test_ties_within_a_selection_and_at_its_edge_choose_the_columns_of_the_definition(monkeypatch, way, top_k):
    force(monkeypatch, way)
    rng = np.random.default_rng(2)
    n = 90
    # eight directions, so that every score has many equals, exactly
    z = np.eye(8, dtype=np.float32)[rng.integers(0, 8, n)] + np.eye(8, dtype=np.float32)[rng.integers(0, 8, n)]
    ids = np.arange(n, dtype=np.int32) // 2
    assert_equals_dense((z, z, ids, ids), 24, exclude_diagonal=True, top_k=top_k)


@pytest.mark.parametrize("way", WAYS)
def test_a_candidate_that_is_not_finite_makes_the_rows_that_could_select_it_nan(monkeypatch, way):
    force(monkeypatch, way)
    (z, keys, _, _), _ = random_problem(4, 11, 40, lowest=0)
    groups = np.arange(40, dtype=np.int32)
    keys = keys.copy()
    keys[33, 2] = np.nan  # after blocks in which every row has found its k
    out = evaluate(column, z, keys, groups[25:36], groups, temperature=0.1, top_k=2, block_size=9)
    expected = groups[25:36] != -1
    assert np.isnan(out.loss).tolist() == expected.tolist()
    assert int(out.stats.nonfinite) == 1
    groups = np.where(groups % 2, 1, 0).astype(np.int32)
    groups[33] = 0
    out = evaluate(column, z, keys, np.arange(11, dtype=np.int32) % 2, groups, temperature=0.1, top_k=2, block_size=9)
    assert np.all(np.isnan(out.loss))  # a positive of the even rows, a negative of the odd ones


def test_pruned_values_are_those_of_the_unpruned_engine_bit_for_bit(monkeypatch):
    arrays, options = random_problem(6, 50, 300, dim=16, queue=100, groups=200)
    outs = []
    for way in (None, 0), ("rows", 0), ("blocks", 8):
        force(monkeypatch, way)
        outs.append(evaluate(column, *arrays, temperature=0.1, top_k=5, block_size=64, **options))
    for out in outs[1:]:
        np.testing.assert_array_equal(out.loss, outs[0].loss)
        np.testing.assert_array_equal(out.stats.kth, outs[0].stats.kth)
    assert outs[1].stats.rows_skipped > 0 < outs[2].stats.subblocks_skipped


def test_the_share_of_rows_that_skip_a_whole_block_is_that_of_the_law(monkeypatch):
    force(monkeypatch, ("rows", 0))
    for n, block, k in ((2048, 128, 16), (500, 64, 3)):
        z = np.random.default_rng(n).normal(size=(n, 32)).astype(np.float32)
        ids = np.arange(n, dtype=np.int32)
        stats = evaluate(
            column, z, z, ids, ids, temperature=1.0, top_k=k, block_size=block, exclude_diagonal=True
        ).stats
        assert stats.rows_tested == n * -(-n // block)
        assert abs(stats.rows_skipped / stats.rows_tested - expected_skip_rate(n, block, k)) < 0.02
        merged = stats.rows_tested - stats.rows_skipped
        assert stats.elements_selected == merged * (block + k) - n * k
        assert stats.subblocks_tested == stats.maxima_selected == 0


@pytest.mark.parametrize(("block", "sub", "top_k"), [(1024, 16, 8), (256, 16, 8), (300, 24, 5)])
def test_at_most_k_sub_blocks_a_row_are_selected_from(monkeypatch, block, sub, top_k):
    force(monkeypatch, ("blocks", sub))
    n, m = 70, 1024
    arrays, _ = random_problem(8, n, m, dim=16, groups=m)
    stats = evaluate(column, *arrays, temperature=0.1, top_k=top_k, block_size=block).stats
    blocks = -(-m // block)
    maxima = stats.subblocks_tested / n  # J
    assert maxima == blocks * -(-block // sub)
    assert stats.subblocks_skipped / stats.subblocks_tested >= 1 - top_k / maxima
    assert stats.maxima_selected == n * (maxima + (top_k + 1) * (blocks - 1))  # each once, and those carried along
    assert stats.elements_selected <= n * top_k * sub
    assert stats.rows_skipped == 0


def test_rows_of_equal_scores_are_selected_again_and_counted(monkeypatch):
    force(monkeypatch, ("blocks", 4))
    z, ids = np.ones((9, 3), np.float32), np.arange(9, dtype=np.int32)
    stats = evaluate(column, z, np.ones((64, 3), np.float32), ids, np.arange(64), temperature=0.1, top_k=2).stats
    assert stats.elements_selected == 9 * (2 * 4 + 64)


def test_without_top_k_nothing_is_selected():
    arrays, _ = random_problem(8, 33, groups=9)
    stats = evaluate(column, *arrays, temperature=0.1, block_size=8).stats
    assert [int(getattr(stats, name)) for name in COUNTS] == [33 * 5, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("loss", [infonce, streaming_infonce])
def test_engines_without_blocks_say_that_they_skip_nothing(loss):
    arrays, options = random_problem(8, 33, 20, queue=7, groups=9)
    stats = evaluate(loss, *arrays, temperature=0.1, top_k=3, **options).stats
    assert [int(getattr(stats, name)) for name in COUNTS] == [33, 0, 33 * 27, 0, 0, 0]


DIM, BLOCK = 32, 512


@functools.cache
def compiled(n, top_k):
    """The compiled value and gradient of a self-contrastive loss in blocks of 512 columns."""

    def total(z, ids, temperature):
        settings = dict(temperature=temperature, exclude_diagonal=True, block_size=BLOCK, top_k=top_k)
        out = column(z, z, ids, ids, **settings)
        return jnp.sum(out.loss), out

    shapes = [jax.ShapeDtypeStruct(*x) for x in (((n, DIM), jnp.float32), ((n,), jnp.int32), ((), jnp.float32))]
    return jax.jit(jax.value_and_grad(total, argnums=(0, 2), has_aux=True)).lower(*shapes).compile(FAST_COMPILE)


def test_temporary_memory_grows_linearly_with_the_batch():
    small, large = (compiled(n, 4).memory_analysis().temp_size_in_bytes for n in (4096, 8192))
    assert large <= 2.1 * small
    assert large < 8192 * 8192 * 4 / 20


@pytest.mark.parametrize("top_k", [None, 4])
def test_no_array_of_the_compiled_program_is_n_by_m(top_k):
    text = compiled(4096, top_k).as_text()
    shapes = re.findall(r"\b(?:f|s|u|bf|pred)\d*\[([\d,]+)\]", text)
    sizes = {int(np.prod([int(d) for d in shape.split(",")])) for shape in shapes}
    assert max(sizes) <= 4096 * 4096 / 16  # a strip of the backward pass, where all columns count
    assert max(sizes) >= BLOCK * 256  # one block of a tile: the search does see the shapes


@pytest.mark.parametrize(("way", "transport"), [(("rows", 0), "columns"), (("blocks", 3), "gather")])
def test_devices_that_prune_find_what_one_finds(monkeypatch, way, transport):
    force(monkeypatch, way)
    monkeypatch.setattr("jaxcl.losses.streaming.transport_for", lambda **sizes: transport)
    arrays, options = random_problem(7, 44, queue=36, filled=31, groups=30)
    settings = dict(temperature=0.2, top_k=5, block_size=7, exclude_diagonal=True)
    one = evaluate(infonce, *arrays, **{name: x for name, x in settings.items() if name != "block_size"}, **options)
    filled = options.pop("queue_filled")

    def local(queries, groups, rows):
        return column(queries, queries, groups, groups, axis_name="data", queue_filled=filled, **rows, **settings).loss

    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.PartitionSpec("data")
    spread = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=rows, out_specs=rows), compiler_options=FAST_COMPILE)
    assert_close(spread(arrays[0], arrays[2], options), one.loss)
