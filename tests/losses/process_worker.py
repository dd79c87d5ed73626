"""One of several processes that compute a loss and its gradients together; fails where they are not those of one."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"

from jaxcl.mesh import join_processes

join_processes()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import AxisType, NamedSharding, PartitionSpec  # noqa: E402
from loss_reference import random_problem  # noqa: E402

from jaxcl.losses import mean_infonce, plan  # noqa: E402

(z, _, ids, _), options = random_problem(0, 24, groups=12, queue=40, filled=33)
mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
rows, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())


def mean(z, temperature, ids, bank, mesh=None):
    settings = dict(temperature=temperature, exclude_diagonal=True, top_k=4, queue_filled=options["queue_filled"])
    return mean_infonce(z, z, ids, ids, mesh=mesh, **settings, **bank)[0]


def place(x):
    return jax.make_array_from_callback(x.shape, rows, lambda index: x[index])


bank = {name: options[name] for name in ("queue", "queue_groups")}
expected = jax.jit(jax.value_and_grad(mean, argnums=(0, 1)))(z, jnp.float32(0.2), ids, bank)
for way, limit in (("gather", plan.GATHER_BYTES), ("ring", 0)):
    plan.GATHER_BYTES = limit
    step = jax.jit(
        jax.value_and_grad(lambda *a: mean(*a, mesh=mesh), argnums=(0, 1)), out_shardings=(whole, (whole, whole))
    )
    actual = step(place(z), jnp.float32(0.2), place(ids), jax.tree.map(place, bank))
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, e = np.asarray(a.addressable_data(0)), np.asarray(e)
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5 * np.abs(e).max(), err_msg=way)
print(f"equal on {jax.device_count()} devices of {jax.process_count()} processes", flush=True)
