"""Retrieval of the second view: closed forms and a plain loop."""

import numpy as np
import pytest

from jaxcl.probes.retrieval import view_retrieval_top1


def reference(first, second):
    hits = 0
    for i, row in enumerate(first):
        cosines = [row @ other / np.linalg.norm(row) / np.linalg.norm(other) for other in second]
        hits += all(cosines[i] > cosine + 1e-6 for j, cosine in enumerate(cosines) if j != i)
    return hits / len(first)


def views(count, noise, width=6):
    random = np.random.default_rng(count)
    first = random.normal(size=(count, width)).astype(np.float32)
    return first, (first + noise * random.normal(size=first.shape)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 31])
@pytest.mark.parametrize("chunk", [None, 1, 8, 40])
def test_the_score_equals_a_plain_loop_for_every_size_and_chunk(count, chunk):
    first, second = views(count, noise=0.8)
    assert view_retrieval_top1(first, second, chunk=chunk) == pytest.approx(reference(first, second))


def test_identical_views_score_one_whatever_their_length():
    first, _ = views(50, noise=0.0)
    assert view_retrieval_top1(first, 3 * first) == 1.0


def test_unrelated_views_score_about_chance():
    random = np.random.default_rng(0)
    first, second = random.normal(size=(2, 500, 16)).astype(np.float32)
    assert view_retrieval_top1(first, second) < 0.02


@pytest.mark.parametrize("row", [0.0, 1.0])
def test_a_collapsed_representation_scores_zero_because_ties_count_against(row):
    same = np.full((33, 5), row, np.float32)
    assert view_retrieval_top1(same, same) == 0.0


def test_two_images_with_equal_features_are_both_missed():
    first = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0]], np.float32)
    assert view_retrieval_top1(first, first) == pytest.approx(1 / 3)


def test_cosines_that_differ_by_no_more_than_rounding_are_a_tie():
    close = np.array([[1, 0], [1, 5e-4]], np.float32)
    assert float(close[0] @ close[1] / np.linalg.norm(close[1])) < 1
    assert view_retrieval_top1(close, close) == 0.0
