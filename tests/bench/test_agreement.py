"""An engine that is wrong on this device is found."""

import numpy as np
import pytest

from jaxcl.bench import agreement
from jaxcl.bench.agreement import Case, agreements, difference
from jaxcl.bench.programs import Engine
from jaxcl.losses import infonce


def wrong_value(*arguments, **options):
    out = infonce(*arguments, **options)
    return out._replace(loss=out.loss * 1.001)


def wrong_neighbours(*arguments, top_k, **options):
    return infonce(*arguments, top_k=top_k - 1, **options)


def test_difference_is_relative_to_the_largest_entry():
    assert difference([0.0, 10.0], [1.0, 10.0]) == 0.1
    assert difference([np.nan, 1.0], [np.nan, 1.0]) == 0.0
    assert difference([np.nan, 1.0], [0.0, 1.0]) == np.inf


@pytest.mark.parametrize(("function", "agrees"), [(infonce, True), (wrong_value, False), (wrong_neighbours, False)])
def test_only_an_engine_that_computes_the_definition_agrees(monkeypatch, function, agrees):
    monkeypatch.setattr(agreement, "ENGINES", {"mine": Engine(function, {})})
    (verdict,) = agreements([Case("pairs", 3)], rows=17, workers=1)
    assert verdict.agrees is agrees
    assert (verdict.loss == 0.0) is agrees


def test_the_full_check_uses_more_columns_than_the_smallest_selection_kernel_takes():
    assert agreement.ROWS > 1024
    assert {case.kind for case in agreement.CASES} == {"pairs", "classes", "queue", "queue alone"}
    assert {case.dtype for case in agreement.CASES} == {"float32", "bfloat16"}
