"""The search for the largest batch."""

import pytest

from jaxcl.planner.fit import FINE, TRIES, largest


def linear(base, slope):
    return lambda size: base + slope * size


@pytest.mark.parametrize("start", [4, 64, 1000, 100_000])
@pytest.mark.parametrize(("base", "slope"), [(0, 10), (5000, 1), (9000, 37), (0, 3)])
@pytest.mark.parametrize("unit", [1, 4, 7])
def test_the_result_fits_and_a_step_more_does_not(start, base, slope, unit):
    peak = linear(base, slope)
    fit = largest(peak, 10_000, start=start, unit=unit, smallest=2 * unit)
    assert fit.size % unit == 0
    assert peak(fit.size) <= 10_000 < peak(fit.size + fit.step)
    assert fit.step <= max(fit.size / FINE, unit)
    assert fit.tries <= TRIES


def test_memory_with_steps_and_a_quadratic_part_is_found_too():
    def peak(size):
        return 1000 + size**2 + (size > 40) * 500

    fit = largest(peak, 4000, start=8, unit=2, smallest=2)
    assert peak(fit.size) <= 4000 < peak(fit.size + fit.step)


def test_where_the_smallest_does_not_fit_there_is_none():
    fit = largest(linear(11, 1), 10, start=64, unit=2, smallest=2)
    assert fit.size is None


def test_a_batch_that_the_compiler_refuses_does_not_fit():
    fit = largest(lambda size: size if size < 50 else None, 1_000_000, start=16, unit=1, smallest=1)
    assert 50 - fit.step <= fit.size < 50


@pytest.mark.parametrize("start", [64, 4096, 500_000])
@pytest.mark.parametrize("refused", [600_000, 1_000_000, 10**9])
def test_a_peak_that_is_flat_before_it_rises_and_refused_far_above_the_limit_is_found(start, refused):
    # as of a step with cached gradients: below some batch it is one micro-batch that takes most
    def peak(size):
        return None if size > refused else max(1_900_000, 1_150_000 + 9 * size)

    fit = largest(peak, 5_840_000, start=start, unit=32, smallest=32)
    assert peak(fit.size) <= 5_840_000 < (peak(fit.size + fit.step) or 10**9)
    assert fit.step <= fit.size / FINE
    assert fit.tries <= TRIES


def test_a_batch_is_compiled_once():
    seen = []
    largest(lambda size: seen.append(size) or size, 1000, start=8, unit=1, smallest=1)
    assert len(seen) == len(set(seen))
