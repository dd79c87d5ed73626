"""Work stops being added when time is short."""

from jaxcl.bench.budget import Budget


def test_a_piece_starts_only_if_twice_the_last_would_still_end_in_time():
    now = [0.0]
    budget = Budget(100.0, clock=lambda: now[0])
    assert budget.allows()
    now[0] = 30.0
    assert budget.allows()  # 70 s left, twice 30 s
    now[0] = 65.0
    assert not budget.allows()  # 35 s left, twice 35 s
    assert budget.left() == 35.0
    assert budget.spent() == 65.0


def test_after_a_refusal_the_last_piece_still_counts():
    now = [0.0]
    budget = Budget(10.0, clock=lambda: now[0])
    assert budget.allows()
    now[0] = 6.0
    assert not budget.allows()
    assert not budget.allows()
