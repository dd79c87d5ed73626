"""Times and memory of compiled programs: medians of alternating runs in one process, bytes from the compiler."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np


class Program(NamedTuple):
    """Something to run, and what compiling it told.

    Attributes:
        run: runs once and returns the result, which may still be computing.
        temp_bytes: scratch memory of the compiled program; None: not known.
        total_bytes: scratch, arguments and results; None: not known.
        compile_seconds: None where nothing was compiled.
        text: the optimised program, "" where there is none.
    """

    run: Callable[[], Any]
    temp_bytes: int | None = None
    total_bytes: int | None = None
    compile_seconds: float | None = None
    text: str = ""


class Measured(NamedTuple):
    """A program after its runs.

    Attributes:
        ms: median milliseconds of a run; None: only compiled.
        temp_bytes: scratch memory; None: not known.
        compile_seconds: None where nothing was compiled.
        value: its first result, where that is one number.
    """

    ms: float | None
    temp_bytes: int | None
    compile_seconds: float | None = None
    value: float | None = None


def compile_program(
    function: Callable[..., Any], *arguments: Any, options: Mapping[str, Any] | None = None, **jit: Any
) -> Program:
    """Compiles a function for its arguments.

    Args:
        function: pure.
        *arguments: arrays; `jax.ShapeDtypeStruct` where the program is only compiled.
        options: of the compiler.
        **jit: of `jax.jit`.

    Returns:
        The program, not yet run.

    >>> compile_program(lambda x: x + 1, jnp.float32(1)).run().item()
    2.0
    """
    start = time.perf_counter()
    lowered = jax.jit(function, **jit).lower(*arguments)
    executable = lowered.compile(compiler_options=None if options is None else dict(options))
    seconds = time.perf_counter() - start
    program = Program(lambda: executable(*arguments), compile_seconds=seconds, text=executable.as_text() or "")
    memory = executable.memory_analysis()
    if memory is None:
        return program
    temp, handed = memory.temp_size_in_bytes, memory.argument_size_in_bytes + memory.output_size_in_bytes
    return program._replace(temp_bytes=temp, total_bytes=temp + handed - memory.alias_size_in_bytes)


def alternate(
    programs: Mapping[Any, Callable[[], Any]],
    rounds: int,
    calls: Mapping[Any, int] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Any, float]:
    """Median time of each program; every round runs them all, so that a busy moment of the machine hits all alike.

    Args:
        programs: name, or whatever stands for it, and what to run; run before.
        rounds: how many times each is timed.
        calls: runs within one timing, for programs shorter than their dispatch; None: one.
        clock: seconds.

    Returns:
        Milliseconds a run, by name.

    >>> sorted(alternate({"a": lambda: 1, "b": lambda: 2}, rounds=3))
    ['a', 'b']
    """
    times: dict[Any, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, run in programs.items():
            times[name].append(_time(run, (calls or {}).get(name, 1), clock))
    return {name: 1e3 * statistics.median(seconds) for name, seconds in times.items()}


def measure(programs: Mapping[Any, Program], rounds: int, calls: int = 1) -> dict[Any, Measured]:
    """Warms up and times programs side by side.

    Args:
        programs: name and program.
        rounds: how many times each is timed.
        calls: runs within one timing.

    Returns:
        What was found, by name.

    >>> measure({"one": compile_program(lambda x: x, jnp.float32(1))}, rounds=1)["one"].value
    1.0
    """
    first = {name: _number(jax.block_until_ready(program.run())) for name, program in programs.items()}
    ms = alternate({name: program.run for name, program in programs.items()}, rounds, dict.fromkeys(programs, calls))
    return {name: Measured(ms[name], p.temp_bytes, p.compile_seconds, first[name]) for name, p in programs.items()}


def _time(run: Callable[[], Any], calls: int, clock: Callable[[], float]) -> float:
    """Seconds of one run, waited for."""
    start = clock()
    for _ in range(calls):
        result = run()
    jax.block_until_ready(result)
    return (clock() - start) / calls


def _number(result: Any) -> float | None:
    """The first of some results, where it is a scalar."""
    first = jax.tree.leaves(result)[0]
    return float(first) if np.ndim(first) == 0 else None
