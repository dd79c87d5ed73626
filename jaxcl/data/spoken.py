"""What a text tower is going to read: how many captions are cut, and how many still differ as rows of tokens."""

from __future__ import annotations

import numpy as np

from jaxcl.config import ConfigError
from jaxcl.data.record import BadImage, Captioned, Source
from jaxcl.data.tokens import Tokenizer

LOOKED_AT = 4096  # captions of a split, evenly spread: tokenizing some million takes minutes


def caption_line(source: Source, tokenizer: Tokenizer) -> str:
    """How many captions are cut and how many different rows of tokens they are, as one line.

    Args:
        source: the training split.
        tokenizer: of its captions.

    Returns:
        The line; it says where only some captions were looked at.

    Raises:
        ConfigError: all captions are the same to the text tower, which then has nothing to learn from.
    """
    captions = _some_captions(source)
    different = sorted(set(captions))
    rows = len(np.unique(tokenizer(different), axis=0)) if different else 0
    cut = sum(tokenizer.needed(caption) > tokenizer.length for caption in captions)
    empty = sum(not caption.strip() for caption in captions)
    if rows < 2 or empty == len(captions):
        raise ConfigError(f"data.name={source.name}: {_why_alike(different, len(captions), cut, tokenizer)}")
    hollow = f"; {empty:,} are empty" if empty else ""
    of = f" of {len(source):,}, evenly spread," if len(captions) < len(source) else ""
    return (
        f"captions: {len(captions):,}{of} with {len(different):,} different texts, which are {rows:,} different rows "
        f"of tokens; {cut:,} are longer than text.length = {tokenizer.length} and cut{hollow}"
    )


def _some_captions(source: Source) -> list[str]:
    """Captions of a split, evenly spread over it; those that cannot be read are left out."""
    captions = []
    for index in np.unique(np.linspace(0, len(source) - 1, min(len(source), LOOKED_AT)).astype(int)):
        try:
            captions.append(source.caption_of(int(index)) if isinstance(source, Captioned) else "")
        except BadImage:
            continue
    return captions


def _why_alike(different: list[str], count: int, cut: int, tokenizer: Tokenizer) -> str:
    """Why there is one row of tokens at most."""
    if not "".join(different).strip():
        return f"all {count} captions looked at are empty; name another text feature as data.caption"
    if len(different) == 1:
        said = f"all {count} captions looked at are {different[0][:60]!r}"
        return f"{said}; captions must differ: see its captions file, or data.caption"
    if cut:
        longest = max(map(tokenizer.needed, different))
        return (
            f"text.length = {tokenizer.length} cuts all {count} captions looked at to the same tokens; the longest "
            f"needs text.length = {longest}"
        )
    return f"text.tokenizer makes the same tokens of all {count} captions looked at; 'bytes' tells any two apart"
