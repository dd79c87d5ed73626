"""Bytes by part sum to the peak."""

import pytest

from jaxcl.planner.parts import PARTS, Stats, peak_parts, share_scratch


def test_parts_sum_to_live_arrays_padding_new_results_and_scratch():
    stats = Stats(temp=100, arguments=57, outputs=40, aliased=30)
    parts = peak_parts({"parameters": 50, "queue": 3}, 50, stats, scratch={"activations": 90}, results="gradients")
    assert parts["parameters"] == 50
    assert parts["gradients"] == 40 - 30
    assert parts["other"] == (57 - 50) + (100 - 90)
    assert sum(parts.values()) == 53 + 7 + 10 + 100
    assert tuple(parts) == PARTS


def test_a_result_in_the_place_of_an_argument_counts_once():
    stats = Stats(temp=0, arguments=10, outputs=10, aliased=10)
    assert sum(peak_parts({"parameters": 10}, 10, stats, scratch={}, results="other").values()) == 10


def test_arguments_that_a_program_drops_are_still_alive():
    stats = Stats(temp=0, arguments=4, outputs=0, aliased=0)
    assert sum(peak_parts({"parameters": 10}, 10, stats, scratch={}, results="other").values()) == 10


@pytest.mark.parametrize(
    ("similarity", "gradients", "expected"), [(30, 20, (30, 20, 50)), (90, 20, (90, 10, 0)), (200, 20, (100, 0, 0))]
)
def test_scratch_is_shared_out_and_never_more_than_there_is(similarity, gradients, expected):
    shared = share_scratch(100, similarity=similarity, gradients=gradients)
    assert tuple(shared.values()) == expected
