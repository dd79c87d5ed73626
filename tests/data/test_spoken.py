"""What a text tower is going to read is said, and refused where there is nothing to tell apart."""

import numpy as np
import pytest

from jaxcl.config import ConfigError, DataConfig, resolve
from jaxcl.data import BadImage, Tokenizer, caption_line, open_source
from jaxcl.train import train


class Spoken:
    """A source of captions alone; those that are None cannot be read."""

    name, classes, channels, protocol, has_captions, captions_at_hand = "few", (), 3, "", True, False

    def __init__(self, captions):
        self.captions, self.ids, self.read = captions, np.arange(len(captions), dtype=np.int32), []

    def __len__(self):
        return len(self.captions)

    def __getitem__(self, index):
        raise AssertionError("no image is decoded")

    def caption_of(self, index):
        self.read.append(index)
        if self.captions[index] is None:
            raise BadImage("few", "no caption")
        return self.captions[index]


def test_it_says_how_many_captions_are_cut_and_how_many_rows_of_tokens_are_left():
    captions = ["red", "red", "a long one", "a long two", "blue", None]
    assert caption_line(Spoken(captions), Tokenizer(8)) == (
        "captions: 5 of 6, evenly spread, with 4 different texts, which are 3 different rows of tokens; 2 are longer "
        "than text.length = 8 and cut"
    )
    assert caption_line(Spoken(["", "red"]), Tokenizer(12)).endswith(
        "; 0 are longer than text.length = 12 and cut; 1 are empty"
    )


def test_of_many_captions_a_few_that_are_spread_evenly_are_looked_at():
    source = Spoken([f"number {i}" for i in range(20_001)])
    assert caption_line(source, Tokenizer(20)).startswith("captions: 4,096 of 20,001, evenly spread, with 4,096 diff")
    assert (source.read[0], source.read[-1], len(set(source.read))) == (0, 20_000, 4096)
    assert set(np.diff(source.read)) <= {4, 5}


def no_words(caption):
    return [0]


@pytest.mark.parametrize(
    ("captions", "tokenizer", "message"),
    [
        (["a photo of a cat", "a photo of a dog!"], Tokenizer(8), r"text.length = 8 cuts all 2 .* text.length = 19$"),
        (["cat"] * 3, Tokenizer(8), r"all 3 captions looked at are 'cat'; captions must differ"),
        (["", " ", ""], Tokenizer(8), r"all 3 captions looked at are empty; name another .* data.caption$"),
        (["cat", "dog"], Tokenizer(8, no_words), r"text.tokenizer makes the same tokens of all 2 captions"),
    ],
)
def test_captions_that_are_all_the_same_to_the_tower_are_an_error_that_says_why(captions, tokenizer, message):
    with pytest.raises(ConfigError, match=rf"^data.name=few: {message}"):
        caption_line(Spoken(captions), tokenizer)


def test_skin_tones_share_the_name_of_their_emoji():
    train = open_source(DataConfig(skin_tones=True), captions=True).train
    said = caption_line(train, Tokenizer(80))
    assert said.startswith(f"captions: {len(train):,} with ")
    assert "; 0 are longer" in said


def test_a_run_of_captions_that_are_cut_to_one_row_ends_before_anything_is_written(image_folder, tmp_path):
    root = image_folder({"cats": 6, "dogs": 7})
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.png"))
    (root / "captions.tsv").write_text("".join(f"{name}\tthis is {name}\n" for name in names))
    config = resolve(
        {
            "method": "clip",
            "steps": 1,
            "data": {"name": f"folder:{root}", "image_size": 8},
            "text": {"length": 9, "width": 8, "depth": 1, "heads": 2},
            "batch": {"size": 8},
            "loss": {"top_k": None},
            "queue": {"size": 0},
            "model": {"head_hidden": 8, "head_dim": 4},
            "optim": {"warmup_steps": 0},
            "mesh": {"shape": {"data": 1}},
        }
    )
    with pytest.raises(ConfigError, match=r"^data.name=folder:.*: text.length = 9 cuts all \d+ captions"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
