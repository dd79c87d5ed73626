"""A step whose queue waits on the host is the step whose queue does not."""

import jax
import numpy as np
import pytest
from hosted_runs import Run, a_batch, a_run, kinds, same

from jaxcl.blockwise import make_blockwise
from jaxcl.checkpoint import Checkpoints
from jaxcl.config import Config, ConfigError, resolve
from jaxcl.mesh import make_mesh
from jaxcl.methods.base import Method

MORE = pytest.mark.slow(reason="half a minute: the same of another method, or on two devices")
STEPS = 4  # 40 rows pushed to a queue of 24: it is part-filled, full, and turns


def close(a, b, tolerance=1e-5):
    def one(x, y):
        x, y = (np.asarray(v, np.float64) for v in (x, y))
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * max(np.abs(y).max(initial=0), 1e-2))

    jax.tree.map(one, a, b)


def whole(queue):
    """The rows of a queue on the host as those of one on the device."""
    return np.concatenate([np.asarray(block) for block in queue.values])[: queue.groups.shape[0]]


@pytest.mark.parametrize(
    ("method", "devices", "top_k", "rows"),
    [
        ("simclr", 1, 5, 7),
        pytest.param("moco_v2", 1, None, 12, marks=MORE),
        pytest.param("simclr", 1, None, 7, marks=MORE),
        pytest.param("supcon", 1, None, 24, marks=MORE),
        pytest.param("simclr", 2, 5, 8, marks=MORE),
        pytest.param("moco_v2", 2, 5, 8, marks=MORE),
    ],
)
def test_loss_gradient_and_queue_are_those_of_a_queue_on_the_device(method, devices, top_k, rows):
    given = dict(method=method, devices=devices, queue=24, top_k=top_k)
    there, here = a_run(rows=rows, **given), a_run(**given)
    state, expected = there.first(), here.first()
    for number in range(STEPS):
        state, metrics = there.steps(state, number, number + 1)
        expected, wanted = here.steps(expected, number, number + 1)
        assert metrics.keys() == wanted.keys()
        close(metrics, wanted)
        close(state._replace(queue=None), expected._replace(queue=None))
        close(whole(state.queue), expected.queue.values)
        same(state.queue[1:], expected.queue[1:])


@pytest.mark.parametrize("top_k", [5, None])
def test_a_queue_of_one_block_is_the_queue_on_the_device_bit_for_bit(top_k):
    given = dict(method="simclr", devices=1, queue=24, top_k=top_k)
    there, here = a_run(rows=24, **given), a_run(**given)
    (state, metrics), (expected, wanted) = (run.steps(run.first(), 0, STEPS) for run in (there, here))
    close(metrics, wanted)  # lengths of rows are measured in another program
    same(metrics["loss"], wanted["loss"])
    same(state._replace(queue=None), expected._replace(queue=None))
    same((whole(state.queue), *state.queue[1:]), tuple(expected.queue))


def test_where_blocks_wait_changes_no_bit(monkeypatch):
    given = dict(method="simclr", devices=1, queue=24, top_k=5, rows=7)
    on_host = a_run(**given)
    monkeypatch.setattr("jaxcl.hostqueue.on_host", lambda sharding: sharding)
    on_device = Run(**given)
    kept, expected = (run.steps(run.first(), 0, STEPS) for run in (on_device, on_host))
    assert kinds(kept[0].queue.values) != kinds(expected[0].queue.values)
    same(kept, expected)


def test_a_bad_step_pushes_nothing_and_a_run_goes_on_bitwise_from_a_checkpoint(tmp_path):
    run = a_run(rows=7, method="simclr", devices=1, queue=24, top_k=5)
    store = Checkpoints(tmp_path)
    state, _ = run.steps(run.first(), 0, 2)
    store.save(2, state, position={}, config={}, score=None)
    store.wait()
    restored, _ = store.restore(2, run.like)
    store.close()
    before = jax.device_get(state)
    poisoned = a_batch(7)
    poisoned["views"][3] = np.nan
    state, metrics = run.step(state, poisoned)
    assert metrics["skipped"] == 1
    assert metrics["queue_fill"] == 20 / 24
    same(state._replace(step=0), before._replace(step=0))
    restored = restored._replace(step=state.step + 0)
    same(run.steps(restored, 2, 4), run.steps(state, 2, 4))


