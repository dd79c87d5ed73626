"""Planned bytes beside measured ones."""

import json
import threading

import pytest

from jaxcl.bench.__main__ import main
from jaxcl.bench.reality import LARGE_BAR, Case, Found, Highest, measure_all, reality_table

TINY = {"batch.size": 12, "data.image_size": 16, "model.head_dim": 8, "model.head_hidden": 16}
TINY |= {f"augment.{name}_prob": 0.0 for name in ("jitter", "grayscale")}  # less to compile
HOSTED = {"batch.mode": "cached", "batch.micro": 5, "batch.images": "host", "model.head_norm": False}


@pytest.mark.slow(
    reason="15 s: a step compiled to plan and to run; tests of the planner and of hosted steps have the pieces"
)
def test_a_hosted_step_is_planned_and_run_and_its_loss_is_that_of_the_strip_engine():
    case = Case("tiny", {**TINY, **HOSTED, "model.norm": "group"}, warm=False, bar=LARGE_BAR)
    (found,) = measure_all([case])
    assert found.embeddings == 24
    assert found.predicted > 0
    assert found.loss == pytest.approx(found.reference, rel=1e-5)
    assert 0 < found.grown < LARGE_BAR  # what compiling takes; a limit, not a figure
    assert found.met


def test_the_highest_value_is_seen_though_it_is_gone_in_the_end():
    values, seen = iter([1, 7, 2]), threading.Event()

    def look():
        value = next(values, 2)
        if value == 2:
            seen.set()
        return value

    with Highest(look) as highest:
        assert seen.wait(10)
    assert highest.value == 7


def test_a_bar_that_is_missed_and_a_loss_that_differs_are_said():
    row = Found("step", 64, 1 << 20, 3 << 20, 2.0, 1.0, 1.1, float(2 << 20))
    line = reality_table([row]).splitlines()[1]
    assert "3.00" in line
    assert "loss 1 is not 1.1 of strip" in line
    assert "at most 2: NOT MET" in line


def test_the_command_prints_one_object(capsys, monkeypatch):
    row = Found("step", 64, 1 << 20, 3 << 20, 2.0, 1.0, None, None)
    monkeypatch.setattr("jaxcl.bench.reality.measure_all", lambda cases, say: [row])
    assert main(["memory", "--quick", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["grown"] == 3 << 20
