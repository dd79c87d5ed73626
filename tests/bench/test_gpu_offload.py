"""Optimizer and queue on the host, as a GPU is asked about them."""

import pytest

from jaxcl.bench import gpu_offload


@pytest.mark.slow(reason="20 s: four hosted steps are compiled; tests of hosted and blockwise have the pieces")
def test_moments_come_back_with_every_bit_and_a_queue_within_rounding():
    moments, queue = gpu_offload.offloads(gpu_offload.DRY)
    assert moments["agrees"]
    assert moments["differing_numbers"] == 0
    assert moments["bytes_moved"] == 12 * 4 * 4
    assert queue["agrees"]
    assert queue["largest_difference"] < gpu_offload.TOLERANCE
    assert moments["bytes_saved"] is None  # a CPU does not tell


def test_a_line_says_what_was_moved_what_it_saved_and_whether_it_is_wrong():
    row = dict(what="queue", differing_numbers=3, largest_difference=1.5e-7, bytes_moved=2**21, bytes_saved=2**20)
    assert gpu_offload.line(row | {"agrees": True}) == (
        "queue on the host: up to 1.5e-07 apart; 2.0 MiB moved, in use 1.0 MiB less"
    )
    assert gpu_offload.line(row | {"agrees": False}).endswith("WRONG")
