"""What the table says of pruning."""

import re

import pytest

from jaxcl.bench.measure import compile_program
from jaxcl.bench.pruning import PAPER, PLAIN, pruning_rows


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in pruning_rows(2048, 16, 8, 128, 1, compile_program)}


def test_both_granularities_stand_beside_no_pruning(rows):
    assert rows[PLAIN].ratio is None
    sub, whole = (next(row for name, row in rows.items() if f"{what} pruned" in name) for what in ("of 16", "of 128"))
    assert (sub.to, whole.to) == (PLAIN, PLAIN)
    assert sub.bar.least == 1.5


def test_measured_rates_are_within_two_points_of_their_law(rows):
    for row in rows.values():
        if "pruned" in row.name and row.name != PLAIN:
            measured, law = (float(x) for x in re.findall(r"([0-9.]+)%", row.note))
            assert abs(measured - law) < 2, row.note
            assert measured > 0


def test_the_papers_figure_says_what_it_counts(rows):
    assert "89.1 %" in rows[PAPER].note
    assert "whole block" in rows[PAPER].note
    assert rows[PAPER].ms is None
