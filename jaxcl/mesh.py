"""The device mesh, and which axis of an array lies along which of its axes."""

from __future__ import annotations

import os
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

DATA = "data"
MODEL = "model"


def make_mesh(data: int, model: int = 1, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of `data` × `model` devices.

    Args:
        data: devices that share the batch and the queue.
        model: devices that share the parameters.
        devices: which ones; None: the first `data * model` of `jax.devices()`.

    Returns:
        A mesh with automatic axes, so that plain arrays and `jax.shard_map` both work on it.

    Raises:
        ValueError: fewer devices than asked for.

    >>> make_mesh(1).axis_names
    ('data', 'model')
    """
    chosen = list(jax.devices() if devices is None else devices)
    if len(chosen) < data * model:
        raise ValueError(
            f"a mesh of data = {data} x model = {model} needs {data * model} devices; there are {len(chosen)}"
        )
    return jax.make_mesh((data, model), (DATA, MODEL), axis_types=(AxisType.Auto,) * 2, devices=chosen[: data * model])


def replicated(mesh: Mesh) -> NamedSharding:
    """The same array on every device.

    >>> tuple(replicated(make_mesh(1)).spec)
    ()
    """
    return NamedSharding(mesh, PartitionSpec())


def along_data(mesh: Mesh) -> NamedSharding:
    """The first axis split over `data`: batches and the rows of the queue.

    >>> tuple(along_data(make_mesh(1)).spec)
    ('data',)
    """
    return NamedSharding(mesh, PartitionSpec(DATA))


def on_host(sharding: NamedSharding) -> NamedSharding:
    """The same split in the pinned memory of the hosts, from which a device copies without a detour.

    >>> on_host(replicated(make_mesh(1))).memory_kind
    'pinned_host'
    """
    return sharding.with_memory_kind("pinned_host")


def on_device(sharding: NamedSharding) -> NamedSharding:
    """The same split in the memory of the devices.

    >>> on_device(on_host(replicated(make_mesh(1)))).memory_kind
    'device'
    """
    return sharding.with_memory_kind("device")


def parameter_spec(shape: Sequence[int], model: int) -> PartitionSpec:
    """Where a parameter is split over `model`: along its largest axis that divides, or nowhere.

    Args:
        shape: of the parameter.
        model: devices along `model`.

    Returns:
        The spec; small vectors (under 4,096 numbers) stay whole, since moving them costs more than keeping them.

    >>> tuple(parameter_spec((64, 256), 2))
    (None, 'model')
    """
    if model == 1 or np.prod(shape) < 4096:
        return PartitionSpec()
    axes = [axis for axis, size in enumerate(shape) if size % model == 0]
    if not axes:
        return PartitionSpec()
    longest = max(axes, key=lambda axis: shape[axis])
    return PartitionSpec(*(MODEL if axis == longest else None for axis in range(longest + 1)))


def join_processes() -> None:
    """Makes one program of several processes; call it before anything else touches a device.

    `jax.distributed.initialize` finds SLURM, Open MPI and Kubernetes by itself; `launch/local.sh` says the rest in the
    environment: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.
    """
    count, number = (os.environ.get(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
    jax.distributed.initialize(
        os.environ.get("JAX_COORDINATOR_ADDRESS"),
        None if count is None else int(count),
        None if number is None else int(number),
    )
