"""The loss compiled for a GPU that is not attached: its memory, and the kernels that XLA chose for it.

The text of a target says what the compiler must know of a GPU. Bytes and kernels are the compiler's; times are not to
be had this way, and the scratch memory of CUB's sort is missing, so that a sort here is another than on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from jaxcl.config import ConfigError
from jaxcl.planner.targets import CUDA_OPTIONS, cuda_command, has_cuda, read_card

MIB = 1 << 20
AXIS = "data"
NOTE = "One sort orders the groups; others select from whole rows or, over several devices, order columns by device."
SPREAD_BYTES = int(0.4 * 1024 * MIB)  # 0.4 GiB a device for N = 1,048,576 on 32; Inf-CL (CVPR 2025) needs 1.44 GB


class Compiled(NamedTuple):
    """One program of the table.

    Attributes:
        name: of the loss.
        N: embeddings.
        D: dimensions.
        k: negatives kept a row; None: all.
        dtype: of the embeddings.
        devices: over which rows and columns are spread.
        temp_bytes: scratch memory of a device.
        total_bytes: scratch, arguments and results of a device.
        kernels: name and number.
        compile_seconds: on this machine.
        bar: the most `temp_bytes` may be; None: there is no bar.
        met: whether it is.
    """

    name: str
    N: int
    D: int
    k: int | None
    dtype: str
    devices: int
    temp_bytes: int
    total_bytes: int
    kernels: dict[str, int]
    compile_seconds: float
    bar: int | None = None
    met: bool | None = None


def read_target(name: str) -> str:
    """The text that describes a GPU to the compiler.

    Args:
        name: one of `jaxcl.planner.targets.cards`, `h200` for short, or a `.txtpb` file.

    Returns:
        A GpuTargetConfigProto in text form.

    Raises:
        ConfigError: neither, or the compiler's plugin is missing.
    """
    text = read_card(name)
    if not has_cuda():
        raise ConfigError(f"--target={name} needs the compiler for CUDA: {cuda_command()}")
    return text


def compile_for(target: str, *, quick: bool = False) -> list[Compiled]:
    """Compiles the loss and its gradient, queries being keys.

    Args:
        target: what `read_target` returned.
        quick: small sizes.

    Returns:
        Programs in the order of the table: on one device, then spread over many.
    """
    from jaxcl.bench.programs import Variant
    from jaxcl.bench.selection import RAFT

    sizes, d, many, spread = ([256], 16, 4, 1024) if quick else ([8192, 65536], 512, 32, 1 << 20)
    mesh = _mesh(target, 1)
    rows = [_compile(Variant("dense", sizes[0], d), mesh)]
    for n in sizes:
        rows += [_compile(Variant("strip", n, d, k), mesh) for k in (None, 16, 64)]
        rows += [_compile(Variant("strip", n, d, 64), mesh, RAFT)] if RAFT else []
    mesh = _mesh(target, many)
    return rows + [_compile(Variant("strip", spread, d, k), mesh) for k in (64, None)]


def deviceless_table(rows: Iterable[Compiled]) -> str:
    """The programs as text.

    Args:
        rows: what `compile_for` returned.

    Returns:
        Several lines without a final newline.
    """
    lines = [f"{'forward + backward':<28}{'N':>9}{'D':>5}{'devices':>9}{'temp MiB':>10}{'total MiB':>11}   kernels"]
    for row in rows:
        kernels = ", ".join(f"{number} {kernel}" for kernel, number in row.kernels.items())
        memory = f"{row.temp_bytes / MIB:>10.1f}{row.total_bytes / MIB:>11.1f}"
        line = f"{row.name:<28}{row.N:>9}{row.D:>5}{row.devices:>9}{memory}   {kernels}"
        met = "" if row.bar is None else f"   [temp ≤ {row.bar / MIB:.0f} MiB: {'met' if row.met else 'NOT MET'}]"
        lines.append(line + met)
    return "\n".join(
        [
            *lines,
            NOTE,
        ]
    )


def _mesh(target: str, devices: int) -> Any:
    """Devices of the target along one axis."""
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import AxisType, Mesh

    found = topologies.get_topology_desc(
        platform="cuda", topology_name="", topology=f"1x1x{devices}", target_config=target
    )
    return Mesh(np.array(found.devices), (AXIS,), axis_types=(AxisType.Auto,))


def _compile(variant: Any, mesh: Any, options: Mapping[str, Any] | None = None) -> Compiled:
    """One program for the devices of a mesh; options: more of the compiler."""
    from jax.sharding import NamedSharding, PartitionSpec

    from jaxcl.bench.kernels import count_kernels
    from jaxcl.bench.measure import compile_program
    from jaxcl.bench.programs import function_of, shapes_of

    rows, whole = (NamedSharding(mesh, spec) for spec in (PartitionSpec(AXIS), PartitionSpec()))
    function = _spread(variant, mesh) if mesh.size > 1 else function_of(variant)
    program = compile_program(
        function,
        *shapes_of(variant),
        options={**CUDA_OPTIONS, **(options or {})},
        in_shardings=(whole, rows, rows),
        out_shardings=(whole, (rows,)),
    )
    assert program.temp_bytes is not None
    assert program.total_bytes is not None
    assert program.compile_seconds is not None
    limited = (mesh.size, variant.n) == (32, 1 << 20)
    return Compiled(
        variant.name + (", RAFT" if options else ""),
        variant.n,
        variant.d,
        variant.k,
        variant.dtype,
        mesh.size,
        program.temp_bytes,
        program.total_bytes,
        count_kernels(program.text),
        round(program.compile_seconds, 2),
        SPREAD_BYTES if limited else None,
        program.temp_bytes <= SPREAD_BYTES if limited else None,
    )


def _spread(variant: Any, mesh: Any) -> Callable[..., Any]:
    """The mean loss over all devices, and its gradient."""
    import jax

    from jaxcl.bench.programs import ENGINES
    from jaxcl.losses import mean_infonce

    options = ENGINES[variant.engine].options

    def mean(temperature: Any, groups: Any, z: Any) -> Any:
        settings = dict(temperature=temperature, top_k=variant.k, exclude_diagonal=True, **options)
        return mean_infonce(z, z, groups, groups, mesh=mesh, axis_name=AXIS, **settings)[0]

    return jax.value_and_grad(mean, argnums=(2,))
