"""A queue in blocks holds, row by row, what a queue in one piece holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcl import hostqueue, queue
from jaxcl.mesh import make_mesh

DIM = 3


def push(q, values, groups):
    """As the step does: each block that is touched, and no other."""
    size, each, batch = q.groups.shape[0], q.values[0].shape[0], values.shape[0]
    rows = hostqueue.as_rows(values, size, q.values[0].dtype)
    blocks = list(q.values)
    for number in hostqueue.touched(size, each, int(q.cursor), batch):
        blocks[number] = hostqueue.write(blocks[number], rows, q.cursor, number * each, size=size, batch=batch)
    return hostqueue.pushed(q, groups)._replace(values=tuple(blocks))


@pytest.mark.parametrize("rows", [1, 4, 5, 11, 64])
@pytest.mark.parametrize("batch", [1, 4, 11, 12, 29])
def test_pushes_leave_what_they_leave_in_a_queue_in_one_piece(rows, batch):
    size, rng = 11, np.random.default_rng(0)
    q, expected = jax.tree.map(jnp.asarray, hostqueue.init(size, DIM, rows=rows)), queue.init(size, DIM)
    for step in range(4):
        values = jnp.asarray(rng.normal(size=(batch, DIM)), jnp.float32)
        groups = jnp.arange(batch, dtype=jnp.int32) + 100 * step
        q, expected = push(q, values, groups), queue.push(expected, values, groups)
        np.testing.assert_array_equal(jnp.concatenate(q.values)[:size], expected.values)
        assert not jnp.concatenate(q.values)[size:].any()
        jax.tree.map(np.testing.assert_array_equal, q[1:], expected[1:])


def test_blocks_that_no_row_falls_into_are_not_touched():
    assert list(hostqueue.touched(12, 4, 3, 2)) == [0, 1]
    assert list(hostqueue.touched(12, 4, 11, 2)) == [0, 2]
    assert list(hostqueue.touched(12, 4, 5, 3)) == [1]
    assert list(hostqueue.touched(12, 4, 5, 40)) == [0, 1, 2]


def test_each_block_divides_over_the_devices_and_waits_on_the_host():
    mesh = make_mesh(2)
    q = hostqueue.init(11, DIM, devices=2, rows=3)
    assert {block.shape for block in q.values} == {(4, DIM)}
    there = jax.device_put(q, hostqueue.placed(q, mesh))
    assert {block.sharding.memory_kind for block in there.values} == {"pinned_host"}
    assert {shard.data.shape for block in there.values for shard in block.addressable_shards} == {(2, DIM)}
    assert {x.sharding.memory_kind for x in there[1:]} == {"device"}


def test_lengths_are_those_of_the_filled_rows():
    rows = jnp.array([[3.0, 4.0], [0.6, 0.8], [0.0, 9.0]])
    np.testing.assert_allclose(hostqueue.lengths(rows, jnp.int32(2)), [1.0, 5.0], rtol=1e-6)
    np.testing.assert_allclose(hostqueue.lengths(rows, jnp.int32(-4)), [1.0, 1.0])
