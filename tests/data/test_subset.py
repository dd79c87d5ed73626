import numpy as np
import pytest

from jaxcl.config import AugmentConfig, ConfigError, DataConfig
from jaxcl.data import make_loader, open_source
from jaxcl.data.record import Record, Splits
from jaxcl.data.subset import Subset, hold_out_training


class Numbers:
    """An image a number, with ids that begin anywhere."""

    name, classes, channels, protocol, has_captions = "numbers", ("even", "odd"), 1, "numbers", False

    def __init__(self, count, first_id=0):
        self.ids = np.arange(first_id, first_id + count, dtype=np.int32)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return Record(np.full((8, 8, 1), index, np.uint8), index % 2, int(self.ids[index]), f"number {index}")


def test_a_subset_has_the_images_and_ids_of_its_positions():
    part = Subset(Numbers(10, first_id=100), np.array([2, 5, 9]), "some")
    assert (len(part), part.ids.tolist(), part.protocol) == (3, [102, 105, 109], "some")
    assert [part[i].id for i in range(3)] == [102, 105, 109]
    assert part[1].image[0, 0, 0] == 5


def test_held_out_training_images_are_scored_and_test_images_are_not_seen():
    train, scored = hold_out_training(Splits(Numbers(61), Numbers(7, first_id=61)), 1 / 6)
    assert (len(train), len(scored)) == (51, 10)
    assert sorted([*train.ids, *scored.ids]) == list(range(61))
    assert (np.diff(train.ids) > 0).all()
    assert "10 of its training images held out" in scored.protocol


def test_who_is_held_out_depends_on_ids_alone_and_a_smaller_share_is_part_of_a_larger_one():
    splits = Splits(Numbers(50), Numbers(5, first_id=50))
    first, again, more = (set(hold_out_training(splits, share).test.ids.tolist()) for share in (0.2, 0.2, 0.4))
    assert first == again
    assert first < more


def test_one_training_image_cannot_be_split():
    with pytest.raises(ConfigError, match="needs at least 2"):
        hold_out_training(Splits(Numbers(1), Numbers(1, first_id=1)), 0.5)


def test_the_setting_splits_the_training_images_of_any_source_and_they_can_be_read():
    whole, config = open_source(DataConfig()), DataConfig(validation=0.25)
    train, scored = open_source(config)
    assert len(scored) == len(whole.train) // 4
    assert not set(scored.ids.tolist()) & set(whole.test.ids.tolist())
    loader = make_loader(train, config=config, augment=AugmentConfig(), batch=8, seed=0)
    assert set(next(loader)["id"].tolist()) <= set(train.ids.tolist())
    loader.close()
