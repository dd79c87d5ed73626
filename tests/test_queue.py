"""The ring of embeddings against a deque, row by row."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxcl import queue


def pushed(size, sizes, dim=3, dtype=jnp.float32, q=None):
    """A queue after pushes of these batch sizes, and the deque beside it: (group, unit vector)."""
    rng, ring, step = np.random.default_rng(0), deque(maxlen=size), jax.jit(queue.push)
    q = queue.init(size, dim, dtype) if q is None else q
    first = 0
    for batch in sizes:
        values = rng.normal(size=(batch, dim)).astype(np.float32)
        groups = np.arange(first, first + batch, dtype=np.int32)
        first += batch
        q = step(q, values, groups)
        ring.extend(zip(groups, values / np.linalg.norm(values, axis=1, keepdims=True), strict=True))
    return q, ring


def in_order(q):
    """Groups and values, oldest first."""
    size, filled = len(q.groups), int(q.filled)
    rows = (int(q.cursor) - filled + np.arange(filled)) % size
    return np.asarray(q.groups)[rows], np.asarray(q.values, np.float32)[rows]


def assert_holds(q, ring, tolerance=1e-6):
    groups, values = in_order(q)
    assert groups.tolist() == [group for group, _ in ring]
    np.testing.assert_allclose(values, np.array([value for _, value in ring]), atol=tolerance)


def test_fifty_ragged_pushes_leave_what_a_deque_holds_after_each():
    sizes = [5, 1, 7, 10, 3] * 10
    q, ring, step = queue.init(10, 3, jnp.float32), deque(maxlen=10), jax.jit(queue.push)
    rng = np.random.default_rng(0)
    for number, batch in enumerate(sizes):
        values = rng.normal(size=(batch, 3)).astype(np.float32)
        groups = number * 100 + np.arange(batch, dtype=np.int32)
        q = step(q, values, groups)
        ring.extend(zip(groups, values / np.linalg.norm(values, axis=1, keepdims=True), strict=True))
        assert int(q.filled) == len(ring)
        assert_holds(q, ring)


@pytest.mark.parametrize("sizes", [[23], [4, 23], [10], [4, 33, 2], [0, 3]])
def test_of_a_batch_larger_than_the_queue_the_last_rows_remain(sizes):
    assert_holds(*pushed(10, sizes))


def test_a_new_queue_is_empty_and_says_so():
    q = queue.init(6, 4)
    assert q.values.dtype == jnp.float16
    assert q.values.shape == (6, 4)
    assert q.groups.tolist() == [-1] * 6
    assert int(q.filled) == int(q.cursor) == 0
    q = queue.push(q, np.ones((2, 4), np.float32), np.arange(2))
    assert q.groups.tolist() == [0, 1, -1, -1, -1, -1]
    assert {x.dtype for x in (q.groups, q.cursor, q.filled)} == {jnp.dtype("int32")}


def test_rows_are_normalised_in_float32_before_they_are_stored():
    values = np.full((3, 2048), 6.0, np.float16)  # the sum of squares overflows float16
    values[2] = 0
    q = queue.push(queue.init(3, 2048), values, np.arange(3))
    norms = np.linalg.norm(np.asarray(q.values, np.float32), axis=1)
    np.testing.assert_allclose(norms, [1, 1, 0], atol=1e-3)


def test_no_gradient_flows_into_what_is_pushed():
    def total(values):
        return queue.push(queue.init(4, 3, jnp.float32), values, jnp.arange(2)).values.sum()

    assert not np.any(jax.grad(total)(jnp.ones((2, 3))))


@pytest.mark.parametrize("sizes", [[3], [8, 8, 5], [10, 10]])
@pytest.mark.parametrize("new_size", [1, 4, 10, 17])
def test_resizing_keeps_the_newest_rows_and_the_order(sizes, new_size):
    q, ring = pushed(10, sizes)
    small = queue.resize(q, new_size)
    kept = deque(ring, maxlen=new_size)
    assert_holds(small, kept)
    filled = int(small.filled)
    assert small.groups.tolist() == [group for group, _ in kept] + [-1] * (new_size - filled)
    assert not np.any(np.asarray(small.values)[filled:])
    kept.append((7000, np.array([1.0, 0, 0])))
    assert_holds(queue.push(small, np.array([[2.0, 0, 0]], np.float32), np.array([7000])), kept)


@pytest.mark.parametrize("sizes", [[3], [8, 8, 5], [10, 10], [4, 33, 2]])
def test_the_newest_rows_are_those_that_a_shorter_deque_would_hold_for_any_count_in_one_trace(sizes):
    q, ring = pushed(10, sizes)
    newest = jax.jit(queue.newest)
    for count in (0, 1, 4, 9, 10, 99):
        view = newest(q, count)
        kept = list(ring)[-count:] if count else []
        filled = int(view.filled)
        assert view.values.shape == q.values.shape
        assert filled == len(kept)
        assert view.groups.tolist() == [group for group, _ in kept] + [-1] * (10 - filled)
        if kept:
            np.testing.assert_allclose(view.values[:filled], [value for _, value in kept], atol=1e-6)
        assert not np.any(np.asarray(view.values)[filled:])
    assert newest._cache_size() == 1


def test_a_sample_holds_different_valid_rows():
    q, _ = pushed(40, [25])
    draw = jax.jit(queue.sample, static_argnums=2)
    values, groups = draw(q, jax.random.key(0), 25)
    assert sorted(groups.tolist()) == list(range(25))
    np.testing.assert_array_equal(values, np.asarray(q.values)[np.asarray(groups)])
    few = [set(draw(q, jax.random.key(seed), 5)[1].tolist()) for seed in range(40)]
    assert all(len(groups) == 5 for groups in few)
    assert set.union(*few) == set(range(25))


def test_a_sample_of_more_than_is_filled_puts_the_real_rows_first_and_marks_the_rest():
    q, _ = pushed(8, [3])
    values, groups = queue.sample(q, jax.random.key(1), 6)
    assert sorted(groups.tolist()[:3]) == [0, 1, 2]
    assert groups.tolist()[3:] == [-1] * 3
    assert not np.any(np.asarray(values)[3:])


def test_it_is_the_same_on_eight_devices_as_on_one():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rows, scalar = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    placed = jax.device_put(queue.init(16, 3), queue.Queue(rows, rows, scalar, scalar))
    sizes = [8, 5, 16, 3, 24, 1]
    one, many = pushed(16, sizes, dtype=jnp.float16)[0], pushed(16, sizes, q=placed)[0]
    jax.tree.map(np.testing.assert_array_equal, one, many)
    jax.tree.map(np.testing.assert_array_equal, queue.resize(one, 8), queue.resize(many, 8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: queue.init(0, 3), "size=0 must be an int of at least 1"),
        (lambda: queue.init(3, True), "dim=True"),
        (lambda: queue.init(3, 3, jnp.int8), "dtype=int8 must be a float type"),
        (
            lambda: queue.push(queue.init(4, 3), np.ones((2, 5)), np.arange(2)),
            r"values has shape \(2, 5\).*\[rows, 3\]",
        ),
        (lambda: queue.push(queue.init(4, 3), np.ones((2, 3), int), np.arange(2)), "values has dtype int32"),
        (lambda: queue.push(queue.init(4, 3), np.ones((2, 3)), np.arange(3)), r"groups has shape \(3,\).*\(2,\)"),
        (lambda: queue.push(queue.init(4, 3), np.ones((2, 3)), np.ones(2)), "groups .* float"),
        (lambda: queue.resize(queue.init(4, 3), 0), "new_size=0"),
        (lambda: queue.sample(queue.init(4, 3), jax.random.key(0), 5), "num_negatives=5 must be at most 4"),
        (lambda: queue.sample(queue.init(4, 3), jax.random.key(0), 0), "num_negatives=0"),
    ],
)
def test_a_wrong_argument_is_an_error_that_names_it(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_lengths_of_valid_rows_are_near_one_and_a_damaged_row_is_seen():
    q = queue.push(queue.init(5, 3), jax.random.normal(jax.random.key(0), (3, 3)), jnp.arange(3))
    np.testing.assert_allclose(queue.norms(q), 1, atol=1e-3)
    np.testing.assert_allclose(queue.norms(q._replace(values=q.values.at[1].set(0)))[0], 0)
    np.testing.assert_allclose(queue.norms(q._replace(values=q.values.at[4].set(7))), 1, atol=1e-3)  # not filled
    assert [float(x) for x in queue.norms(queue.init(4, 2))] == [1, 1]


def test_random_rows_are_a_queue_of_their_own_and_a_part_filled_one_counts_what_it_has():
    q = queue.push(queue.init(8, 3, jnp.float32), jnp.eye(3)[:2], jnp.array([5, 6]))
    some = queue.drawn(q, jax.random.key(0), 4)
    assert int(some.filled) == 2
    assert sorted(some.groups.tolist()) == [-1, -1, 5, 6]
    full = queue.push(queue.init(8, 3, jnp.float32), jax.random.normal(jax.random.key(1), (8, 3)), jnp.arange(8))
    some = queue.drawn(full, jax.random.key(0), 4)
    assert int(some.filled) == 4
    assert len(set(some.groups.tolist())) == 4


@pytest.mark.parametrize("batch", [3, 10, 23])
def test_a_push_that_is_not_to_be_changes_no_bit(batch):
    q, _ = pushed(10, [4, 9])
    step = jax.jit(lambda q, values, groups, when: queue.push(q, values, groups, when=when))
    values, groups = np.full((batch, 3), np.nan, np.float32), np.arange(batch, dtype=np.int32)
    jax.tree.map(np.testing.assert_array_equal, step(q, values, groups, False), q)
    values = np.ones((batch, 3), np.float32)
    done = queue.push(q, values, groups)
    jax.tree.map(np.testing.assert_array_equal, step(q, values, groups, True), done)
    assert int(done.cursor) == (int(q.cursor) + batch) % 10


def test_whether_to_push_takes_no_second_queue():
    size, dim = 4096, 64
    q = jax.eval_shape(lambda: queue.init(size, dim))
    step = jax.jit(lambda q, values, groups, when: queue.push(q, values, groups, when=when), donate_argnums=0)
    shapes = jax.ShapeDtypeStruct((8, dim), jnp.float32), jax.ShapeDtypeStruct((8,), jnp.int32)
    memory = step.lower(q, *shapes, jax.ShapeDtypeStruct((), jnp.bool_)).compile().memory_analysis()
    assert memory.temp_size_in_bytes < size * dim
