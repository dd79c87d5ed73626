"""Captions to tokens, on the host: UTF-8 bytes, or the tokenizer of a `tokenizer.json`.

Three tokens are ours, whatever the tokenizer: padding, start and end. Its own are numbered after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from jaxcl.config import ConfigError, TextConfig

PAD, START, END = range(3)
OURS = 3
BYTES = "bytes"


class Tokenizer:
    """From captions to rows of tokens; picklable, so that worker processes have it too.

    Attributes:
        vocab: how many different tokens there are.
        length: tokens of a row.
    """

    def __init__(self, length: int, library: Any = None):
        self.length = length
        # not the size of its vocabulary: numbers may have gaps
        own = 256 if library is None else 1 + max(library.get_vocab(with_added_tokens=True).values())
        self.vocab = OURS + own
        self._library = library

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
            inner = self._inner(caption)[: self.length - 2]
            row[: len(inner) + 2] = [START, *(OURS + token for token in inner), END]
        return rows

    def _inner(self, caption: str) -> Sequence[int]:
        """The tokens of a caption, numbered by its tokenizer."""
        if self._library is None:
            return caption.encode("utf-8", "replace")
        return self._library.encode(caption, add_special_tokens=False).ids


def make_tokenizer(config: TextConfig) -> Tokenizer:
    """The tokenizer that a config names.

    Args:
        config: `tokenizer` and `length`.

    Returns:
        A function from captions to tokens.

    Raises:
        ConfigError: no such file, not a tokenizer, or the library that reads it is missing.

    >>> make_tokenizer(TextConfig()).vocab
    259
    """
    if config.tokenizer == BYTES:
        return Tokenizer(config.length)
    path = Path(config.tokenizer).expanduser()
    if not path.is_file():
        raise ConfigError(f"text.tokenizer = {config.tokenizer!r} is neither 'bytes' nor a file")
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
    return Tokenizer(config.length, library)
