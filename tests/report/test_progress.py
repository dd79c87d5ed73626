"""The bar on a terminal, the lines elsewhere."""

import io

import pytest

from jaxcl.report import Progress, Stages, progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """A clock that tests move."""

    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def run(clock, stream, steps=100, seconds=1.0, first=0):
    with Progress(steps, images_per_step=64, first=first, stream=stream) as shown:
        for step in range(first + 1, steps + 1):
            clock.now += seconds
            shown.update(step, loss=1 / step)
    return stream.getvalue()


def test_without_a_terminal_there_is_a_line_for_the_first_and_the_last_step_and_every_ten_seconds(clock):
    lines = run(clock, io.StringIO()).splitlines()
    assert [line.split(",")[0] for line in lines] == [f"step {step}/100" for step in [*range(1, 92, 10), 100]]


def test_a_line_has_loss_images_per_second_and_the_time_left(clock):
    lines = run(clock, io.StringIO()).splitlines()
    assert lines[0] == "step 1/100, loss 1"
    assert lines[2] == "step 21/100, loss 0.04762, 64 images/s, 1 min 19 s left"
    assert lines[-1] == "step 100/100, loss 0.01, 64 images/s"


def test_the_rate_leaves_out_the_first_step_which_compiles(clock):
    shown = Progress(10, images_per_step=10, stream=io.StringIO())
    clock.now += 60
    shown.update(1, loss=3.0)
    assert shown.images_per_second is None
    clock.now += 2
    shown.update(5)
    assert shown.images_per_second == pytest.approx(20.0)


def test_a_resumed_run_counts_only_its_own_steps(clock):
    lines = run(clock, io.StringIO(), first=95).splitlines()
    assert lines == ["step 96/100, loss 0.01042", "step 100/100, loss 0.01, 64 images/s"]


def test_the_last_loss_stays_when_none_is_given(clock):
    stream = io.StringIO()
    shown = Progress(2, images_per_step=1, stream=stream)
    shown.update(1, loss=0.25)
    clock.now += 20
    shown.update(2)
    assert stream.getvalue().splitlines()[1].startswith("step 2/2, loss 0.25")


def test_on_a_terminal_there_is_one_bar_with_the_same_facts(clock):
    shown = run(clock, Terminal())
    assert shown.count("\n") == 1
    last = shown.replace("\n", "").split("\r")[-1]
    assert all(part in last for part in ("100%", "100/100", "loss 0.01", "64 images/s"))


def test_an_evaluation_says_how_far_it_is_every_ten_seconds_and_nothing_if_it_is_short(clock):
    stream = io.StringIO()
    with Stages(stream) as tell:
        for second in range(25):
            tell(f"{second} images")
            clock.now += 1
    assert stream.getvalue().splitlines() == ["10 images", "20 images"]


def test_on_a_terminal_an_evaluation_is_one_line_that_goes_when_it_is_done():
    stream = Terminal()
    with Stages(stream) as tell:
        tell("512 training images encoded")
        tell("probing features 1 of 3: trained")
    shown = stream.getvalue()
    assert "512 training images encoded" in shown
    assert "\n" not in shown
    assert shown.split("\r")[-1].strip() == ""
