"""Captions to tokens, on the host: UTF-8 bytes, words by hash, or the tokenizer of a `tokenizer.json`.

Three tokens are ours, whatever the tokenizer: padding, start and end. Its own are numbered after them.
"""

from __future__ import annotations

import functools
import hashlib
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from jaxcl.config import ConfigError, TextConfig

PAD, START, END = range(3)
OURS = 3
WORD_BUCKETS = 2**13  # few of some thousand words share one


class Tokenizer:
    """From captions to rows of tokens; picklable, so that worker processes have it too.

    Attributes:
        vocab: how many different tokens there are.
        length: tokens of a row.
        fingerprint: what the numbers of a caption depend on besides `vocab` and `length`.
    """

    def __init__(
        self,
        length: int,
        numbers: Callable[[str], Sequence[int]] | None = None,
        *,
        vocab: int = 256,
        fingerprint: str = "bytes",
    ):
        """Over a way to number the parts of a caption.

        Args:
            length: tokens of a row, with start and end.
            numbers: from a caption to numbers below `vocab`; None: its UTF-8 bytes.
            vocab: how many numbers there are.
            fingerprint: another one for another way.
        """
        self.fingerprint = fingerprint
        self.length = length
        self.vocab = OURS + vocab
        self._numbers = _bytes if numbers is None else numbers

    def __call__(self, captions: Sequence[str]) -> Int32[np.ndarray, "b l"]:
        """Start, the tokens of the caption, end, then padding; a long caption is cut before its end token.

        Args:
            captions: any texts, also empty ones.

        Returns:
            [b, length].

        >>> Tokenizer(5)(["a", "abcd"]).tolist()
        [[1, 100, 2, 0, 0], [1, 100, 101, 102, 2]]
        """
        rows = np.full((len(captions), self.length), PAD, np.int32)
        for row, caption in zip(rows, captions, strict=True):
            inner = self._numbers(caption)[: self.length - 2]
            row[: len(inner) + 2] = [START, *(OURS + token for token in inner), END]
        return rows

    def needed(self, caption: str) -> int:
        """Tokens of a row that holds all of a caption, with start and end.

        >>> Tokenizer(5).needed("abcd")
        6
        """
        return len(self._numbers(caption)) + 2


def make_tokenizer(config: TextConfig) -> Tokenizer:
    """The tokenizer that a config names.

    Args:
        config: `tokenizer` and `length`.

    Returns:
        A function from captions to tokens.

    Raises:
        ConfigError: no such file, not a tokenizer, an empty one, or the library that reads it is missing.

    >>> make_tokenizer(TextConfig()).vocab
    259
    """
    if config.tokenizer == "bytes":
        return Tokenizer(config.length)
    if config.tokenizer == "words":
        return Tokenizer(config.length, _words, vocab=WORD_BUCKETS, fingerprint="words")
    path = Path(config.tokenizer).expanduser()
    if not path.is_file():
        raise ConfigError(f"text.tokenizer = {config.tokenizer!r} is neither 'bytes' nor 'words' nor a file")
    try:
        from tokenizers import Tokenizer as Library
    except ImportError:
        raise ConfigError(
            f"text.tokenizer = {config.tokenizer!r} needs the library that reads it: pip install tokenizers"
        ) from None
    try:
        library = Library.from_file(str(path))
    except Exception as error:  # the library's own, of no common class
        reason = " ".join(str(error).split())
        raise ConfigError(f"text.tokenizer = {config.tokenizer!r} is not a tokenizer.json: {reason}") from error
    library.no_truncation()
    library.no_padding()
    # not the size of its vocabulary: numbers may have gaps
    vocab = 1 + max(library.get_vocab(with_added_tokens=True).values(), default=-1)
    if not vocab:
        raise ConfigError(f"text.tokenizer = {config.tokenizer!r} has an empty vocabulary; name one that was trained")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Tokenizer(config.length, functools.partial(_encoded, library), vocab=vocab, fingerprint=digest)


def _encoded(library: Any, caption: str) -> list[int]:
    """What a tokenizer of the library says, without its own start and end."""
    return library.encode(caption, add_special_tokens=False).ids


def _bytes(caption: str) -> bytes:
    """UTF-8."""
    return caption.encode("utf-8", "replace")


def _words(caption: str) -> list[int]:
    """Words in lower case and single signs, each by a hash: without a list of known words there is nothing to ship."""
    parts = re.findall(r"\w+|[^\w\s]", caption.lower())
    return [zlib.crc32(_bytes(part)) % WORD_BUCKETS for part in parts]
