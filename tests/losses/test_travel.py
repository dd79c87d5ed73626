"""The loss over several devices equals the definition on one, whichever way anchors and columns meet."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec
from loss_reference import FAST_COMPILE, assert_close, evaluate, findings, random_problem, value_and_gradients

from jaxcl.losses import infonce, mean_infonce, streaming_infonce
from jaxcl.losses.outputs import PER_ROW, InfoNCEOutput, Stats
from jaxcl.losses.plan import transport_for

ROWS, WHOLE = PartitionSpec("data"), PartitionSpec()
SPECS = InfoNCEOutput(ROWS, ROWS, Stats(**{n: ROWS if n in PER_ROW else WHOLE for n in Stats._fields}))


def mesh_of(devices):
    return jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])


def over_devices(devices):
    """The streamed loss with the arguments of the definition, its rows spread over devices."""

    def loss(queries, keys, query_groups, key_groups, *, temperature, **settings):
        rows = {n: settings.pop(n) for n in ("queue", "queue_groups", "positive_index") if n in settings}
        same = keys is queries

        def local(queries, keys, query_groups, key_groups, rows, temperature):
            keys = queries if same else keys
            return streaming_infonce(
                queries, keys, query_groups, key_groups, temperature=temperature, axis_name="data", **rows, **settings
            )

        specs = (ROWS, None if same else ROWS, ROWS, ROWS, ROWS, WHOLE)
        spread = jax.shard_map(local, mesh=mesh_of(devices), in_specs=specs, out_specs=SPECS)
        return spread(queries, None if same else keys, query_groups, key_groups, rows, temperature)

    return loss


def assert_equals_dense(devices, arrays, block_size=None, **options):
    expected, gradients = value_and_gradients(infonce, arrays, **options)
    out, actual = value_and_gradients(over_devices(devices), arrays, block_size=block_size, **options)
    assert_close((findings(out), actual), (findings(expected), gradients))


MORE = pytest.mark.slow(reason="ten seconds: as the case of two devices, compiled for eight")


@pytest.fixture(params=["gather", "ring"])
def way(request, monkeypatch):
    """Both ways to the columns of other devices; in a ring, sizes say which side travels."""
    if request.param == "ring":
        monkeypatch.setattr("jaxcl.losses.plan.GATHER_BYTES", 0)
    return request.param


@pytest.mark.parametrize(
    ("way", "devices", "top_k"),
    [("gather", 1, 3), ("ring", 2, 3), ("gather", 4, None), ("ring", 4, None), ("gather", 8, 40)],
    indirect=["way"],
)
def test_it_equals_the_definition_where_queries_are_keys(way, devices, top_k):
    arrays, _ = random_problem(0, 64, groups=24)
    assert_equals_dense(devices, arrays, block_size=5, top_k=top_k, exclude_diagonal=True)


@pytest.mark.parametrize(
    ("devices", "n", "m", "queue", "filled", "options"),
    [
        (2, 34, 26, 160, 29, dict(top_k=2, named=True)),
        (4, 20, 20, 64, 9, dict(top_k=3, use_key_negatives=False)),
        (8, 48, 16, 32, 31, dict()),
        pytest.param(8, 32, 32, 64, 50, dict(top_k=2, groups=2, exclude_diagonal=True), marks=MORE),
    ],
)
def test_it_equals_the_definition_with_separate_keys_and_a_queue(way, devices, n, m, queue, filled, options):
    named, groups = options.pop("named", False), options.pop("groups", 9)
    arrays, more = random_problem(1, n, m, queue=queue, filled=filled, named=named, groups=groups)
    assert_equals_dense(devices, arrays, **more, **options)


@pytest.mark.parametrize(("way", "devices"), [("gather", 2), ("ring", 4)], indirect=["way"])
def test_the_hardest_of_all_devices_are_left_out_and_not_those_of_each(way, devices):
    arrays, more = random_problem(6, 24, 32, queue=64, filled=40)
    assert_equals_dense(devices, arrays, top_k=3, skip_hardest=0.06, **more)


@pytest.mark.parametrize(("way", "devices"), [("gather", 2), ("ring", 8)], indirect=["way"])
def test_the_sampled_tail_draws_the_same_columns_on_any_number_of_devices(way, devices):
    arrays, more = random_problem(2, 32, 32, queue=160, filled=90)
    tail = dict(tail="sampled", tail_samples=3, tail_key=jax.random.key(5))
    assert_equals_dense(devices, arrays, top_k=4, **tail, **more)


def test_of_equal_negatives_the_lowest_column_is_chosen_across_hops(way):
    z = np.ones((16, 2), np.float32)
    ids = np.arange(16, dtype=np.int32)

    def total(keys, loss):
        return jnp.sum(loss(z, keys, ids, ids, temperature=0.5, top_k=3).loss[8:])

    step = jax.jit(jax.grad(total), static_argnums=1, compiler_options=FAST_COMPILE)
    # equal columns have no tangential gradient: turn the keys a little, alike for all
    keys = np.tile(np.array([[1.0, 0.3]], np.float32), (16, 1))
    moved = np.any(np.asarray(step(keys, over_devices(8))) != 0, axis=1)
    assert np.flatnonzero(moved)[:3].tolist() == [0, 1, 2]
    assert np.flatnonzero(moved)[3:].tolist() == list(range(8, 16))


def test_the_shorter_side_travels_and_small_problems_are_gathered():
    sizes = dict(devices=8, rows=2**15, keys=2**15, selected=64, dimensions=512, queue_bytes=2)
    assert transport_for(queue=0, **sizes) == "columns"
    assert transport_for(queue=2**16, **sizes) == "anchors"
    assert transport_for(queue=2**16, **(sizes | dict(rows=128))) == "gather"


QUEUE, DIM = 4200, 16


def program(devices, n):
    """A compiled loss and gradient with a queue, for one of several devices."""

    def total(z, ids, temperature, bank):
        out = over_devices(devices)(
            z, z, ids, ids, temperature=temperature, exclude_diagonal=True, block_size=16, top_k=4, queue=bank
        )
        return jnp.sum(out.loss)

    def argument(spec, *shape_and_type):
        return jax.ShapeDtypeStruct(*shape_and_type, sharding=jax.sharding.NamedSharding(mesh_of(devices), spec))

    shapes = (
        argument(ROWS, (n, DIM), jnp.float32),
        argument(ROWS, (n,), jnp.int32),
        argument(WHOLE, (), jnp.float32),
        argument(ROWS, (QUEUE, DIM), jnp.float16),
    )
    return jax.jit(jax.grad(total, argnums=(0, 2))).lower(*shapes).compile(FAST_COMPILE)


def test_no_device_holds_more_than_its_share_of_the_queue_and_no_scores_of_all_pairs(way):
    text = program(8, 512).as_text()
    shapes = [tuple(map(int, s.split(","))) for s in re.findall(r"\b(?:f|s|u|bf|pred)\d*\[([\d,]+)\]", text)]
    share = QUEUE // 8
    assert any(shape == (share, DIM) for shape in shapes)
    assert not any(QUEUE in shape for shape in shapes)
    assert max(np.prod(shape) for shape in shapes) < 512 * QUEUE / 8


def test_temporary_memory_of_a_device_grows_linearly_with_its_rows(way):
    small, large = (program(4, n).memory_analysis().temp_size_in_bytes for n in (2048, 4096))
    assert large <= 2.1 * small


def test_the_mean_is_that_of_one_device_where_rows_without_a_positive_are_unevenly_spread():
    arrays, options = random_problem(3, 32, queue=64, filled=41, groups=40)
    settings = dict(temperature=0.2, exclude_diagonal=True, top_k=5, **options)
    expected, _ = evaluate(mean_infonce, *arrays, impl="dense", **settings)
    mean, out = evaluate(mean_infonce, *arrays, mesh=mesh_of(8), **settings)
    assert 0 < int(out.valid.sum()) < 32
    np.testing.assert_allclose(mean, expected, rtol=1e-6)


def test_one_trace_serves_every_temperature_and_every_fill_of_the_queue():
    (z, _, ids, _), options = random_problem(4, 16, queue=32)
    traces = []

    @jax.jit
    def step(z, temperature, filled):
        traces.append(1)
        settings = dict(options, queue_filled=filled, temperature=temperature)
        return mean_infonce(z, z, ids, ids, top_k=3, exclude_diagonal=True, mesh=mesh_of(4), **settings)[0]

    assert len({float(x) for x in (step(z, 0.1, 32), step(z, 0.2, 32), step(z, 0.1, 7))}) == 3
    assert len(traces) == 1


def test_an_axis_that_is_not_there_or_over_which_nothing_varies_is_an_error():
    z, ids = np.eye(4, dtype=np.float32), np.arange(4, dtype=np.int32)
    with pytest.raises(ValueError, match="axis_name='rows' is not an axis of an enclosing"):
        streaming_infonce(z, z, ids, ids, temperature=0.1, axis_name="rows")

    def local(z):
        return streaming_infonce(z, z, ids, ids, temperature=0.1, axis_name="data").loss

    for spec, check in ((WHOLE, True), (ROWS, False)):
        with pytest.raises(ValueError, match="queries does not vary over axis_name='data'"):
            jax.shard_map(local, mesh=mesh_of(2), in_specs=spec, out_specs=ROWS, check_vma=check)(z)


@pytest.mark.slow(reason="two more processes, each of which compiles every way")
def test_two_processes_get_the_numbers_of_one_device():
    root = Path(__file__).parents[2]
    worker = Path(__file__).with_name("process_worker.py")
    command = ["bash", root / "launch" / "local.sh", "2", sys.executable, worker]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(root), str(root / "tests")]))
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"\[(\d)\] equal on 4 devices of 2 processes", done.stdout)) == ["0", "1"]
