"""InfoNCE as its definition reads: every score at once, N × (M + K), differentiated by JAX.

The reference for every other engine, and the right choice for a few hundred rows. NT-Xent: Chen et al. 2020; MoCo: He
et al. 2020; SupCon, mean outside the log: Khosla et al. 2020; CLIP: Radford et al. 2021; k hardest negatives: Xu 2026.
"""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
from jax import lax

from jaxcl.losses.arguments import Problem, check_problem, check_tail, check_top_k
from jaxcl.losses.normalise import is_finite, normalise
from jaxcl.losses.outputs import InfoNCEOutput, Stats, without_gradient

with contextlib.suppress(ImportError):
    from jaxtyping import Array, ArrayLike, Bool, Float


# Arguments are ArrayLike so that a wrong rank or dtype is the ValueError below, with or without a type checker.
def infonce(
    queries: ArrayLike,
    keys: ArrayLike,
    query_groups: ArrayLike,
    key_groups: ArrayLike,
    *,
    temperature: ArrayLike,
    positive_index: ArrayLike | None = None,
    top_k: int | None = None,
    tail: str = "drop",
    tail_samples: int | None = None,
    tail_key: Array | None = None,
    queue: ArrayLike | None = None,
    queue_groups: ArrayLike | None = None,
    queue_filled: ArrayLike | None = None,
    exclude_diagonal: bool = False,
    use_key_negatives: bool = True,
) -> InfoNCEOutput:
    """Contrastive loss of each query against its positives and its most similar negatives.

    loss_i = −(1/|P|) Σ_{p∈P} [ s_ip − log( Σ_{q∈P} e^{s_iq} + Σ_{n∈T} e^{s_in} ) ],  s = cos / temperature.

    P are the keys of the query's group (without itself under `exclude_diagonal`), or the one that `positive_index`
    names. The negatives are keys and valid queue rows of another group; T are the `top_k` most similar of them. A row
    with fewer negatives uses all it has. A group below 0 is nobody's: such a query has no positive, such a key is no
    one's positive.

    Args:
        queries: [N, D], any float dtype; L2-normalised here, in float32.
        keys: [M, D].
        query_groups: [N] int32.
        key_groups: [M] int32.
        temperature: scalar above 0, may be traced and learned.
        positive_index: [N] int32, key number of the only positive of each query; the rest of its group is then neither
            positive nor negative. A number outside [0, M) names none.
        top_k: the k most similar negatives of each query; None: all of them. Of equal ones the lowest column, keys
            before queue.
        tail: "drop": negatives outside the top k do not count.
        tail_samples: int, read with tail="sampled".
        tail_key: random key, read with tail="sampled".
        queue: [K, D] negatives without gradient, any float dtype.
        queue_groups: [K] int32; with a queue, ids that are unique over the data set. None: a row of the queue is
            everybody's negative.
        queue_filled: valid rows of the queue, the first ones; may be traced. None: all.
        exclude_diagonal: query i and key i are the same thing (SimCLR, SupCon).
        use_key_negatives: False: only the queue is negative (MoCo v2).

    Returns:
        Loss, validity and stats of each query. A non-finite candidate makes the loss of every row that could select it
        NaN and is counted in `stats.nonfinite`.

    Raises:
        ValueError: an argument that does not fit, with its value and what is allowed.

    Example:
        >>> out = infonce(jnp.eye(4), jnp.eye(4), jnp.arange(4), jnp.arange(4), temperature=0.1)
        >>> out.loss.shape
        (4,)
    """
    problem = check_problem(
        queries,
        keys,
        query_groups,
        key_groups,
        temperature=temperature,
        positive_index=positive_index,
        queue=queue,
        queue_groups=queue_groups,
        queue_filled=queue_filled,
        exclude_diagonal=exclude_diagonal,
    )
    check_top_k(
        top_k,
        keys=problem.keys.shape[0],
        queue=None if problem.bank is None else problem.bank.values.shape[0],
        use_key_negatives=use_key_negatives,
        exclude_diagonal=exclude_diagonal,
    )
    check_tail(tail, tail_samples, tail_key, top_k)
    positive, negative = _masks(problem, exclude_diagonal, use_key_negatives)
    return _loss(problem, positive, negative, top_k)


