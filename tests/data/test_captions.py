import numpy as np
import pytest

from jaxcl.config import AugmentConfig, ConfigError, DataConfig, resolve
from jaxcl.data import Tokenizer, eval_batches, make_loader, open_source
from jaxcl.data.captions import read_captions

PATHS = ["a/one.png", "a/two.png", "three, or 3.png"]


def write(folder, text, name="captions.tsv"):
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def test_a_folder_without_a_table_has_no_captions(tmp_path):
    assert read_captions(tmp_path, PATHS) == {}


@pytest.mark.parametrize("header", ["", "path\tcaption\n", "\ufeff"])
def test_a_table_with_tabs_gives_each_path_its_caption(tmp_path, header):
    text = 'a/one.png\t a "cat", asleep \n\n./a/two.png\tund\tzwei\r\nthree, or 3.png\tdrei\nelsewhere.png\tno image\n'
    captions = read_captions(write(tmp_path, header + text), PATHS)
    assert [captions[path] for path in PATHS] == ['a "cat", asleep', "und\tzwei", "drei"]


def test_a_table_with_commas_may_quote(tmp_path):
    text = 'path,caption\na/one.png,"a cat, asleep"\na/two.png,two\n"three, or 3.png",drei\n'
    captions = read_captions(write(tmp_path, text, "captions.csv"), PATHS)
    assert [captions[path] for path in PATHS] == ["a cat, asleep", "two", "drei"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a/one.png\tone\na/two.png\n", r"captions.tsv, line 2: \['a/two.png'\] is not a path and a caption"),
        ("a/one.png\t  \n", r"captions.tsv, line 1: .* is not a path and a caption"),
        ("a/one.png\tone\na/one.png\tuno\n", r"line 2: a/one.png has a caption already"),
        ("a/two.png\ttwo\n", r"captions.tsv has no caption for 2 of 3 images; the first is 'a/one.png'"),
    ],
)
def test_a_table_that_does_not_say_it_all_is_an_error_of_one_line(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read_captions(write(tmp_path, text), PATHS)
    assert "\n" not in str(caught.value)


def test_two_tables_are_an_error(tmp_path):
    write(write(tmp_path, ""), "", "captions.csv")
    with pytest.raises(ConfigError, match=r"captions.tsv and captions.csv; only one"):
        read_captions(tmp_path, PATHS)


def test_bytes_that_are_no_utf8_find_their_file_and_are_replaced_in_a_caption(tmp_path):
    path = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    assert read_captions(write(tmp_path, b"caf\xe9.png\tcaf\xe9\n"), [path]) == {path: "caf�"}


@pytest.fixture
def folder(image_folder):
    root = image_folder({"cats": 6, "dogs": 7})
    paths = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.png"))
    return write(root, "".join(f"{path}\tthis is {path}\n" for path in paths))


def test_a_folder_carries_captions_where_they_are_asked_for(folder):
    config = DataConfig(name=f"folder:{folder}", image_size=8)
    for side in open_source(config, captions=True):
        assert side.has_captions
        assert all(side[i].caption == f"this is {side[i].name}" for i in range(len(side)))
    silent = open_source(config).train
    assert not silent.has_captions
    assert silent[0].caption == ""


def test_a_batch_has_tokens_of_its_captions_and_one_view_is_the_first_of_two(folder):
    config = DataConfig(name=f"folder:{folder}", image_size=8)
    train = open_source(config, captions=True).train
    common = dict(config=config, augment=AugmentConfig(), batch=8, seed=3)
    loaders = make_loader(train, **common), make_loader(train, **common, views=1, tokenizer=Tokenizer(40))
    two, one = map(next, loaders)
    assert one["views"].shape == (8, 1, 8, 8, 3)
    assert one["tokens"].shape == (8, 40)
    np.testing.assert_array_equal(one["views"], two["views"][:, :1])
    assert set(one) - {"tokens"} == set(two)
    said = {int(i): train[n].caption for n, i in enumerate(train.ids)}
    np.testing.assert_array_equal(one["tokens"], Tokenizer(40)([said[int(i)] for i in one["id"]]))
    for each in loaders:
        each.close()


def test_evaluation_reads_captions_beside_their_images(folder):
    config = DataConfig(name=f"folder:{folder}", image_size=8)
    test = open_source(config, captions=True).test
    [chunk] = eval_batches(test, config=config)
    assert chunk["caption"].tolist() == [f"this is {name}" for name in chunk["name"]]
    [silent] = eval_batches(open_source(config).test, config=config)
    assert "caption" not in silent


def test_emoji_are_called_by_their_names():
    train, test = open_source(DataConfig(), captions=True)
    captions = [side[i].caption for side in (train, test) for i in range(50)]
    assert all(caption and caption == caption.lower() for caption in captions)
    assert not open_source(DataConfig()).train[0].caption


def test_a_caption_feature_of_what_is_no_tfds_set_is_an_error():
    with pytest.raises(ConfigError, match=r"data.caption = 'text' is read only with data.name = 'tfds:NAME'"):
        resolve({"data": {"caption": "text"}})
