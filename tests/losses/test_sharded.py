"""The mean over valid rows, the same on one device and on eight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from loss_reference import FAST_COMPILE, assert_close, evaluate, random_problem

from jaxcl.losses import mean_infonce


def test_the_mean_counts_only_queries_with_a_positive():
    arrays, options = random_problem(0, 12, 12, groups=20)
    loss, out = evaluate(mean_infonce, *arrays, temperature=0.2, impl="dense", block_size=4, **options)
    assert 0 < int(out.valid.sum()) < 12
    np.testing.assert_allclose(loss, np.asarray(out.loss)[np.asarray(out.valid)].mean(), rtol=1e-6)
    np.testing.assert_allclose(
        loss, evaluate(mean_infonce, *arrays, temperature=0.2, block_size=4, **options)[0], rtol=1e-6
    )


def test_a_batch_without_any_positive_has_mean_zero():
    nobody = np.full(3, -1, np.int32)
    loss, _ = evaluate(mean_infonce, np.eye(3), np.eye(3), nobody, nobody, temperature=0.2)
    assert float(loss) == 0


def test_an_unknown_engine_is_an_error():
    with pytest.raises(ValueError, match="impl='fast'"):
        mean_infonce(np.eye(3), np.eye(3), np.arange(3), np.arange(3), temperature=0.2, impl="fast")


@pytest.mark.parametrize("top_k", [None, 5])
def test_loss_and_gradients_on_eight_devices_are_those_of_one(top_k):
    (z, _, ids, _), options = random_problem(9, 64, groups=24, queue=48, filled=41)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    data = NamedSharding(mesh, PartitionSpec("data"))

    def mean(z, temperature, ids, queue, queue_groups):
        return mean_infonce(
            z, z, ids, ids, temperature=temperature, top_k=top_k, exclude_diagonal=True, queue=queue,
            queue_groups=queue_groups, queue_filled=options["queue_filled"], block_size=16,
        )[0]  # fmt: skip

    step = jax.jit(jax.value_and_grad(mean, argnums=(0, 1)), compiler_options=FAST_COMPILE)
    arrays = (ids, options["queue"], options["queue_groups"])
    z_many, *many = jax.device_put((z, *arrays), data)
    assert_close(step(z_many, jnp.float32(0.2), *many), step(z, jnp.float32(0.2), *arrays))


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])  # jax.make_mesh has explicit axes by default
def test_a_mesh_of_either_kind_of_axes_takes_arrays_wherever_they_are(kind, placed):
    (z, _, ids, _), options = random_problem(9, 64, groups=24, queue=48, filled=41)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,))
    settings = dict(temperature=0.2, top_k=5, exclude_diagonal=True, queue_filled=options["queue_filled"])

    def mean(z, ids, queue, groups, mesh=None):
        return mean_infonce(z, z, ids, ids, queue=queue, queue_groups=groups, mesh=mesh, **settings)[0]

    arrays = z, ids, options["queue"], options["queue_groups"]
    expected = jax.value_and_grad(mean)(*arrays)
    given = jax.device_put(arrays, NamedSharding(mesh, PartitionSpec("data"))) if placed else arrays
    step = jax.jit(jax.value_and_grad(lambda *a: mean(*a, mesh=mesh)), compiler_options=FAST_COMPILE)
    assert_close(step(*given), expected)


def test_rows_that_devices_do_not_divide_and_an_unknown_axis_are_errors_that_name_what_would_do():
    mesh, ids = jax.make_mesh((8,), ("data",)), np.arange(60) // 2
    with pytest.raises(ValueError, match=r"queries has 60 rows.* 8 devices .*axis_name='data'.* 56 and 64"):
        mean_infonce(np.ones((60, 3)), np.ones((60, 3)), ids, ids, temperature=0.2, mesh=mesh)
    with pytest.raises(ValueError, match="axis_name='date' is no axis of mesh; it has 'data'"):
        mean_infonce(np.eye(8), np.eye(8), np.arange(8), np.arange(8), temperature=0.2, mesh=mesh, axis_name="date")
