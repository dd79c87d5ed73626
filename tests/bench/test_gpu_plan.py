"""Planned beside measured peaks of steps, as a GPU is asked about them."""

import pytest

from jaxcl.bench import gpu_plan
from jaxcl.bench.reality import Case
from jaxcl.blueprint import Facts, draw
from jaxcl.config import Config
from jaxcl.planner.plan import with_settings
from jaxcl.teacher import find_teacher


@pytest.mark.parametrize("case", [*gpu_plan.FULL, *gpu_plan.DRY], ids=lambda case: case.name)
def test_every_case_is_a_config_whose_step_can_be_drawn(case):
    config = with_settings(Config(), {"queue.size": 0, "loss.top_k": None, **case.settings})
    drawn = draw(config, Facts(3, labels=True, captions=False), find_teacher)
    assert drawn.like.queue is None


def test_what_fails_is_said_in_its_last_line(tmp_path):
    (row,) = gpu_plan.planned_steps([Case("wrong", {"batch.size": 0})], 120.0, str(tmp_path))
    assert row["planned"] is None
    assert row["note"].startswith("failed: jaxcl.config.errors.ConfigError: batch.size = 0")


def test_without_time_a_step_is_left_out(tmp_path):
    (row,) = gpu_plan.planned_steps(gpu_plan.DRY, 0.0, str(tmp_path))
    assert row["note"] == "left out, because time was short"


def test_a_line_says_how_far_apart_they_are():
    row = {"name": "x", "planned": 105 << 20, "measured": 100 << 20, "note": None}
    assert gpu_plan.line(row).endswith("measured 100.0 MiB, 5.0% above; within 10%: met")
    assert gpu_plan.line(row | {"measured": None}).endswith("the device does not tell its peak")
    assert gpu_plan.line(row | {"note": "failed: x"}) == "step of x: failed: x"
