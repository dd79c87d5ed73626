import numpy as np
import pytest

from jaxcl.config import ConfigError
from jaxcl.data.record import fingerprint, hold_out


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


def test_a_fingerprint_depends_on_ids_names_and_classes():
    class Few:
        name, classes, channels, protocol, has_captions = "few", (), 3, "", False

        def __init__(self, ids, lines):
            self.ids, self.lines = np.array(ids, np.int32), lines

        def __len__(self):
            return len(self.ids)

        def __getitem__(self, index):
            raise AssertionError("no image is read")

        def listing(self):
            return iter(self.lines)

    prints = {
        fingerprint(Few(ids, lines))
        for ids, lines in [([0, 1], ["a 0", "b 0"]), ([0, 2], ["a 0", "b 0"]), ([0, 1], ["a 0", "b 1"])]
    }
    assert len(prints) == 3
    assert fingerprint(Few([0, 1], ["a 0", "b 0"])) in prints
    assert fingerprint(Few([0, 1], ["\udcff.png 0", "b 0"]))  # a name that is no UTF-8
