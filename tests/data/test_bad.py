import logging

import numpy as np
import pytest

from jaxcl.config import ConfigError
from jaxcl.data.bad import BadImages, check_readable, read_or_replace
from jaxcl.data.record import BadImage, Record


class Fake:
    """A source whose images at some positions cannot be read; ids are 100 + 2·position."""

    name, classes, channels, protocol, has_captions = "fake", (), 3, "made up", False

    def __init__(self, count, bad):
        self.ids = np.arange(100, 100 + 2 * count, 2, dtype=np.int32)
        self.bad = set(bad)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        if index in self.bad:
            raise BadImage(f"/data/{index}.jpg", "truncated")
        return Record(np.zeros((2, 2, 3), np.uint8), -1, int(self.ids[index]), str(index))


@pytest.mark.parametrize("count", [2, 3, 4, 6, 7, 30])
def test_a_bad_image_is_replaced_as_long_as_a_single_one_is_readable(count):
    for good in range(count):
        source = Fake(count, set(range(count)) - {good})
        for position in range(count):
            record, bad = read_or_replace(source, position, seed=0, epoch=1)
            assert record.id == source.ids[good]
            assert bad == (-1 if position == good else source.ids[position])


def test_the_replacement_depends_on_seed_epoch_and_id_alone():
    source = Fake(500, range(50))
    chosen = [read_or_replace(source, i, seed=0, epoch=1)[0].id for i in range(50)]
    assert chosen == [read_or_replace(source, i, seed=0, epoch=1)[0].id for i in reversed(range(50))][::-1]
    assert len(set(chosen)) > 30
    assert chosen != [read_or_replace(source, i, seed=0, epoch=2)[0].id for i in range(50)]
    assert chosen != [read_or_replace(source, i, seed=1, epoch=1)[0].id for i in range(50)]


@pytest.mark.parametrize(("count", "tried"), [(1, 1), (5, 5), (3000, 1000)])
def test_where_nothing_can_be_read_the_error_says_how_many_were_tried(count, tried):
    with pytest.raises(ConfigError, match=rf"none of {tried} images could be read; the last one was /data/\d+.jpg"):
        read_or_replace(Fake(count, range(count)), 0, seed=0, epoch=0)


def test_each_bad_image_is_named_once_and_only_the_first_ten(caplog):
    source = Fake(10_000, range(15))
    bad = BadImages(source, 0.01)
    with caplog.at_level(logging.WARNING):
        for i in range(15):
            bad.note(np.array([-1, source.ids[i], source.ids[0], -1], np.int32))
    named = [m for m in caplog.messages if "truncated" in m]
    assert len(named) == 10
    assert "/data/0.jpg: truncated" in named[0]
    assert len(caplog.messages) == 11
    assert len(bad) == 15


@pytest.mark.parametrize(("count", "fraction", "allowed"), [(50, 0.0, 1), (50, 0.01, 1), (400, 0.01, 4), (10, 1.0, 10)])
def test_more_than_the_share_allows_is_an_error_but_one_never_is(count, fraction, allowed):
    source = Fake(count, range(count))
    bad = BadImages(source, fraction)
    bad.note(source.ids[:allowed])
    if allowed < count:
        with pytest.raises(ConfigError, match=rf"{allowed + 1} of {count} images.*max_bad_fraction={fraction}.*/data/"):
            bad.note(source.ids[: allowed + 1])


def test_an_image_that_can_be_read_the_second_time_is_counted_and_said_so(caplog):
    bad = BadImages(Fake(9, []), 0.5)
    bad.note(np.array([102], np.int32))
    assert "could be read the second time" in caplog.text
    assert bad.ids == {102}


def test_one_readable_image_is_enough_and_none_is_an_error_that_names_the_data():
    check_readable(Fake(30, range(29)))
    with pytest.raises(
        ConfigError, match=r"data.name=fake: none of 30 held-out .* the last one was /data/29.jpg: trunc"
    ):
        check_readable(Fake(30, range(30)))
