"""Batches that are read twice, a micro-batch at a time."""

import numpy as np
import pytest
from PIL import Image

from jaxcl.config import AugmentConfig, ConfigError, DataConfig
from jaxcl.data import LoaderOfMicroBatches, make_loader, open_source
from jaxcl.portions import Held, Portions


@pytest.fixture
def few(image_folder):
    """31 images: 2 batches of 13 an epoch, and 5 left over."""
    return open_source(DataConfig(name=f"folder:{image_folder({'': 38})}")).train


def loader(source, portions=None, *, batch=13, workers=0, **others):
    config = DataConfig(image_size=16, workers=workers)
    given = dict(batch=batch, seed=3, portions=portions, **others)
    return make_loader(source, config=config, augment=AugmentConfig(), **given)


def damage(folder, source, position):
    """Makes the file of an image one that cannot be decoded."""
    (folder / source[position].name).write_bytes(b"no image")


def assert_same(found, expected):
    found, expected = list(found), list(expected)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize(("batch", "micro"), [(13, 4), (12, 4), (7, 7)])
def test_both_passes_yield_the_micro_batches_of_a_batch_in_memory_also_in_a_later_epoch(few, batch, micro):
    portions = Portions(batch, micro)
    whole, twice = loader(few, batch=batch), loader(few, portions, batch=batch)
    assert isinstance(twice, LoaderOfMicroBatches)
    for _ in range(6):
        rows, again = next(whole), next(twice)
        assert_same(again, Held(rows, portions))
        for name in ("id", "label"):
            np.testing.assert_array_equal(again[name], rows[name])
        assert_same(again, Held(rows, portions))


def test_a_run_that_held_its_batches_goes_on_with_micro_batches_from_the_disk_and_the_other_way_round(few):
    portions = Portions(13, 4)
    held, twice = loader(few), loader(few, portions)
    for _ in range(3):
        next(held)
        again = next(twice)
        assert_same(again, list(again))
    assert held.position() == twice.position()
    onwards, back = loader(few, portions), loader(few)
    onwards.restore(held.position())
    back.restore(twice.position())
    expected = next(held)
    assert_same(next(onwards), Held(expected, portions))
    assert_same([next(back)], [expected])


def test_worker_processes_read_the_same(few):
    portions = Portions(13, 4)
    one, other = next(loader(few, portions)), loader(few, portions, workers=2)
    several = next(other)
    for _ in range(2):
        assert_same(several, one)
    other.close()


def test_two_processes_have_their_rows_of_every_micro_batch(few):
    portions = Portions(12, 4)
    whole = list(next(loader(few, portions, batch=12)))
    halves = [list(next(loader(few, portions, batch=12, process_index=i, process_count=2))) for i in range(2)]
    for micro, *parts in zip(whole, *halves, strict=True):
        np.testing.assert_array_equal(micro["id"], np.concatenate([part["id"] for part in parts]))


def test_reading_goes_on_from_a_position(few):
    portions = Portions(13, 4)
    one, other = loader(few, portions), loader(few, portions)
    for _ in range(3):
        batch = next(one)
        assert_same(batch, batch)
    assert one.position() == {**other.position(), "next_batch": 3}
    other.restore(one.position())
    assert_same(next(other), next(one))


def test_a_batch_is_gone_through_twice_and_no_more(few):
    batch = next(loader(few, Portions(13, 4)))
    assert_same(batch, batch)
    with pytest.raises(RuntimeError, match="can be gone through 2 times"):
        next(iter(batch))


def test_an_unreadable_image_is_replaced_in_both_passes_and_counted_once(image_folder):
    folder = image_folder({"": 38})
    source = open_source(DataConfig(name=f"folder:{folder}")).train
    damage(folder, source, 4)
    twice = loader(source, Portions(31, 4), batch=31)
    batch = next(twice)
    assert_same(batch, batch)
    assert len(twice.bad) == 1


def test_an_image_that_is_lost_between_the_passes_ends_the_run(image_folder):
    folder = image_folder({"": 38})
    source = open_source(DataConfig(name=f"folder:{folder}")).train
    batch = next(loader(source, Portions(31, 2), batch=31))
    for _ in batch:
        pass  # threads have begun with the second pass, but are not near its last micro-batch
    last = batch["id"][-1]
    damage(folder, source, int(np.searchsorted(source.ids, last)))
    with pytest.raises(ConfigError, match=rf"where image {last} was, there is .*batch.images = 'host'"):
        list(batch)


def test_an_image_that_is_another_in_the_second_pass_ends_the_run(image_folder):
    folder = image_folder({"": 38})
    source = open_source(DataConfig(name=f"folder:{folder}")).train
    batch = next(loader(source, Portions(31, 2), batch=31))
    for _ in batch:
        pass
    last = batch["id"][-1]
    path = folder / source[int(np.searchsorted(source.ids, last))].name
    Image.fromarray(np.full((40, 40, 3), 7, np.uint8)).save(path)
    with pytest.raises(ConfigError, match=rf"image {last} has other pixels; batch.images = 'host'"):
        list(batch)