@pytest.mark.parametrize("top_k", [5, None])
def test_no_program_is_handed_more_of_the_queue_than_a_block(top_k):
    rows, size = 7, 24
    run = a_run(rows=rows, method="simclr", devices=1, queue=size, top_k=top_k)
    block = rows * 6 * 4
    found = run.step.lowerable(a_batch(0))
    assert {"encode", "loss", "replay", "update", "queue visit", "queue pull", "queue write"} <= found.keys()
    for name, (program, given) in found.items():
        shapes = [x.shape for x in jax.tree.leaves(given)]
        blocks = shapes.count((rows, 6))
        assert blocks == (name in ("loss", "queue visit", "queue pull", "queue write")), name
        compiled = program.lower(*given).compile()
        others = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(given)) - blocks * block
        assert compiled.memory_analysis().argument_size_in_bytes <= others + block
        assert (size, 6) not in shapes


def test_two_blocks_at_most_are_on_the_device():
    run, seen = a_run(rows=2, method="simclr", devices=1, queue=24, top_k=5), []
    state, _ = run.steps(run.first(), 0, 1)
    bank = run.step._bank

    def watched(program):
        def call(*given):
            seen.append(sum(x.shape == (2, 6) and x.sharding.memory_kind == "device" for x in jax.live_arrays()))
            return program(*given)

        return call

    plain, bank.programs = bank.programs, type(bank.programs)(*map(watched, bank.programs))
    state, _ = run.step(state, a_batch(1))
    bank.programs = plain
    assert max(seen) <= 2, seen
    assert {block.sharding.memory_kind for block in state.queue.values} == {"pinned_host"}
    run.step(state, a_batch(2))
    # one program a kind serves every block and every step
    assert [program._cache_size() for program in bank.programs[1:]] == [1, 1, 1, 1, 1, 1]


def test_a_method_whose_queue_must_be_on_the_device_says_so():
    with pytest.raises(ConfigError, match=r"queue.offload = True does not work with method = 'distill'; 'simclr'"):
        make_blockwise(Config(method="distill"), Method(*(None,) * 4), mesh=make_mesh(1), like=None)


HOST = {"queue": {"size": 64, "offload": True}, "batch": {"mode": "cached", "micro": 8, "size": 16, "images": "host"}}


@pytest.mark.parametrize(
    ("group", "values", "name", "valid"),
    [
        ("batch", {"images": "device"}, "batch.images = 'device'", "'host'"),
        ("loss", {"impl": "dense"}, "loss.impl = 'dense'", "'strip'"),
        ("loss", {"top_k": 5, "skip_hardest": 0.1}, "loss.skip_hardest = 0.1", "0.0"),
        ("loss", {"top_k": 5, "tail": "sampled", "tail_samples": 2}, "loss.tail = 'sampled'", "'drop'"),
        ("queue", {"start": 8, "schedule": "linear"}, "queue.start = 8", "an empty one"),
        ("queue", {"sample": 8}, "queue.sample = 8", "an empty one"),
    ],
)
def test_settings_that_need_the_whole_queue_at_once_are_refused(group, values, name, valid):
    resolve(HOST)
    with pytest.raises(ConfigError, match=f"does not work with {name}; the only valid value is {valid}"):
        resolve(HOST | {group: HOST.get(group, {}) | values})


def test_without_a_queue_there_is_nothing_to_offload_whatever_else_is_set():
    with pytest.raises(ConfigError, match=r"queue.offload = True, but queue.size = 0; the only valid value is False"):
        resolve({"method": "byol", "queue": {"offload": True}})


def test_images_on_the_device_are_told_of_the_mode_that_has_them_on_the_host():
    with pytest.raises(ConfigError, match=r"the only valid value is 'host', with batch.mode = 'cached'"):
        resolve({"queue": {"size": 64, "offload": True}})
