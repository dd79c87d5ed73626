"""The linear probe: the minimum it claims, what it never looks at, and awkward inputs."""

import numpy as np
import pytest

from jaxcl.probes import linear
from jaxcl.probes.linear import fit_linear, linear_top1, predict_linear


def noisy_classes(count, width, classes, noise=1.0, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, count).astype(np.int32)
    centres = np.random.default_rng(99).normal(size=(classes, width))
    return (centres[labels] + noise * random.normal(size=(count, width))).astype(np.float32), labels


def gradient(probe, features, labels):
    """Of the summed cross entropy and penalty/2 |kernel|^2, by kernel and bias, in float64."""
    inputs = (features.astype(np.float64) - probe.mean) / probe.scale
    logits = inputs @ probe.kernel.astype(np.float64) + probe.bias
    share = np.exp(logits - logits.max(1, keepdims=True))
    error = share / share.sum(1, keepdims=True) - np.eye(len(probe.bias))[labels]
    return inputs.T @ error + probe.penalty * probe.kernel, error.sum(0)


@pytest.mark.parametrize(("count", "width"), [(301, 20), (61, 200), (50, 50), (50, 49), (50, 51)])
def test_the_gradient_of_the_stated_objective_vanishes_with_more_rows_and_with_more_features(count, width, monkeypatch):
    monkeypatch.setattr(linear, "TOLERANCE", 1e-4)
    features, labels = noisy_classes(count, width, classes=4, noise=2.0)
    linear._fit.clear_cache()
    probe = fit_linear(features, labels, steps=1000, seed=0)
    linear._fit.clear_cache()
    kernel, bias = gradient(probe, features, labels)
    start, _ = gradient(probe._replace(kernel=0 * probe.kernel, bias=0 * probe.bias), features, labels)
    assert np.linalg.norm(kernel) < 5e-3 * np.linalg.norm(start)
    assert np.abs(bias).max() < 5e-3 * len(labels)


def test_separable_blobs_score_one():
    train, train_labels = noisy_classes(90, 6, classes=3, noise=0.05)
    test, test_labels = noisy_classes(40, 6, classes=3, noise=0.05, seed=1)
    assert linear_top1(train, train_labels, test, test_labels, steps=50, seed=0) == 1.0


def test_features_without_information_score_about_chance():
    random = np.random.default_rng(0)
    features, labels = random.normal(size=(2000, 8)).astype(np.float32), random.integers(0, 4, 2000).astype(np.int32)
    score = linear_top1(features[:1000], labels[:1000], features[1000:], labels[1000:], steps=100, seed=0)
    assert 0.25 - 0.06 < score < 0.25 + 0.06


def test_scale_and_offset_of_a_feature_change_nothing():
    train, train_labels = noisy_classes(200, 10, classes=3, noise=2.0)
    test, _ = noisy_classes(100, 10, classes=3, noise=2.0, seed=1)
    scale, offset = np.float32(10) ** np.arange(-4, 6, dtype=np.float32), np.arange(10, dtype=np.float32)
    plain = predict_linear(fit_linear(train, train_labels, steps=100, seed=0), test)
    moved = predict_linear(
        fit_linear((train + offset) * scale, train_labels, steps=100, seed=0), (test + offset) * scale
    )
    assert np.mean(plain == moved) >= 0.99


def test_more_noise_asks_for_a_stronger_penalty():
    clean = fit_linear(*noisy_classes(300, 30, classes=3, noise=0.1), steps=100, seed=0)
    noisy = fit_linear(*noisy_classes(300, 30, classes=3, noise=8.0), steps=100, seed=0)
    assert clean.penalty < noisy.penalty


