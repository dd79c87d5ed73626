"""The queue's length follows the score: tried when it stalls, kept where it helps."""

from hypothesis import given
from hypothesis import strategies as st

from jaxcl.adapt import STALL, TRIAL, QueueLength


def lengths(scores, start=64, size=256):
    length = QueueLength(start=start, size=size)
    return [(length.see(score), length.rows)[1] for score in scores]


def test_while_the_score_rises_nothing_changes():
    assert lengths([0.1, 0.2, 0.3, 0.4, 0.5]) == [64] * 5


def test_a_stall_tries_twice_the_length_and_keeps_what_helps():
    assert lengths([0.5, 0.5, 0.5, 0.5, 0.6]) == [64, 64, 128, 128, 128]


def test_what_does_not_help_is_taken_back_and_the_shorter_one_is_next():
    rows = lengths([0.5, 0.5, 0.5, 0.4, 0.5, 0.5, 0.5, 0.6, 0.5])
    assert rows == [64, 64, 128, 128, 64, 64, 32, 32, 32]


def test_when_nothing_is_left_to_try_the_length_stays():
    rows = lengths([0.5] * 40)
    assert set(rows) == {64, 128, 32}
    assert rows[-20:] == [64] * 20


def test_each_decision_is_said():
    length = QueueLength(start=64, size=256)
    said = [length.see(score) for score in (0.5, 0.5, 0.5, 0.4, 0.45)]
    assert [bool(sentence) for sentence in said] == [False, False, True, False, True]
    assert "trying queue length 128 instead of 64" in said[2]
    assert "128 did not help (0.5000 → 0.4500): back to 64" in said[4]


@given(st.lists(st.floats(0, 1), max_size=60), st.integers(1, 64))
def test_the_length_is_always_one_that_the_queue_has_and_scores_replayed_lead_to_it_again(scores, start):
    rows = lengths(scores, start=start, size=64)
    assert all(1 <= count <= 64 for count in rows)
    assert rows == lengths(scores, start=start, size=64)
    assert rows[: STALL + 1] == [start] * min(STALL, len(rows)) + rows[STALL : STALL + 1]
    assert TRIAL >= 1
