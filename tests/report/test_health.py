"""Each alarm is raised by its cause and by nothing else."""

import math

import pytest

from jaxcl.report.health import ALARMS, Health

HEALTHY = {
    "loss": 3.4,
    "negatives_per_anchor": 256.0,
    "positive_cosine": 0.8,
    "hardest_cosine": 0.6,
    "alignment": 0.4,
    "feature_spread": 0.8,
    "effective_rank": 30.0,
    "uniformity": -2.5,
    "grad_norm": 2.0,
    "queue_norm_min": 0.9995,
    "queue_norm_max": 1.0005,
    "queue_fill": 1.0,
}
CAUSES = {
    "stuck": dict(loss=math.log(257) * 1.001, positive_cosine=0.99),
    "collapse": dict(feature_spread=0.01),
    "rank": dict(effective_rank=1.2),
    "uniformity": dict(uniformity=-0.05, alignment=0.02),
    "alignment": dict(alignment=1.98),
    "queue norms": dict(queue_norm_min=0.0),
    "queue fill": dict(queue_fill=0.1),
    "clipping": dict(grad_norm=500.0),
    "no negatives": dict(negatives_per_anchor=0.0),
    "no gradient": dict(grad_norm=0.0),
}


def health():
    return Health(steps=1000, warmup=10, clip_norm=1.0)


def sentences(row, steps=range(100, 1001, 100)):
    looked = health()
    return [said for step in steps for said in looked.look(step, row)]


def test_a_healthy_run_is_left_in_peace():
    assert sentences(HEALTHY) == []


def test_every_alarm_has_a_cause_here():
    assert set(CAUSES) == {alarm.name for alarm in ALARMS}


@pytest.mark.parametrize("name", CAUSES)
def test_a_planted_cause_raises_its_alarm_once_and_names_a_setting(name):
    (said,) = sentences({**HEALTHY, **CAUSES[name]})
    assert said.startswith("step ")
    assert any(f"{group}." in said for group in ("loss", "optim", "model", "queue", "augment"))


def test_one_bad_row_among_good_ones_raises_nothing():
    looked = health()
    rows = [{**HEALTHY, **(CAUSES["collapse"] if step % 2 else {})} for step in range(10)]
    assert [said for step, row in enumerate(rows, 2) for said in looked.look(100 * step, row)] == []


def test_the_loss_at_the_start_is_that_of_random_embeddings_and_no_alarm():
    assert sentences({**HEALTHY, **CAUSES["stuck"]}, steps=range(10, 101, 10)) == []
    assert sentences({**HEALTHY, "loss": math.log(257)}) == []  # partners are apart: not yet trained, not collapsed


def test_a_method_without_negatives_or_a_queue_is_judged_by_what_it_has():
    row = {"loss": 0.3, "grad_norm": 0.5, "negatives_per_anchor": 0.0, "positive_cosine": 0.9, "feature_spread": 0.5}
    assert sentences(row) == []


def test_without_clipping_there_is_no_alarm_of_it():
    looked = Health(steps=1000, warmup=1, clip_norm=None)
    assert [said for step in range(101, 150) for said in looked.look(step, {**HEALTHY, "grad_norm": 1e4})] == []
