"""Schedules against their formulas, step by step."""

import jax
import numpy as np
import pytest

from jaxcl.config import LossConfig, OptimConfig, QueueConfig, TargetConfig
from jaxcl.schedules import make_decay, make_learning_rate, make_queue_length, make_schedule, make_temperature

STEPS = 11
LEFT = {"linear": lambda p: 1 - p, "cosine": lambda p: (1 + np.cos(np.pi * p)) / 2}


@pytest.mark.parametrize("shape", LEFT)
@pytest.mark.parametrize(("start", "end"), [(0.5, 0.1), (0.1, 0.5), (0.99, 1.0), (0.0, 0.7)])
def test_a_schedule_goes_from_its_start_in_the_first_step_to_its_end_in_the_last(shape, start, end):
    value = jax.jit(make_schedule(shape, start, end, total_steps=STEPS))
    for step in range(STEPS):
        expected = end + (start - end) * LEFT[shape](step / (STEPS - 1))
        np.testing.assert_allclose(value(step), expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose([value(0), value(STEPS - 1), value(STEPS + 5)], [start, end, end], rtol=1e-6, atol=1e-7)
    assert value._cache_size() == 1


def test_a_run_of_one_step_is_at_the_start():
    assert float(make_schedule("linear", 0.5, 0.1, total_steps=1)(0)) == 0.5


def test_each_schedule_reads_its_own_start_and_end():
    loss = LossConfig(temperature=0.4, temperature_end=0.2, temperature_schedule="linear")
    target = TargetConfig(decay=0.9, decay_end=0.96, schedule="linear")
    queue = QueueConfig(size=64, start=6, schedule="cosine")
    np.testing.assert_allclose(make_temperature(loss, total_steps=3)(1, None), 0.3, rtol=1e-6)
    np.testing.assert_allclose(make_decay(target, total_steps=3)(1), 0.93, rtol=1e-6)
    assert [int(make_queue_length(queue, total_steps=3)(step)) for step in range(3)] == [6, 35, 64]


def test_the_rule_from_zero_begins_with_a_momentum_encoder_that_is_the_student():
    decay = make_decay(TargetConfig(decay=0.99, schedule="from_zero"), total_steps=STEPS)
    expected = [0.99 * (1 - np.cos(np.pi * step / (STEPS - 1))) / 2 for step in range(STEPS)]
    np.testing.assert_allclose([decay(step) for step in range(STEPS)], expected, rtol=1e-5, atol=1e-7)
    assert float(decay(0)) == 0.0


def test_by_default_nothing_changes_and_a_decay_that_does_goes_to_one():
    for step in (0, 5, STEPS):
        assert make_temperature(LossConfig(temperature=0.4), total_steps=STEPS)(step, None) == 0.4
        assert make_decay(TargetConfig(decay=0.9), total_steps=STEPS)(step) == 0.9
    assert make_queue_length(QueueConfig(size=8), total_steps=STEPS) is None
    assert float(make_decay(TargetConfig(decay=0.9, schedule="cosine"), total_steps=STEPS)(STEPS - 1)) == 1.0


def test_the_learning_rate_warms_up_linearly_from_zero_and_falls_as_a_cosine_to_zero():
    config = OptimConfig(base_lr=0.3, warmup_steps=7)
    rate = make_learning_rate(config, batch_size=1024, total_steps=53)
    peak = 0.3 * 1024 / 256
    for step in range(54):
        cosine = 0.5 * (1 + np.cos(np.pi * (step - 7) / 46))
        expected = peak * step / 7 if step < 7 else peak * cosine
        np.testing.assert_allclose(rate(step), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(jax.jit(rate)(step), expected, rtol=1e-5, atol=1e-6)


def test_without_warm_up_the_first_update_has_the_full_rate_and_past_the_end_it_is_zero():
    rate = make_learning_rate(OptimConfig(base_lr=1.0, warmup_steps=0), batch_size=128, total_steps=9)
    assert float(rate(0)) == 0.5
    assert float(rate(9)) == float(rate(10)) == 0.0


@pytest.mark.parametrize(("rule", "factor"), [("linear", 4.0), ("sqrt", 2.0)])
def test_the_rate_grows_with_the_batch_or_its_square_root_and_may_fall_as_a_line(rule, factor):
    config = OptimConfig(base_lr=0.3, warmup_steps=7, scale_rule=rule, schedule="linear")
    rate = make_learning_rate(config, batch_size=1024, total_steps=53)
    expected = [0.3 * factor * (step / 7 if step < 7 else (53 - step) / 46) for step in range(54)]
    np.testing.assert_allclose([rate(step) for step in range(54)], expected, rtol=1e-5, atol=1e-7)