def _loss(
    problem: Problem, positive: Bool[Array, "n c"], negative: Bool[Array, "n c"], top_k: int | None
) -> InfoNCEOutput:
    """The formula."""
    scores = _scores(problem)
    count = jnp.sum(positive, axis=1)
    valid = count > 0
    counted = positive | ~valid[:, None]  # a row without a positive counts all: a log-sum of nothing has no gradient
    if top_k is None:
        candidates = jnp.where(counted | negative, scores, -jnp.inf)
    else:
        chosen, _ = lax.top_k(jnp.where(negative, scores, -jnp.inf), top_k)
        candidates = jnp.concatenate([jnp.where(counted, scores, -jnp.inf), chosen], axis=1)
    log_sum = jax.nn.logsumexp(candidates, axis=1)
    attraction = jnp.sum(jnp.where(positive, scores, 0.0), axis=1) / jnp.maximum(count, 1)
    loss = jnp.where(valid, log_sum - attraction, 0.0)
    return InfoNCEOutput(loss, valid, without_gradient(_stats(problem, scores, positive, negative, top_k)))


def _scores(problem: Problem) -> Float[Array, "n c"]:
    """Cosine / temperature of every query with keys, then queue."""
    columns = normalise(problem.keys)
    if problem.bank is not None:
        # an unfilled row may hold anything: 0 · NaN would reach the gradient
        rows = jnp.where(problem.bank.valid[:, None], normalise(problem.bank.values), 0.0)
        columns = jnp.concatenate([columns, lax.stop_gradient(rows)])
    cosine = jnp.matmul(normalise(problem.queries), columns.T, precision=lax.Precision.HIGHEST)
    return cosine / problem.temperature


def _masks(
    problem: Problem, exclude_diagonal: bool, use_key_negatives: bool
) -> tuple[Bool[Array, "n c"], Bool[Array, "n c"]]:
    """Who is positive and who is negative for whom."""
    rows, columns = jnp.arange(problem.queries.shape[0])[:, None], jnp.arange(problem.keys.shape[0])[None, :]
    same = problem.query_groups[:, None] == problem.key_groups[None, :]
    others = ~same & use_key_negatives
    if problem.partner is not None:
        same = columns == problem.partner[:, None]
        others &= ~same
    if exclude_diagonal:
        same &= rows != columns
        others &= rows != columns
    if problem.bank is None:
        return same, others
    stale = problem.query_groups[:, None] == problem.bank.groups[None, :]
    return (
        jnp.concatenate([same, jnp.zeros_like(stale)], axis=1),
        jnp.concatenate([others, ~stale & problem.bank.valid], axis=1),
    )


def _stats(
    problem: Problem,
    scores: Float[Array, "n c"],
    positive: Bool[Array, "n c"],
    negative: Bool[Array, "n c"],
    top_k: int | None,
) -> Stats:
    """Numbers about the selection; every row sees all its columns as one block, and none is skipped."""
    rows = scores.shape[0]
    every = jnp.where(negative, scores, -jnp.inf)
    chosen = every if top_k is None else lax.top_k(every, top_k)[0]
    attracted = jax.nn.logsumexp(jnp.where(positive, scores, -jnp.inf), axis=1)
    used, full = (jnp.logaddexp(attracted, jax.nn.logsumexp(x, axis=1)) for x in (chosen, every))
    bad = jnp.sum(~is_finite(problem.keys))
    if problem.bank is not None:
        bad += jnp.sum(problem.bank.valid & ~is_finite(problem.bank.values))
    return Stats(
        rows_tested=jnp.int32(rows),
        rows_skipped=jnp.int32(0),
        hardest=jnp.max(every, axis=1),
        kth=jnp.full(rows, -jnp.inf) if top_k is None else chosen[:, -1],
        tail_mass=jnp.where(full == -jnp.inf, 0.0, -jnp.expm1(jnp.minimum(used - full, 0.0))),
        positives=jnp.sum(positive, axis=1, dtype=jnp.int32),
        negatives=jnp.sum(negative, axis=1, dtype=jnp.int32),
        nonfinite=bad.astype(jnp.int32),
    )