def test_a_penalty_in_the_middle_of_the_grid_was_better_than_its_neighbours_on_the_held_out_rows(monkeypatch):
    features, labels = noisy_classes(400, 40, classes=4, noise=3.0)
    chosen = fit_linear(features, labels, steps=200, seed=3).penalty
    held = np.random.default_rng(3).permutation(400)[:80]
    kept = np.setdiff1d(np.arange(400), held)

    def held_out_entropy(penalty):
        monkeypatch.setattr(linear, "PENALTIES", (penalty,))
        # fewer than five rows are not split; here the split is already done, so that all rows given are used
        mean, scale = linear._moments(features)
        inputs = linear._columns((features - mean) / scale)
        weights = np.zeros(400, np.float32)
        weights[kept] = 1
        start = np.zeros((41, 4), np.float32)
        arguments = dict(columns=inputs, labels=labels, weights=weights, covariance=linear._covariance(inputs))
        return float(linear._fit(start, **arguments, penalty=penalty, steps=200)[1])

    grid = [10000.0, 1000.0, 100.0, 10.0, 1.0]
    entropies = {penalty: held_out_entropy(penalty) for penalty in grid}
    assert chosen == min(entropies, key=entropies.get)


def test_the_same_seed_gives_the_same_probe_bitwise():
    features, labels = noisy_classes(100, 12, classes=3, noise=2.0)
    first, again = (fit_linear(features, labels, steps=30, seed=5) for _ in range(2))
    np.testing.assert_array_equal(first.kernel, again.kernel)


def test_held_out_rows_do_not_touch_the_fit_on_the_others():
    features, labels = noisy_classes(60, 5, classes=3)
    inputs = linear._columns(features)
    weights = np.ones(60, np.float32)
    weights[40:] = 0
    other = labels.copy()
    other[40:] = (other[40:] + 1) % 3
    fits = [
        linear._fit(
            np.zeros((6, 3), np.float32),
            columns=inputs,
            labels=given,
            weights=weights,
            covariance=linear._covariance(inputs),
            penalty=10.0,
            steps=50,
        )
        for given in (labels, other)
    ]
    np.testing.assert_array_equal(fits[0][0], fits[1][0])
    assert float(fits[0][1]) < float(fits[1][1])


def test_a_constant_feature_duplicated_features_and_a_missing_class_are_harmless():
    features, labels = noisy_classes(80, 6, classes=3, noise=0.05)
    labels = np.where(labels == 1, 4, labels).astype(np.int32)
    odd = np.concatenate([features, features, np.full((80, 1), 7.3, np.float32)], axis=1)
    probe = fit_linear(odd, labels, steps=50, seed=0)
    assert np.isfinite(probe.kernel).all()
    assert np.mean(predict_linear(probe, odd) == labels) == 1.0


@pytest.mark.parametrize("count", [1, 2, 4, 5, 6])
def test_a_handful_of_rows_gives_a_finite_probe(count):
    features, labels = noisy_classes(count, 3, classes=2)
    probe = fit_linear(features, labels, steps=20, seed=0)
    assert np.isfinite(probe.kernel).all()
    assert np.isfinite(probe.bias).all()


def test_collapsed_features_predict_the_majority():
    labels = np.array([0] * 10 + [1] * 20, np.int32)
    collapsed = np.full((30, 8), 0.3, np.float32)
    assert linear_top1(collapsed, labels, collapsed, labels, steps=50, seed=0) == pytest.approx(2 / 3)


def test_ridges_of_very_different_scales_need_few_steps_because_of_the_preconditioner():
    random = np.random.default_rng(0)
    mixed = random.normal(size=(500, 30)) @ (random.normal(size=(30, 30)) * 10.0 ** -np.linspace(0, 2.5, 30)[:, None])
    labels = (mixed @ random.normal(size=30) + 0.5 * random.normal(size=500) > 0).astype(np.int32)
    short = fit_linear(mixed.astype(np.float32), labels, steps=30, seed=0)
    long = fit_linear(mixed.astype(np.float32), labels, steps=500, seed=0)
    agree = predict_linear(short, mixed.astype(np.float32)) == predict_linear(long, mixed.astype(np.float32))
    assert agree.mean() > 0.99
