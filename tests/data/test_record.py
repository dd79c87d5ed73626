import pytest

from jaxcl.config import ConfigError
from jaxcl.data.record import hold_out


def test_the_fraction_is_rounded_down_but_never_to_none_or_all():
    keys = [str(i).encode() for i in range(7)]
    assert [len(hold_out(keys, f, "x")) for f in (0.01, 0.2, 0.3, 0.5, 0.9)] == [1, 1, 2, 3, 6]
    assert len(hold_out(keys[:2], 0.9, "x")) == 1


def test_an_item_stays_on_its_side_when_others_come_and_go():
    keys = [str(i).encode() for i in range(100)]
    held = {keys[i] for i in hold_out(keys, 0.2, "x")}
    fewer = keys[10:]
    held_of_fewer = {fewer[i] for i in hold_out(fewer, 0.2, "x")}
    assert len(held_of_fewer ^ (held & set(fewer))) <= 4  # only the share's edge moves
    shuffled = keys[::-1]
    assert {shuffled[i] for i in hold_out(shuffled, 0.2, "x")} == held


def test_one_item_cannot_be_split():
    with pytest.raises(ConfigError, match=r"data.name=x: 1 image"):
        hold_out([b"a"], 0.2, "x")
