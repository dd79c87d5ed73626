import os
import pickle
import shutil

import numpy as np
import pytest
from PIL import Image

from jaxcl.config import ConfigError, DataConfig
from jaxcl.data.folder import open_folder, open_images
from jaxcl.data.record import BadImage

CONFIG = DataConfig()


def names(source):
    return [source[i].name for i in range(len(source))]


def test_subfolders_are_labels_however_deep_the_images_lie(image_folder):
    splits = open_folder(str(image_folder({"cats/old/very": 3, "cats": 2, "dogs": 5})), CONFIG)
    assert splits.train.classes == splits.test.classes == ("cats", "dogs")
    assert (len(splits.train), len(splits.test)) == (8, 2)
    for side in splits:
        for i in range(len(side)):
            record = side[i]
            assert side.classes[record.label] == record.name.split("/")[0]
            assert record.image.shape == (10, 12, 3)


@pytest.mark.parametrize("counts", [{"": 6}, {"cats": 6}, {"": 1, "cats": 3, "dogs": 3}])
def test_without_two_subfolders_that_hold_everything_there_are_no_labels(image_folder, counts):
    splits = open_folder(str(image_folder(counts)), CONFIG)
    assert splits.train.classes == ()
    assert splits.train[0].label == -1
    assert "unlabelled" in splits.train.protocol


def test_ids_are_places_in_the_sorted_list_of_all_paths(image_folder):
    folder = image_folder({"b": 4, "a": 4, "c/d": 4})
    train, test = open_folder(str(folder), CONFIG)
    paths = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.png"))
    found = {int(side.ids[i]): side[i].name for side in (train, test) for i in range(len(side))}
    assert found == dict(enumerate(paths))
    assert train[0].id == train.ids[0]


def test_the_hold_out_does_not_depend_on_where_the_folder_is(image_folder, tmp_path):
    folder = image_folder({"a": 20, "b": 20})
    shutil.copytree(folder, tmp_path / "elsewhere" / "copy")
    assert names(open_folder(str(folder), CONFIG).test) == names(
        open_folder(str(tmp_path / "elsewhere/copy"), CONFIG).test
    )


@pytest.mark.parametrize("test_name", ["test", "val", "validation"])
def test_folders_called_train_and_test_are_the_splits(image_folder, test_name):
    counts = {"train/cats": 3, "train/dogs": 2, f"{test_name}/dogs": 2, f"{test_name}/cows": 1, "more": 4}
    train, test = open_folder(str(image_folder(counts)), CONFIG)
    assert (len(train), len(test)) == (5, 3)
    assert train.classes == ("cats", "cows", "dogs")
    assert not set(train.ids.tolist()) & set(test.ids.tolist())
    assert all(name.startswith("train/") for name in names(train))
    assert f"train/ and {test_name}/" in train.protocol


def test_content_counts_and_not_the_suffix(image_folder):
    folder = image_folder({"": 3})
    (folder / "000.png").rename(folder / "no_suffix")
    (folder / "notes.txt").write_text("not an image, and never said so")
    (folder / "empty.dat").write_bytes(b"")
    (folder / ".hidden.png").write_bytes(b"")
    (folder / "says_so.jpg").write_text("not an image, but says so")
    train, test = open_folder(str(folder), CONFIG)
    assert sorted(train._paths + test._paths) == ["001.png", "002.png", "no_suffix", "says_so.jpg"]


def test_a_bad_image_carries_its_path_and_reason(image_folder):
    folder = image_folder({"": 5})
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-30])
    train, _ = open_folder(str(folder), CONFIG)
    with pytest.raises(BadImage, match=f"{folder}/.*: .+"):
        train[0]


def test_a_link_to_a_parent_ends_and_a_linked_folder_is_read(image_folder, tmp_path):
    folder = image_folder({"a": 2, "b": 2})
    elsewhere = image_folder({"": 3}, root="elsewhere")
    (folder / "a" / "loop").symlink_to(folder)
    (folder / "c").symlink_to(elsewhere)
    train, test = open_folder(str(folder), CONFIG)
    assert len(train) + len(test) == 7
    assert train.classes == ("a", "b", "c")


def test_odd_file_names_are_read(image_folder):
    folder = image_folder({"": 3})
    os.rename(folder / "000.png", os.path.join(os.fsencode(folder), b"caf\xe9 \xf0\x9f\x98\x80.png"))
    (folder / "001.png").rename(folder / "with space\n.png")
    train, test = open_folder(str(folder), CONFIG)
    assert sum(side[i].image.size for side in (train, test) for i in range(len(side))) == 3 * 360
    for name in names(train) + names(test):
        name.encode()  # can be printed and written


def test_a_source_can_be_pickled(image_folder):
    train, _ = open_folder(str(image_folder({"a": 5, "b": 5})), CONFIG)
    assert (pickle.loads(pickle.dumps(train))[3].image == train[3].image).all()


def test_no_folder_a_file_an_empty_one_and_a_single_image_are_errors(tmp_path, image_folder):
    with pytest.raises(ConfigError, match=r"nowhere: there is no such folder"):
        open_folder(str(tmp_path / "nowhere"), CONFIG)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"file, not a folder"):
        open_folder(str(tmp_path / "file"), CONFIG)
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    (tmp_path / "empty" / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"there is no image"):
        open_folder(str(tmp_path / "empty"), CONFIG)
    with pytest.raises(ConfigError, match=r"1 image, and a hold-out needs at least 2"):
        open_folder(str(image_folder({"": 1})), CONFIG)


def test_gray_images_become_rgb(tmp_path):
    for i in range(3):
        Image.fromarray(np.full((9, 9), 50 * i, np.uint8)).save(tmp_path / f"{i}.png")
    train, _ = open_folder(str(tmp_path), CONFIG)
    assert train.channels == 3
    assert train[0].image.shape == (9, 9, 3)


def test_a_path_that_cannot_be_looked_at_is_an_error_that_names_the_setting(tmp_path, monkeypatch):
    for path in ("x" * 300, "~nobody-of-that-name/x"):
        with pytest.raises(ConfigError, match=r"^data.name=folder:.* cannot be read: "):
            open_folder(path, DataConfig())

    def gone(path):
        raise ProcessLookupError(3, "No such process", path)

    monkeypatch.setattr(os, "scandir", gone)
    with pytest.raises(ConfigError, match=r"^data.name=folder:.*No such process"):
        open_folder(str(tmp_path), DataConfig())


def test_all_images_of_a_folder_come_in_the_order_of_their_paths_without_splits_or_labels(image_folder):
    folder = image_folder({"train/cats": 2, "test/cats": 1, "dogs": 1, "": 1})
    source = open_images(str(folder), called="--images=it", max_pixels=10_000)
    assert names(source) == sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.png"))
    assert [source[i].id for i in range(5)] == source.ids.tolist() == list(range(5))
    assert source.classes == ()
    assert source[0].image.shape == (10, 12, 3)


def test_one_image_is_enough_and_grey_ones_are_as_bright_as_those_in_colour(image_folder):
    folder = str(image_folder({"": 1}))
    colour, grey = (open_images(folder, called="", max_pixels=10_000, channels=channels) for channels in (3, 1))
    assert grey[0].image.shape == (10, 12, 1)
    expected = colour[0].image.astype(float) @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(grey[0].image[..., 0], expected, atol=0.51)


def test_who_asked_for_a_folder_that_has_no_images_is_named(tmp_path):
    with pytest.raises(ConfigError, match="--images=it: there is no image in this folder or below it"):
        open_images(str(tmp_path), called="--images=it", max_pixels=10_000)
