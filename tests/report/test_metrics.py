"""metrics.jsonl and TensorBoard events survive kills, resumes and numbers that are not finite."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from jaxcl.report import MetricsWriter, read_metrics


def lines_of(workdir):
    return [json.loads(line, parse_constant=pytest.fail) for line in (workdir / "metrics.jsonl").open()]


def events_of(workdir, name):
    from tensorboardX import proto

    found = {}
    for path in sorted(workdir.glob("events.out.tfevents.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            event = proto.event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
            found.update((event.step, value.simple_value) for value in event.summary.value if value.tag == name)
            at += 16 + size
    return found


def test_each_line_has_step_and_loss_as_plain_numbers_whatever_came_in(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(10, dict(loss=jnp.float32(0.5), grad_norm=np.float64(2), count=np.int32(3), lr=1e-3))
    assert lines_of(tmp_path) == [dict(step=10, loss=0.5, grad_norm=2.0, count=3, lr=1e-3)]
    assert read_metrics(tmp_path) == lines_of(tmp_path)


def test_a_number_that_is_not_finite_is_null_and_the_file_stays_valid_json(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, dict(loss=math.nan, hardest=jnp.inf, kth=np.float32(-np.inf), fine=1.0))
    assert lines_of(tmp_path) == [dict(step=1, loss=None, hardest=None, kth=None, fine=1.0)]
    assert events_of(tmp_path, "loss") == {}
    assert events_of(tmp_path, "fine") == {1: 1.0}


def test_every_line_is_on_disk_before_the_next_step(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.write(1, dict(loss=1.0))
    assert [row["step"] for row in read_metrics(tmp_path)] == [1]
    writer.close()


def test_the_same_scalars_are_tensorboard_events_in_the_folder_itself(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        for step in (1, 10, 20):
            writer.write(step, dict(loss=step / 4))
    assert events_of(tmp_path, "loss") == {1: 0.25, 10: 2.5, 20: 5.0}


def test_a_line_without_a_loss_is_refused(tmp_path):
    with MetricsWriter(tmp_path) as writer, pytest.raises(ValueError, match="needs loss"):
        writer.write(1, dict(knn_top1=0.5))


@pytest.mark.parametrize(("after", "left"), [(-1, []), (9, []), (10, [10]), (25, [10, 20]), (99, [10, 20, 30])])
def test_truncation_drops_exactly_the_later_steps_and_writing_goes_on(tmp_path, after, left):
    with MetricsWriter(tmp_path) as writer:
        for step in (10, 20, 30):
            writer.write(step, dict(loss=1.0))
    with MetricsWriter(tmp_path) as writer:
        writer.truncate_after(after)
        assert [row["step"] for row in read_metrics(tmp_path)] == left
        writer.write(40, dict(loss=2.0))
    assert [row["step"] for row in lines_of(tmp_path)] == [*left, 40]


@pytest.mark.parametrize("tail", ['{"step": 20, "lo', '{"step": 20, "loss": 1.0', "{", '"step"', "\x00\x00", "[3]\n"])
def test_a_half_written_last_line_is_dropped_and_never_glued_to_the_next(tmp_path, tail):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 10, "loss": 1.0}\n' + tail)
    assert [row["step"] for row in read_metrics(tmp_path)] == [10]
    with MetricsWriter(tmp_path) as writer:
        writer.write(11, dict(loss=2.0))
    assert [row["step"] for row in lines_of(tmp_path)] == [10, 11]


def test_a_resume_in_the_same_second_keeps_the_events_of_the_first_run(tmp_path):
    for step in (1, 2, 3):
        with MetricsWriter(tmp_path) as writer:
            writer.write(step, dict(loss=float(step)))
    assert events_of(tmp_path, "loss") == {1: 1.0, 2: 2.0, 3: 3.0}


def test_a_folder_without_a_log_has_no_rows(tmp_path):
    assert read_metrics(tmp_path) == []


def test_a_line_whose_values_are_no_numbers_is_left_out(tmp_path):
    lines = [
        '{"step": 1, "loss": 2.0}',
        '{"step": true, "loss": 1}',
        '{"step": 2, "loss": "x"}',
        '{"step": 3, "loss": null}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 3]
