"""The devices that a step can be compiled for without having one: their names, public rates and compilers.

The text of a CUDA card says what the compiler must know of it; memory is what a driver reports, which is less than what
is printed on the box. Rates are those of the vendors' data sheets: dense, without sparsity, float32 accumulation.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from jaxcl.config import ConfigError, suggestion

GIB = 1 << 30
SHARE = 0.75  # of a CUDA card's memory JAX reserves, unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise
DEFAULT = "a100-80gb"
CPU = "cpu"
NEEDED = ("device_memory_size", "major", "memory_bandwidth")  # of a card's file, for a plan
ALIASES = {"h200": "h200-141gb"}
# nothing can be timed on a device that is not there, and Triton's products are chosen by timing alone
CUDA_OPTIONS = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
# float32: without matrix units; tf32: what JAX takes for float32 products where a card has it
TERA = 1e12


class Rates(NamedTuple):
    """What a device does in a second.

    Attributes:
        products: floating-point operations of matrix products, by the name of a type; "tf32" where it has that.
        memory: bytes read or written.
        host: bytes from the host.
    """

    products: Mapping[str, float]
    memory: float
    host: float


class Target(NamedTuple):
    """A device to plan for.

    Attributes:
        name: as given to `--target`.
        kind: cuda, tpu or cpu: whose compiler is used.
        memory_bytes: of one device.
        share: of these, what a program may use.
        rates: None: not known.
        text: for the CUDA compiler, or the topology of a TPU.
        bfloat16: whether it has matrix units for that type.
        note: what a reader must know; empty: nothing.
    """

    name: str
    kind: str
    memory_bytes: int
    share: float
    rates: Rates | None
    text: str = ""
    bfloat16: bool = True
    note: str = ""

    @property
    def limit_bytes(self) -> int:
        """What a program may use of one device."""
        return int(self.memory_bytes * self.share)

    @property
    def platform(self) -> str:
        """Whose operations it would run, whoever's compiler is used."""
        return CPU if self.name == CPU else "tpu" if self.name in _TPUS else "cuda"

    @property
    def options(self) -> dict[str, Any]:
        """Of the compiler."""
        return dict(CUDA_OPTIONS) if self.kind == "cuda" else {}


class _Tpu(NamedTuple):
    """A TPU: the smallest topology that the compiler knows, and its public rates."""

    topology: str
    gib: float
    tflops: float
    gb: float


_TPUS = {
    "v5e": _Tpu("v5e:{}x{}", 15.75, 197, 819),
    "v5p": _Tpu("v5p:{}x{}x1", 95, 459, 2765),
    "v6e": _Tpu("v6e:{}x{}", 31.25, 918, 1640),
}


class _Card(NamedTuple):
    """Public rates of a CUDA card: TFLOP/s by type, GB/s from the host."""

    half: float
    tf32: float
    float32: float
    host: float


_CARDS = {
    "rtx3060-12gb": _Card(25.6, 12.8, 12.7, 32),
    "rtx3070-8gb": _Card(40.6, 20.3, 20.3, 32),
    "rtx3090-24gb": _Card(71, 35.6, 35.6, 32),
    "t4-16gb": _Card(65, 0, 8.1, 16),
    "a100-40gb": _Card(312, 156, 19.5, 32),
    "a100-80gb": _Card(312, 156, 19.5, 32),
    "h100-80gb": _Card(989, 495, 67, 64),
    "h200-141gb": _Card(989, 495, 67, 64),
}


def cards() -> list[str]:
    """Names of the CUDA cards that come with the package.

    >>> len(cards()), cards()[0]
    (8, 'a100-40gb')
    """
    return sorted(_CARDS)


def known_targets() -> list[str]:
    """All names that `--target` takes, besides a `.txtpb` file.

    >>> known_targets()[-3:]
    ['v5p', 'v6e', 'cpu']
    """
    return [*cards(), *_TPUS, CPU]


def read_card(name: str) -> str:
    """The text that describes a CUDA card to the compiler.

    Args:
        name: one of `cards`, a short name of one, or a `.txtpb` file.

    Returns:
        A GpuTargetConfigProto in text form.

    Raises:
        ConfigError: neither.
    """
    name = ALIASES.get(name, name)
    if name in _CARDS:
        return resources.files("jaxcl.planner").joinpath("targets", f"{name}.txtpb").read_text()
    if name.endswith(".txtpb") and Path(name).is_file():
        return _checked(Path(name))
    raise ConfigError(f"--target={name} must be one of {', '.join(cards())}, or a .txtpb file that exists")


