"""Operations and bytes of a program before it is compiled, and the seconds that a device's public rates make of them.

XLA counts the body of a loop once, and for a device that is not there it counts nothing; so this walks the program as
JAX traced it: a scan counts as often as it runs, a recomputed block again, a shard's work once for each device. What
depends on data counts as the least that it can be.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from jax import lax

from jaxcl.planner.targets import Rates

# operations that XLA does not fuse with what stands before them: these read and write memory
UNFUSED = (
    "sort",
    "top_k",
    "approx_top_k",
    "gather",
    "scatter",
    "scatter-add",
    "scatter_add",
    "cumsum",
    "cumlogsumexp",
    "reduce_sum",
    "reduce_max",
    "reduce_min",
    "argmax",
    "dynamic_update_slice",
)


class Op(NamedTuple):
    """One operation.

    Attributes:
        kind: type that a product is made in, "tf32" for float32 that need not be exact; empty: no product.
        flops: of a product, 2 for each multiplication and its addition.
        bytes: read and written.
    """

    kind: str
    flops: int
    bytes: int


def costs(jaxpr: Any, platform: str = "cpu") -> Counter[Op]:
    """How often each operation of a program is done, over all devices.

    Args:
        jaxpr: of `jax.make_jaxpr`, or of `jax.jit(…).trace(…)`.
        platform: cpu, cuda or tpu, where the program has a branch for each.

    Returns:
        Operations and their numbers, at least: of the branches of a condition those of the cheapest, and none of a loop
        whose number of turns is not in the program.

    >>> import jax
    >>> ops = costs(jax.make_jaxpr(lambda x, w: x @ w)(jnp.ones((3, 4)), jnp.ones((4, 5))))
    >>> [(op.kind, op.flops, op.bytes) for op in ops]
    [('tf32', 120, 188)]
    """
    total: Counter[Op] = Counter()
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            total[Op(_kind(equation), _product_flops(equation), _traffic(equation))] += 1
        elif name == "conv_general_dilated":
            total[Op(_kind(equation), _convolution_flops(equation), _traffic(equation))] += 1
        elif name == "cond":
            total += _branch(params, platform)
        elif name in UNFUSED:
            total[Op("", 0, _traffic(equation))] += 1
        else:
            times = _turns(name, params)
            for inner in _inner(params):
                for op, number in costs(inner, platform).items():
                    total[op] += number * times
    return total


def flops_of(ops: Counter[Op]) -> int:
    """Operations of all products.

    Args:
        ops: from `costs`.

    Returns:
        Floating-point operations.

    >>> flops_of(Counter({Op("float32", 10, 1): 3}))
    30
    """
    return sum(op.flops * number for op, number in ops.items())


def seconds_of(ops: Counter[Op], rates: Rates, devices: int = 1) -> float:
    """The time that a program takes at the very least, by the rates of a device.

    Each operation takes the longer of computing and of moving its bytes; what XLA fuses with them is not counted.

    Args:
        ops: from `costs`, over all devices.
        rates: of one device.
        devices: that share the work.

    Returns:
        Seconds.

    >>> seconds_of(Counter({Op("float32", 100, 5): 2}), Rates({"float32": 50.0}, 1.0, 1.0))
    10.0
    """
    total = 0.0
    for op, number in ops.items():
        work = op.flops / rates.products[op.kind] if op.flops else 0.0
        total += number * max(work, op.bytes / rates.memory)
    return total / devices


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    """The programs inside an operation."""
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if hasattr(getattr(item, "jaxpr", item), "eqns"):
                yield item


def _branch(params: dict[str, Any], platform: str) -> Counter[Op]:
    """The branch for a platform, or else the one that computes least."""
    branches, platforms = params["branches"], params.get("branches_platforms")
    if platforms is not None:
        own = [branch for branch, names in zip(branches, platforms, strict=True) if names is None or platform in names]
        branches = own[:1] or branches
    found = [costs(branch, platform) for branch in branches]
    return min(found, key=flops_of)


def _turns(name: str, params: dict[str, Any]) -> int:
    """How often what is inside an operation is done, at least."""
    if name in ("scan", "while"):
        return params.get("length", 0)
    return _shards(params) if name == "shard_map" else 1


def _shards(params: dict[str, Any]) -> int:
    """Devices over which the body of a `shard_map` is written once."""
    sizes = params["mesh"].shape
    return math.prod(sizes[axis] for axis in params.get("manual_axes", sizes))


def _kind(equation: Any) -> str:
    """The type in which a product is made."""
    name, precision = str(equation.invars[0].aval.dtype), equation.params.get("precision")
    if name in ("bfloat16", "float16"):
        return name
    exact = precision[0] if isinstance(precision, tuple) else precision
    return "float32" if exact in (lax.Precision.HIGHEST, lax.Precision.HIGH) or name != "float32" else "tf32"


def _traffic(equation: Any) -> int:
    """Bytes of operands and results."""
    avals = [item.aval for item in (*equation.invars, *equation.outvars)]
    return sum(math.prod(aval.shape) * aval.dtype.itemsize for aval in avals if hasattr(aval.dtype, "itemsize"))


def _product_flops(equation: Any) -> int:
    """Two for each number of the result and each that is summed over."""
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)


def _convolution_flops(equation: Any) -> int:
    """Two for each number of the result and each of the kernel that it is a sum over."""
    spec = equation.params["dimension_numbers"].rhs_spec
    kernel = equation.invars[1].aval.shape
    # the kernel's second axis holds the input channels of one group
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(kernel[axis] for axis in spec[1:])
