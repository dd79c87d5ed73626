"""Retrieval between held-out images and their captions, beside what chance and the colours of an image say."""

from __future__ import annotations

import dataclasses
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int

RANKS = (1, 5)
TIE = 1e-6  # cosines closer than this are a tie, as in `view_retrieval_top1`
CHUNK_ELEMENTS = 2**24  # of the cosine matrix of one chunk: 64 MiB in float32
LEVELS = 4  # of each channel in a histogram: 64 colours
BUCKETS = 4096  # that pieces of words are hashed into
MAX_PAIRS = 20_000  # that the colour floor is fitted to
PENALTIES = tuple(10.0**exponent for exponent in range(-3, 3))  # in units of the mean variance of a colour


@dataclasses.dataclass(frozen=True)
class CaptionScores:
    """Shares in [0, 1] of images whose caption, and of captions whose image, is the most similar, or among five."""

    image_to_text_top1: float
    image_to_text_top5: float
    text_to_image_top1: float
    text_to_image_top5: float


def caption_scores(
    images: Float[np.ndarray, "n d"], texts: Float[np.ndarray, "n d"], captions: Sequence[str]
) -> CaptionScores:
    """Retrieval by cosine among the held-out images and their captions, each different caption once.

    All images of a caption are right for it. Ties count against, so that vectors that are all one score 0.

    Args:
        images: [n, D].
        texts: [n, D], of the caption of each image.
        captions: n, to know equal ones.

    Returns:
        Top 1 and top 5 of both directions.

    >>> caption_scores(np.eye(3), np.eye(3), "abc").image_to_text_top1
    1.0
    """
    different, group = _numbered(captions)
    pictures, words = _unit(images), _unit(texts)[different]
    there = _ranks(pictures, words, group, np.arange(len(different)))
    back = _ranks(words, pictures, np.arange(len(different)), group)
    return CaptionScores(*(float(np.mean(ranks < k)) for ranks in (there, back) for k in RANKS))


def chance_scores(captions: Sequence[str]) -> CaptionScores:
    """What a random order of captions, or of images, scores.

    >>> chance_scores("abcd").image_to_text_top1
    0.25
    """
    different, group = _numbered(captions)
    total, kinds = len(group), len(different)
    there = [min(1.0, k / kinds) for k in RANKS]
    copies = np.bincount(group)
    missed = [
        np.mean([math.comb(total - c, k) / math.comb(total, k) for c in copies]) if total > k else 0 for k in RANKS
    ]
    return CaptionScores(*there, *(float(1 - m) for m in missed))


def colour_scores(
    train_colours: Float[np.ndarray, "n bins"],
    train_captions: Sequence[str],
    test_colours: Float[np.ndarray, "m bins"],
    test_captions: Sequence[str],
) -> CaptionScores:
    """The floor of a bag of colours: how far the colours of an image, wherever they are, lead to its caption.

    A ridge regression from the square roots of the histogram to the words and letter triples of the caption, weighted
    by how rare they are, fitted to at most 20,000 training pairs; every fifth of them chooses its penalty.

    Args:
        train_colours: [n, bins], from `colour_histogram`.
        train_captions: n.
        test_colours: [m, bins].
        test_captions: m.

    Returns:
        Retrieval between predicted bags and those of the captions, by cosine.
    """
    kept = np.linspace(0, len(train_captions) - 1, min(len(train_captions), MAX_PAIRS)).astype(int)
    said = [train_captions[i] for i in kept]
    bags, weights = _bags(said)
    colours = np.sqrt(train_colours[kept])
    check = np.arange(len(kept)) % 5 == 4
    penalty = PENALTIES[-1]
    if check.any():
        fits = [_ridge(colours[~check], bags[~check], each) for each in PENALTIES]
        checked = [said[i] for i in np.flatnonzero(check)]
        tried = [caption_scores(*_compared(fit, colours[check], bags[check]), checked) for fit in fits]
        penalty = max(zip(tried, PENALTIES, strict=True), key=lambda pair: sum(dataclasses.astuple(pair[0])))[1]
    fit = _ridge(colours, bags, penalty)
    test_bags, _ = _bags(test_captions, weights)
    return caption_scores(*_compared(fit, np.sqrt(test_colours), test_bags), test_captions)


