"""Linear probe: multinomial logistic regression on frozen, standardised features, by preconditioned L-BFGS."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

# Weights of half the squared norm, against the summed cross entropy, from strong to weak.
PENALTIES = (10000.0, 1000.0, 100.0, 10.0, 1.0)
# In the preconditioned coordinates half the squared gradient norm is about the distance of the loss from its minimum.
TOLERANCE = 5e-3


class LinearProbe(NamedTuple):
    """A fitted probe: logits = ((x - mean) / scale) @ kernel + bias."""

    mean: Float[np.ndarray, " features"]
    scale: Float[np.ndarray, " features"]
    kernel: Float[np.ndarray, "features classes"]
    bias: Float[np.ndarray, " classes"]
    penalty: float


def fit_linear(
    features: Float[np.ndarray, "n features"], labels: Int[np.ndarray, " n"], *, steps: int, seed: int
) -> LinearProbe:
    """Fit on all rows, with the penalty that did best on a held-out fifth of them.

    Minimises  sum_i cross_entropy_i + penalty/2 * |kernel|^2;  the bias is not penalised. The penalty comes from a
    fixed grid, walked from strong to weak until the cross entropy of the held-out rows rises.

    Args:
        features: [n, F], frozen.
        labels: [n], classes from 0.
        steps: L-BFGS iterations of one fit, at most; a fit ends earlier where its gradient is small.
        seed: draws the held-out fifth.

    Returns:
        The probe, on the host.

    >>> probe = fit_linear(np.array([[0.0], [1.0]], np.float32), np.array([0, 1], np.int32), steps=9, seed=0)
    >>> predict_linear(probe, np.array([[-3.0], [3.0]], np.float32)).tolist()
    [0, 1]
    """
    mean, scale = _moments(features)
    standardised = (features - mean) / scale
    lower = _row_space(standardised) if features.shape[1] > features.shape[0] else None
    columns = _columns(standardised if lower is None else lower.astype(np.float32))
    fit = functools.partial(
        _fit, columns=columns, labels=jnp.asarray(labels), covariance=_covariance(columns), steps=steps
    )
    kernel = jnp.zeros((len(columns), int(labels.max()) + 1))
    penalty = PENALTIES[0]
    held_out = len(labels) // 5
    if held_out:
        weights = np.ones(len(labels), np.float32)
        weights[np.random.default_rng(seed).permutation(len(labels))[:held_out]] = 0
        kernel, penalty = _choose_penalty(fit, kernel, jnp.asarray(weights))
    kernel, _ = fit(kernel, weights=jnp.ones(len(labels)), penalty=penalty)
    weight, bias = np.asarray(kernel[:-1]), np.asarray(kernel[-1])
    if lower is not None:
        weight = (standardised.T @ np.linalg.solve(lower.T, weight)).astype(np.float32)
    return LinearProbe(mean, scale, weight, bias, penalty)


def predict_linear(probe: LinearProbe, features: Float[np.ndarray, "m features"]) -> Int[np.ndarray, " m"]:
    """Class with the largest logit.

    Args:
        probe: from `fit_linear`.
        features: [m, F].

    Returns:
        [m] int32; the lowest class on a tie.
    """
    logits = _matmul((features - probe.mean) / probe.scale, probe.kernel) + probe.bias
    return np.asarray(jnp.argmax(logits, axis=1), np.int32)


def linear_top1(
    train_features: Float[np.ndarray, "n features"],
    train_labels: Int[np.ndarray, " n"],
    test_features: Float[np.ndarray, "m features"],
    test_labels: Int[np.ndarray, " m"],
    *,
    steps: int,
    seed: int,
) -> float:
    """Share of test rows that a probe fitted on the training rows gets right.

    Args:
        train_features: [n, F].
        train_labels: [n], classes from 0.
        test_features: [m, F].
        test_labels: [m], classes from 0; only compared with the predictions.
        steps: L-BFGS iterations of one fit, at most.
        seed: draws the held-out fifth of the training rows.

    Returns:
        Accuracy in [0, 1].
    """
    probe = fit_linear(train_features, train_labels, steps=steps, seed=seed)
    return float(np.mean(predict_linear(probe, test_features) == test_labels))


def _moments(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column; 1 for a column that is constant up to rounding."""
    mean, scale = features.mean(0, dtype=np.float64), features.std(0, dtype=np.float64)
    constant = scale <= 1e-6 * np.abs(mean)
    return mean.astype(np.float32), np.where(constant, 1.0, scale).astype(np.float32)


def _row_space(rows: np.ndarray) -> np.ndarray:
    """Coordinates [n, n] of the rows in an orthonormal basis of their span: L with L L^T = X X^T.

    With fewer rows than features the kernel lies in that span, X^T L^-T v with the norm of v, so the problem is the
    same and smaller. In float64 the jitter that keeps L regular is far below any effect.
    """
    wide = rows.astype(np.float64)
    gram = wide @ wide.T
    return np.linalg.cholesky(gram + 1e-12 * max(np.trace(gram), 1.0) * np.eye(len(gram)))


