"""All probes of one representation, put together."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from jaxcl.probes.knn import knn_top1
from jaxcl.probes.linear import linear_top1
from jaxcl.probes.retrieval import view_retrieval_top1


@dataclasses.dataclass(frozen=True)
class Scores:
    """Accuracies in [0, 1]; None where there was nothing to measure."""

    knn_top1: float | None
    linear_top1: float | None
    view_retrieval_top1: float | None
    nonfinite_rows: int  # rows with a feature that is NaN or infinite; above 0 there is no score


def probe(
    train_features: Float[np.ndarray, "n features"],
    train_labels: Int[np.ndarray, " n"],
    test_features: Float[np.ndarray, "m features"],
    test_labels: Int[np.ndarray, " m"],
    *,
    knn_k: int,
    knn_temperature: float,
    linear_steps: int,
    seed: int,
    views: tuple[Float[np.ndarray, "v features"], Float[np.ndarray, "v features"]] | None = None,
) -> Scores:
    """Score one representation by weighted kNN, a linear probe and retrieval of the second view.

    Args:
        train_features: [n, F].
        train_labels: [n], classes from 0; rows below 0 have no label and are left out.
        test_features: [m, F].
        test_labels: [m], the same.
        knn_k: neighbours that vote.
        knn_temperature: a vote weighs exp(cos / temperature).
        linear_steps: L-BFGS iterations of one fit, at most.
        seed: draws the rows on which the linear probe chooses its penalty.
        views: features [v, F] of two views of the same images, in the same order; None: no retrieval.

    Returns:
        The scores; None for kNN and linear without a labelled row on both sides, for retrieval without views.

    >>> rows, labels = np.eye(2, dtype=np.float32), np.array([0, 1], np.int32)
    >>> probe(rows, labels, rows, labels, knn_k=1, knn_temperature=0.1, linear_steps=9, seed=0).knn_top1
    1.0
    """
    rows = [train_features, test_features, *(views or ())]
    nonfinite = sum(int(np.sum(~np.isfinite(features).all(axis=1))) for features in rows)
    train, test = train_labels >= 0, test_labels >= 0
    knn = linear = retrieval = None
    if not nonfinite and train.any() and test.any():
        sets = (train_features[train], train_labels[train], test_features[test], test_labels[test])
        knn = knn_top1(*sets, k=knn_k, temperature=knn_temperature)
        linear = linear_top1(*sets, steps=linear_steps, seed=seed)
    if not nonfinite and views is not None and len(views[0]):
        retrieval = view_retrieval_top1(*views)
    return Scores(knn, linear, retrieval, nonfinite)


def majority_share(labels: Int[np.ndarray, " m"]) -> float | None:
    """Share of the most frequent class: the accuracy of a constant answer.

    Args:
        labels: [m], classes from 0; below 0: no label, left out.

    Returns:
        The share in [0, 1]; None if no row has a label.

    >>> majority_share(np.array([0, 0, 1, 0], np.int32))
    0.75
    """
    labelled = labels[labels >= 0]
    return float(np.bincount(labelled).max() / len(labelled)) if len(labelled) else None