def colour_histogram(images: np.ndarray) -> Float[np.ndarray, "n bins"]:
    """How much of each image has each of 64 colours (of 4 shades of gray where there is one channel).

    Args:
        images: uint8 [n, H, W, C].

    Returns:
        [n, 4^C] float32; each row sums to 1.

    >>> colour_histogram(np.zeros((1, 2, 2, 1), np.uint8)).tolist()
    [[1.0, 0.0, 0.0, 0.0]]
    """
    levels = images.astype(np.int64) * LEVELS // 256
    number = sum(levels[..., c] * LEVELS**c for c in range(images.shape[-1])).reshape(len(images), -1)
    bins = LEVELS ** images.shape[-1]
    return np.stack([np.bincount(row, minlength=bins) / len(row) for row in number]).astype(np.float32)


def _numbered(captions: Sequence[str]) -> tuple[Int[np.ndarray, " k"], Int[np.ndarray, " n"]]:
    """Where each different caption stands first, and which of them each is."""
    _, first, group = np.unique(np.asarray(list(captions)), return_index=True, return_inverse=True)
    return first, group


def _ranks(queries: np.ndarray, candidates: np.ndarray, wanted: np.ndarray, given: np.ndarray) -> np.ndarray:
    """For each query the number of wrong candidates that are not clearly less similar than its best right one."""
    chunk = max(1, CHUNK_ELEMENTS // len(candidates))
    pieces = []
    for start in range(0, len(queries), chunk):
        cosines = queries[start : start + chunk] @ candidates.T
        right = wanted[start : start + chunk, None] == given
        best = np.max(np.where(right, cosines, -np.inf), axis=1, keepdims=True)
        pieces.append(np.sum(~right & ~(cosines < best - TIE), axis=1))
    return np.concatenate(pieces)


def _unit(rows: np.ndarray) -> np.ndarray:
    """Rows of norm 1; a zero row stays zero."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1)


def _pieces(caption: str) -> Iterator[str]:
    """The words of a caption, and their letter triples."""
    for word in re.findall(r"\w+", caption.lower()):
        yield word
        padded = f" {word} "
        yield from (padded[i : i + 3] for i in range(len(padded) - 2))


def _bags(captions: Iterable[str], weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Counts of the pieces of each caption, weighted, of norm 1; and the weights, log(captions / those with it)."""
    counts = np.stack([_counts(caption) for caption in captions])
    if weights is None:
        weights = np.log((1 + len(counts)) / (1 + np.sum(counts > 0, axis=0)))
    return _unit(counts * weights), weights


def _counts(caption: str) -> np.ndarray:
    """How often each bucket is hit."""
    buckets = [zlib.crc32(piece.encode("utf-8", "replace")) % BUCKETS for piece in _pieces(caption)]
    return np.bincount(np.array(buckets, np.int64), minlength=BUCKETS).astype(np.float32)


def _ridge(x: np.ndarray, y: np.ndarray, penalty: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean input, matrix and mean output of a regression with a penalty in units of the mean variance of an input."""
    means = x.mean(axis=0), y.mean(axis=0)
    centred = x - means[0]
    gram = centred.T @ centred
    scale = max(float(np.trace(gram)) / len(gram), 1e-12)
    matrix = np.linalg.solve(gram + penalty * scale * np.eye(len(gram)), centred.T @ (y - means[1]))
    return means[0], matrix, means[1]


def _compared(
    fit: tuple[np.ndarray, np.ndarray, np.ndarray], x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Predicted and true outputs, both without the mean output, which is the same for all."""
    mean, matrix, offset = fit
    return (x - mean) @ matrix, y - offset
