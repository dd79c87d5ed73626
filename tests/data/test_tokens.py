import pickle
import sys

import numpy as np
import pytest

from jaxcl.config import ConfigError, TextConfig, resolve
from jaxcl.data import Tokenizer, make_tokenizer


def test_bytes_stand_between_a_start_and_an_end_token_before_padding():
    rows = make_tokenizer(TextConfig(length=6))(["ab", "", "é"])
    assert rows.dtype == np.int32
    assert rows.tolist() == [
        [1, 3 + ord("a"), 3 + ord("b"), 2, 0, 0],
        [1, 2, 0, 0, 0, 0],
        [1, 3 + 0xC3, 3 + 0xA9, 2, 0, 0],
    ]


def test_words_have_numbers_of_their_own_whatever_their_case_and_signs_count():
    tokenizer = make_tokenizer(TextConfig(tokenizer="words", length=8))
    rows = tokenizer(["Red flag", "flag: red", "red", "keycap #", "keycap *", "é " * 9])
    [_, red, flag, end, *pad] = rows[0].tolist()
    assert (end, pad) == (2, [0] * 4)
    assert rows[2].tolist() == [1, red, 2, 0, 0, 0, 0, 0]
    assert [rows[1, 1], rows[1, 3]] == [flag, red]
    assert len(set(rows[3:5, 2].tolist()) | {red, flag, int(rows[3, 1]), int(rows[5, 1])}) == 6
    assert rows[5, -1] == 2
    assert 2 < rows[rows > 2].min() <= rows.max() < tokenizer.vocab


@pytest.mark.parametrize("length", [3, 4, 7])
def test_a_long_caption_is_cut_and_keeps_its_end_token(length):
    [row] = Tokenizer(length)(["abcdefgh"])
    assert row.tolist() == [1, *(3 + ord(c) for c in "abcdefgh"[: length - 2]), 2]


def test_every_byte_is_a_token_of_the_vocabulary():
    tokenizer = Tokenizer(40)
    text = "".join(map(chr, range(0x7F0, 0x800))) + "\udc80\x00"  # a lone surrogate has no UTF-8
    assert tokenizer([text]).max() < tokenizer.vocab == 259


def test_a_tower_without_room_for_one_token_is_an_error_that_names_the_setting():
    with pytest.raises(ConfigError, match=r"text.length = 2 is below the smallest valid value 3"):
        resolve({"text": {"length": 2}})


def test_heads_that_do_not_divide_the_width_are_an_error_with_those_that_do():
    with pytest.raises(ConfigError, match=r"text.width = 128 is not divisible by text.heads = 3.*are 2 and 4"):
        resolve({"text": {"heads": 3}})


def test_a_tokenizer_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"text.tokenizer = '.*/none.json' is neither 'bytes' nor 'words' nor a file"):
        make_tokenizer(TextConfig(tokenizer=str(tmp_path / "none.json")))


def test_a_missing_library_is_an_error_with_the_pip_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"needs the library that reads it: pip install tokenizers"):
        make_tokenizer(TextConfig(tokenizer=str(tmp_path / "tokenizer.json")))


def test_a_file_that_is_no_tokenizer_is_named(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer.json' is not a tokenizer.json: "):
        make_tokenizer(TextConfig(tokenizer=str(tmp_path / "tokenizer.json")))


def test_an_empty_vocabulary_is_an_error_that_names_the_setting(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizers.Tokenizer(tokenizers.models.WordLevel({}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"^text.tokenizer = '.*/tokenizer.json' has an empty vocabulary; "):
        make_tokenizer(TextConfig(tokenizer=str(tmp_path / "tokenizer.json")))


def test_a_tokenizer_of_the_library_is_read_cut_and_pickled(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, "red": 1, "flag": 2, "##s": 9}  # numbers may have gaps
    model = tokenizers.models.WordPiece(words, unk_token="[UNK]")
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.enable_truncation(2)
    library.enable_padding(length=9)
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = make_tokenizer(TextConfig(tokenizer=str(tmp_path / "tokenizer.json"), length=5))
    words["blue"] = 3
    library.model = tokenizers.models.WordPiece(words, unk_token="[UNK]")
    library.save(str(tmp_path / "other.json"))  # of the same size
    other = make_tokenizer(TextConfig(tokenizer=str(tmp_path / "other.json"), length=5))
    assert other.vocab == tokenizer.vocab
    ways = {make_tokenizer(TextConfig(tokenizer=name)).fingerprint for name in ("bytes", "words")}
    assert len({other.fingerprint, tokenizer.fingerprint} | ways) == 4
    expected = [[1, 4, 5, 12, 2], [1, 4, 4, 4, 2], [1, 3, 2, 0, 0]]
    for each in (tokenizer, pickle.loads(pickle.dumps(tokenizer))):
        assert each.vocab == 13
        assert each(["red flags", "red red red red", "blue"]).tolist() == expected
