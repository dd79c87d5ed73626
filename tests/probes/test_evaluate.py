"""All probes of one representation together."""

import numpy as np
import pytest

from jaxcl.probes import Scores, majority_share, probe

SETTINGS = dict(knn_k=5, knn_temperature=0.07, linear_steps=30, seed=0)


def blobs(count, seed):
    random = np.random.default_rng(seed)
    labels = np.arange(count, dtype=np.int32) % 3
    return (np.eye(4)[labels] + 0.05 * random.normal(size=(count, 4))).astype(np.float32), labels


TRAIN, TRAIN_LABELS = blobs(50, 0)
TEST, TEST_LABELS = blobs(23, 1)


def test_separable_classes_and_equal_views_score_one_everywhere():
    assert probe(TRAIN, TRAIN_LABELS, TEST, TEST_LABELS, **SETTINGS, views=(TEST, TEST)) == Scores(1.0, 1.0, 1.0, 0)


def test_without_labels_only_retrieval_has_a_score():
    nobody = np.full(50, -1, np.int32)
    scores = probe(TRAIN, nobody, TEST, nobody[:23], **SETTINGS, views=(TEST, TEST))
    assert (scores.knn_top1, scores.linear_top1, scores.view_retrieval_top1) == (None, None, 1.0)


def test_labels_on_one_side_only_are_no_labels():
    assert probe(TRAIN, TRAIN_LABELS, TEST, np.full(23, -1, np.int32), **SETTINGS).linear_top1 is None


def test_without_views_there_is_no_retrieval_score():
    assert probe(TRAIN, TRAIN_LABELS, TEST, TEST_LABELS, **SETTINGS).view_retrieval_top1 is None


def test_rows_without_a_label_are_left_out_on_both_sides():
    train_labels, test_labels = TRAIN_LABELS.copy(), TEST_LABELS.copy()
    train_labels[::4], test_labels[::4] = -1, -1
    scores = probe(TRAIN, train_labels, TEST, test_labels, **SETTINGS)
    assert (scores.knn_top1, scores.linear_top1) == (1.0, 1.0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_feature_that_is_not_finite_takes_the_scores_away_and_is_counted(value):
    broken = TRAIN.copy()
    broken[3, 1] = broken[7, 0] = value
    assert probe(broken, TRAIN_LABELS, TEST, TEST_LABELS, **SETTINGS, views=(TEST, TEST)) == Scores(None, None, None, 2)


def test_the_majority_share_leaves_out_rows_without_a_label():
    assert majority_share(np.array([-1, -1, -1, 2, 2, 0], np.int32)) == pytest.approx(2 / 3)
    assert majority_share(np.array([-1], np.int32)) is None
