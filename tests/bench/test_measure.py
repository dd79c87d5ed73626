"""Times are medians of alternating runs; memory is the compiler's."""

import jax.numpy as jnp
import pytest

from jaxcl.bench.measure import Program, alternate, compile_program, measure


class Clock:
    """Time that passes only where a program lets it."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_every_round_runs_all_programs_once_and_the_median_counts():
    clock, order = Clock(), []
    durations = {"a": iter([1.0, 9.0, 2.0]), "b": iter([5.0, 4.0, 6.0])}

    def program(name):
        order.append(name)
        clock.now += next(durations[name])
        return 0

    found = alternate({name: lambda name=name: program(name) for name in durations}, rounds=3, clock=clock)
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert found == {"a": 2000.0, "b": 5000.0}


def test_a_short_program_is_called_several_times_within_one_timing():
    clock, order = Clock(), []

    def program():
        order.append(clock.now)
        clock.now += 3.0
        return 0

    assert alternate({"a": program}, rounds=2, calls={"a": 4}, clock=clock) == {"a": 3000.0}
    assert len(order) == 8


def test_a_program_warms_up_before_it_is_timed():
    runs = []
    found = measure({"a": Program(lambda: runs.append(1) or 2.5, temp_bytes=7)}, rounds=3)
    assert len(runs) == 4
    assert found["a"].value == 2.5
    assert found["a"].temp_bytes == 7


def test_the_result_of_a_program_that_returns_an_array_is_no_figure():
    assert measure({"a": Program(lambda: jnp.zeros(3))}, rounds=1)["a"].value is None


def test_temp_memory_is_that_of_the_intermediate_array():
    program = compile_program(lambda x: jnp.sum(jnp.sort(x @ x.T, axis=1)[:, 3]), jnp.ones((300, 5)))
    assert program.temp_bytes >= 300 * 300 * 4
    assert program.total_bytes == program.temp_bytes + 300 * 5 * 4 + 4
    assert program.compile_seconds > 0
    assert float(program.run()) == pytest.approx(1500.0)
