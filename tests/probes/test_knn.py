"""Weighted kNN against a plain loop."""

import math

import numpy as np
import pytest

from jaxcl.config import ConfigError
from jaxcl.probes import knn
from jaxcl.probes.knn import knn_predict, knn_top1


def reference(train, labels, test, k, temperature):
    predicted = []
    for row in test:
        cosines = [float(row @ other / np.linalg.norm(row) / np.linalg.norm(other)) for other in train]
        nearest = sorted(range(len(train)), key=lambda i: (-cosines[i], i))[:k]
        votes = [0.0] * (max(labels) + 1)
        for i in nearest:
            votes[labels[i]] += math.exp(cosines[i] / temperature)
        predicted.append(votes.index(max(votes)))
    return predicted


@pytest.mark.parametrize("k", [1, 2, 20, 36, 37, 1000])
@pytest.mark.parametrize("chunk", [None, 1, 5, 19, 20])
def test_predictions_equal_a_plain_loop_for_every_k_and_chunk(k, chunk):
    random = np.random.default_rng(k)
    train, test = random.normal(size=(37, 6)).astype(np.float32), random.normal(size=(19, 6)).astype(np.float32)
    labels = random.integers(0, 5, 37).astype(np.int32)
    predicted = knn_predict(train, labels, test, k=k, temperature=0.3, chunk=chunk)
    assert predicted.tolist() == reference(train, labels.tolist(), test, k, 0.3)


def test_only_the_direction_of_a_feature_counts():
    train, labels = np.array([[1, 0], [0, 50]], np.float32), np.array([0, 1], np.int32)
    assert knn_predict(train, labels, np.array([[100, 1]], np.float32), k=1, temperature=0.1).tolist() == [0]


def test_near_neighbours_outvote_a_far_majority_at_a_low_temperature_only():
    train = np.array([[1, 0], [1, 2], [1, -2]], np.float32)
    labels, test = np.array([0, 1, 1], np.int32), np.array([[1, 0]], np.float32)
    assert knn_predict(train, labels, test, k=3, temperature=0.05).tolist() == [0]
    assert knn_predict(train, labels, test, k=3, temperature=10.0).tolist() == [1]


def test_a_tiny_temperature_does_not_overflow():
    train, labels = np.eye(3, dtype=np.float32), np.array([2, 1, 0], np.int32)
    assert knn_predict(train, labels, train, k=3, temperature=1e-4).tolist() == [2, 1, 0]


def test_ties_go_to_the_lower_training_row_and_then_to_the_lower_class():
    same = np.ones((4, 3), np.float32)
    labels = np.array([2, 1, 1, 0], np.int32)
    assert knn_predict(same, labels, same[:1], k=1, temperature=0.1).tolist() == [2]
    assert knn_predict(same, labels, same[:1], k=2, temperature=0.1).tolist() == [1]


def test_separable_blobs_score_one():
    random = np.random.default_rng(0)
    labels = np.arange(60, dtype=np.int32) % 3
    features = (np.eye(3)[labels] + 0.05 * random.normal(size=(60, 3))).astype(np.float32)
    assert knn_top1(features[:40], labels[:40], features[40:], labels[40:], k=5, temperature=0.07) == 1.0


def test_features_without_information_score_about_chance():
    random = np.random.default_rng(0)
    features, labels = random.normal(size=(3000, 8)).astype(np.float32), random.integers(0, 4, 3000).astype(np.int32)
    score = knn_top1(features[:1000], labels[:1000], features[1000:], labels[1000:], k=20, temperature=0.07)
    assert 0.25 - 0.05 < score < 0.25 + 0.05


def test_no_array_of_test_by_train_exists_beyond_a_chunk():
    train = np.zeros((1000, 4), np.float32)
    lowered = knn._vote.lower(train[:10], train, np.zeros(1000, np.int32), 0.1, k=20, classes=3)
    temporary = lowered.compile().memory_analysis().temp_size_in_bytes
    assert temporary < 4 * 10 * 1000 * 8


def test_the_nearest_come_from_a_top_k_call_and_not_from_a_full_sort():
    train = np.zeros((4096, 4), np.float32)
    compiled = knn._vote.lower(train[:10], train, np.zeros(4096, np.int32), 0.1, k=20, classes=3).compile()
    assert " sort(" not in compiled.as_text()


@pytest.mark.parametrize(
    ("k", "temperature", "named"), [(0, 0.1, "knn_k is 0"), (1, 0.0, "temperature is 0"), (1, math.nan, "is nan")]
)
def test_a_setting_that_cannot_work_is_an_error_that_names_it(k, temperature, named):
    rows, labels = np.eye(2, dtype=np.float32), np.array([0, 1], np.int32)
    with pytest.raises(ConfigError, match=named):
        knn_predict(rows, labels, rows, k=k, temperature=temperature)
