"""A ratio means one thing, and a bar is met or not."""

import json

import pytest

from jaxcl.bench.measure import Measured
from jaxcl.bench.programs import Variant
from jaxcl.bench.rows import FASTER, MEMORY, TIME, Bar, compared, ratio_of, row_of

STRIP = Variant("strip", 10, 3, 2)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(FASTER, 4.0), (TIME, 0.25), (MEMORY, 0.5)],
)
def test_faster_is_how_often_it_fits_and_the_others_are_shares(kind, expected):
    assert ratio_of(kind, Measured(2.0, 10), Measured(8.0, 20)) == expected


@pytest.mark.parametrize(
    ("bar", "value", "met"),
    [
        (Bar(least=2.0), 2.0, True),
        (Bar(least=2.0), 1.99, False),
        (Bar(most=1 / 35), 1 / 35, True),
        (Bar(most=1 / 35), 1 / 34.9, False),
    ],
)
def test_a_bar_may_be_reached_exactly(bar, value, met):
    assert bar.is_met(value) is met


@pytest.mark.parametrize(
    ("bar", "value", "reached"),
    [
        (Bar(least=2.0, aim=2.5), 2.4, False),
        (Bar(least=2.0, aim=2.5), 2.5, True),
        (Bar(most=2.0, aim=1.0), 1.1, False),
        (Bar(most=2.0, aim=1.0), 0.9, True),
        (Bar(least=2.0), 9.0, False),
    ],
)
def test_the_aim_is_on_the_side_of_the_bar(bar, value, reached):
    assert bar.reaches_aim(value) is reached


def test_a_compared_row_keeps_its_measurement_and_says_whether_the_bar_is_met():
    own, other = Measured(2.0, 10, 0.1, 1.5), Measured(3.0, 20)
    row = compared(row_of(STRIP, own), FASTER, own, other, "dense", Bar(least=2.0))
    assert (row.name, row.ms, row.temp_bytes, row.loss) == ("strip, top 2", 2.0, 10, 1.5)
    assert (row.ratio, row.to, row.met) == (1.5, "dense", False)
    assert compared(row_of(STRIP, own), FASTER, own, other, "dense").met is None


def test_a_row_is_plain_json_with_the_usual_letters():
    own = Measured(2.0, 10)
    row = compared(row_of(STRIP, own), FASTER, own, own, "dense", Bar(least=2.0, aim=3.0))
    read = json.loads(json.dumps(row.as_json()))
    assert read["bar"] == {"least": 2.0, "most": None, "aim": 3.0}
    assert (read["name"], read["N"], read["D"], read["k"], read["dtype"]) == ("strip, top 2", 10, 3, 2, "float32")
    assert "n" not in read