def _checked(file: Path) -> str:
    """The text of a card's file that has what a plan needs."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--target={file} cannot be read as text: {error}") from error
    missing = [field for field in NEEDED if field not in _numbers(text)]
    if missing:
        raise ConfigError(
            f"--target={file} is no GpuTargetConfigProto in text form: it has no {', '.join(missing)}; "
            "jaxcl/planner/targets has some"
        )
    return text


def find_target(name: str | None) -> Target:
    """The device that a name stands for.

    Args:
        name: one of `known_targets`, a `.txtpb` file, or None: `DEFAULT`, or this CPU without its compiler.

    Returns:
        The target; where its compiler is not installed, with the kind of the CPU's and a note that says so.

    Raises:
        ConfigError: no such target; the known ones are listed.
    """
    if name == CPU:
        return _this_cpu("")
    if name == "":
        raise ConfigError(f"--target= is empty; known: {', '.join(known_targets())}, or a .txtpb file")
    chosen = ALIASES.get(name or DEFAULT, name or DEFAULT)
    if chosen in _TPUS:
        return _tpu(chosen)
    if chosen not in _CARDS and not chosen.endswith(".txtpb"):
        known = known_targets()
        near = suggestion(chosen, known).partition("; known")[0]
        raise ConfigError(
            f"--target={chosen} is unknown{near.rstrip('?')}; known: {', '.join(known)}, or a .txtpb file"
        )
    text = read_card(chosen)
    if name is None and not has_cuda():
        return _this_cpu(f"no compiler for a GPU is installed, so this is for the CPU: {cuda_command()}")
    kind, note = ("cuda", "") if has_cuda() else ("cpu", _missing(chosen, cuda_command()))
    if name is None:
        note = f"no --target: {DEFAULT}"
    rate, numbers = _CARDS.get(chosen), _numbers(text)
    rates = None
    if rate:
        products = {"float16": rate.half, "float32": rate.float32, "tf32": rate.tf32 or rate.float32}
        products["bfloat16"] = rate.half if numbers["major"] >= 8 else rate.float32
        rates = Rates({k: v * TERA for k, v in products.items()}, numbers["memory_bandwidth"], rate.host * 1e9)
    memory, bfloat16 = int(numbers["device_memory_size"]), numbers["major"] >= 8
    return Target(chosen, kind, memory, cuda_share(), rates, text, bfloat16, note)


def cuda_share() -> float:
    """The share of a card that JAX reserves.

    Returns:
        What the environment says, or 0.75.

    Raises:
        ConfigError: the environment says something else than a share.
    """
    text = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", str(SHARE))
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise ConfigError(f"XLA_PYTHON_CLIENT_MEM_FRACTION={text} is not a share between 0 and 1")
    return share


def has_cuda() -> bool:
    """Whether a CUDA plugin of JAX is installed."""
    names = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
    return importlib.util.find_spec("jax_plugins") is not None and any(map(importlib.util.find_spec, names))


def has_tpu() -> bool:
    """Whether libtpu is installed."""
    return importlib.util.find_spec("libtpu") is not None


def cuda_command() -> str:
    """How to install the compiler for CUDA cards beside the JAX that is here."""
    version = importlib.metadata.version("jaxlib")
    return f"pip install --no-deps jax-cuda12-plugin=={version} jax-cuda12-pjrt=={version}"


def use_cpu() -> None:
    """Keeps JAX from looking for a device of its own; only before JAX is loaded."""
    os.environ["JAX_PLATFORMS"] = "cpu"  # whatever it says: a GPU that is here must not be taken
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")


def devices_of(target: Target, count: int) -> Sequence[Any]:
    """Some devices of a target, to lower a program for.

    Args:
        target: from `find_target`.
        count: how many.

    Returns:
        JAX devices; those of this machine where the CPU's compiler is used.

    Raises:
        ConfigError: more virtual CPU devices than there are.
    """
    import jax
    from jax.experimental import topologies

    if target.kind == "cpu":
        here = jax.devices("cpu")
        if len(here) < count:
            flag = f"XLA_FLAGS=--xla_force_host_platform_device_count={count}"
            raise ConfigError(f"a mesh of {count} devices, and there are {len(here)} of this CPU; {flag} makes them")
        return here[:count]
    if target.kind == "tpu":
        found = topologies.get_topology_desc(platform="tpu", topology_name=_topology(target.text, count))
        return found.devices[:count]
    found = topologies.get_topology_desc(
        platform="cuda", topology_name="", topology=f"1x1x{count}", target_config=target.text
    )
    return found.devices


def _topology(shape: str, count: int) -> str:
    """The smallest slice of a TPU with so many chips, in squares and double squares.

    >>> _topology("v5e:{}x{}", 8)
    'v5e:2x4'
    """
    rows = columns = 2
    while rows * columns < count:
        rows, columns = (rows, 2 * columns) if rows == columns else (2 * rows, columns)
    return shape.format(rows, columns)


def _tpu(name: str) -> Target:
    """A TPU."""
    facts = _TPUS[name]
    # a product of float32 is one of bfloat16 unless asked for exactly, which takes six
    products = dict.fromkeys(("bfloat16", "float16", "tf32"), facts.tflops * TERA)
    products["float32"] = facts.tflops * TERA / 6
    rates = Rates(products, facts.gb * 1e9, 16e9)
    kind = "tpu" if has_tpu() else "cpu"
    note = "" if kind == "tpu" else _missing(name, "pip install --no-deps 'libtpu==0.0.42.*'")
    return Target(name, kind, int(facts.gib * GIB), 1.0, rates, facts.topology, True, note)


def _this_cpu(note: str) -> Target:
    """This machine, whose memory is all that there is."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Target(CPU, "cpu", memory, 1.0, None, note=note)


def _missing(name: str, command: str) -> str:
    """What a plan without the right compiler says."""
    return f"the compiler for {name} is missing, so the bytes are those of the CPU's, against its memory: {command}"


def _numbers(text: str) -> dict[str, float]:
    """The numbers of a target by name."""
    found = re.findall(r"(\w+): ([\d.]+)(?=[\s}])", text)
    return {name: float(value) for name, value in reversed(found)}  # the first of each: versions come last
