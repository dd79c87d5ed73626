from dataclasses import replace

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
        ("a/one.png\tone\na/two.png\tcaf\xe9\n".encode("latin-1"), r"captions.tsv, line 2: .*save the file as UTF-8"),
        ("path\tcaption\na/one.png\tone\n".encode("utf-16"), r"captions.tsv, line 1: .*save the file as UTF-8"),
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('a/one.png,one\n"a/two.png,two\nthree,drei\n', r"captions.csv, line 2: unexpected end of data; is a quote"),
        ('a/one.png,"one\n\nend"\na/two.png,"two" more\n', r"captions.csv, line 4: .* is a quote"),
        ('a/one.png,"one\nend"\na/two.png\n', r"captions.csv, line 3: \['a/two.png'\] is not a path and"),
        ('a/one.png,"' + "x" * 200_000, r"captions.csv, line 1: field larger than"),
        ("a/one.png,caf\xe9\n".encode("latin-1"), r"captions.csv, line 1: .*save the file as UTF-8"),
    ],
)
def test_a_table_with_commas_that_breaks_off_is_named_with_the_line_where_that_begins(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read_captions(write(tmp_path, text, "captions.csv"), PATHS)
    assert "\n" not in str(caught.value)


def test_a_table_that_is_a_folder_or_a_link_to_nowhere_is_an_error(tmp_path):
    (tmp_path / "captions.tsv").mkdir()
    with pytest.raises(ConfigError, match=r"captions.tsv cannot be read: Is a directory"):
        read_captions(tmp_path, PATHS)
    (tmp_path / "captions.tsv").rmdir()
    (tmp_path / "captions.tsv").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"captions.tsv cannot be read: No such file"):
        read_captions(tmp_path, PATHS)


def test_bytes_that_are_no_utf8_find_their_file(tmp_path):
    path = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    assert read_captions(write(tmp_path, b"caf\xe9.png\tcoffee\n"), [path]) == {path: "coffee"}


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


def test_a_run_goes_on_with_the_captions_and_the_tokenizer_that_it_began_with(folder):
    config = DataConfig(name=f"folder:{folder}", image_size=8)

    def loader(tokenizer=None, validation=0.0):
        source = open_source(replace(config, validation=validation), captions=True).train
        common = dict(config=config, augment=AugmentConfig(), batch=4, seed=3)
        return make_loader(source, **common, views=1, tokenizer=tokenizer or Tokenizer(40))

    began, subset = loader().position(), loader(validation=0.3).position()
    loader().restore(began)
    loader(Tokenizer(40, fingerprint="bytes")).restore(
        {key: value for key, value in began.items() if key not in ("captions", "tokenizer")}  # of an earlier version
    )
    with pytest.raises(ConfigError, match=r"checkpoint stopped: the file of text.tokenizer is not that of before$"):
        loader(Tokenizer(40, fingerprint="another")).restore(began)
    table = folder / "captions.tsv"
    table.write_text(table.read_text().replace("this is", "that is"))
    for validation, position in ((0.0, began), (0.3, subset)):
        with pytest.raises(ConfigError, match=r"stopped: the captions of data.name=folder:.* are not those of before$"):
            loader(validation=validation).restore(position)


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