def _columns(rows: np.ndarray) -> jax.Array:
    """One column a row, and below them the ones that the bias multiplies.

    Both products of a gradient then run along memory, which halves its time on CPUs.
    """
    return jnp.asarray(np.concatenate([rows.T, np.ones((1, len(rows)), np.float32)]))


def _choose_penalty(fit: functools.partial, kernel: jax.Array, weights: jax.Array) -> tuple[jax.Array, float]:
    """Walk the grid, each fit starting from the last; return the best kernel and its penalty."""
    best, chosen, penalty = np.inf, kernel, PENALTIES[0]
    for candidate in PENALTIES:
        kernel, entropy = fit(kernel, weights=weights, penalty=candidate)
        if not float(entropy) < best:
            break
        best, chosen, penalty = float(entropy), kernel, candidate
    return chosen, penalty


@jax.jit
def _matmul(left: jax.Array, right: jax.Array) -> jax.Array:
    """Multiply in full float32 on every backend."""
    return jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)


@jax.jit
def _covariance(columns: jax.Array) -> jax.Array:
    """Mean outer product of the columns."""
    return _matmul(columns, columns.T) / columns.shape[1]


@functools.partial(jax.jit, static_argnames="steps")
def _fit(
    kernel: Float[Array, "f classes"],
    *,
    columns: Float[Array, "f n"],
    labels: Int[Array, " n"],
    weights: Float[Array, " n"],
    covariance: Float[Array, "f f"],
    penalty: Float[Array, ""],
    steps: int,
) -> tuple[Float[Array, "f classes"], Float[Array, ""]]:
    """Minimise over the columns of weight 1; return the kernel and the cross entropy of those of weight 0."""
    count, decay = jnp.sum(weights), jnp.ones((len(kernel), 1)).at[-1].set(0.0)

    def entropies(weight: jax.Array) -> jax.Array:
        """Cross entropy of every column."""
        logits = _matmul(weight.T, columns)
        own = jnp.where(jnp.arange(len(logits))[:, None] == labels, logits, 0.0)
        return jax.nn.logsumexp(logits, axis=0) - jnp.sum(own, axis=0)

    lower, preconditioner = _precondition(covariance, penalty / count, decay, kernel.shape[1])

    def loss(coordinates: jax.Array) -> jax.Array:
        """Mean cross entropy and penalty."""
        weight = _matmul(preconditioner, coordinates)
        return (jnp.vdot(entropies(weight), weights) + penalty / 2 * jnp.sum(decay * weight**2)) / count

    # The problem is convex and the unit step nearly always good: backtracking is enough, and compiles fastest.
    search = optax.scale_by_backtracking_linesearch(max_backtracking_steps=20, max_learning_rate=1.0, store_grad=True)
    solver = optax.lbfgs(memory_size=10, linesearch=search)
    value_and_grad = optax.value_and_grad_from_state(loss)

    def step(carry: tuple) -> tuple:
        """One L-BFGS iteration."""
        point, state, done, _ = carry
        value, grad = value_and_grad(point, state=state)
        updates, state = solver.update(grad, state, point, value=value, grad=grad, value_fn=loss)
        point = optax.apply_updates(point, updates)
        return point, state, done + 1, jnp.linalg.norm(optax.tree.get(state, "grad"))

    start = _matmul(lower.T, kernel)
    carry = (start, solver.init(start), 0, jnp.inf)
    point, *_ = jax.lax.while_loop(lambda carry: (carry[2] < steps) & (carry[3] > TOLERANCE), step, carry)
    weight = _matmul(preconditioner, point)
    return weight, jnp.vdot(entropies(weight), 1 - weights) / jnp.maximum(jnp.sum(1 - weights), 1)


def _precondition(
    covariance: jax.Array, ridge: jax.Array, decay: jax.Array, classes: int
) -> tuple[jax.Array, jax.Array]:
    """Coordinates kernel = P v in which the Hessian is near the identity.

    At equal class probabilities it is s * covariance + ridge = L L^T with s = (1 - 1/classes) / classes; P = L^-T.
    L-BFGS then needs tens of iterations where the raw problem takes hundreds. Any P gives the same minimum.
    """
    spread = (1 - 1 / max(classes, 2)) / max(classes, 2)
    size = len(covariance)
    # Rounding can make a singular covariance negative by about 1e-7 of its largest eigenvalue, at most its trace.
    diagonal = ridge * decay[:, 0] + 1e-6 * spread * jnp.trace(covariance)
    lower = jnp.linalg.cholesky(spread * covariance + jnp.diag(diagonal))
    return lower, jax.scipy.linalg.solve_triangular(lower, jnp.eye(size), lower=True).T
