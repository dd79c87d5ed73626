"""InfoNCE as its definition reads: every score at once, N × (M + K), differentiated by JAX.

The reference for every other engine, and the right choice for a few hundred rows. NT-Xent: Chen et al. 2020; MoCo: He
et al. 2020; SupCon, mean outside the log: Khosla et al. 2020; CLIP: Radford et al. 2021; k hardest negatives: Xu 2026.
"""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
from jax import lax

from jaxcl.losses.arguments import Problem, check_problem, check_tail, check_top_k, share_of
from jaxcl.losses.normalise import is_finite, normalise
from jaxcl.losses.outputs import InfoNCEOutput, Stats, without_gradient
from jaxcl.losses.plan import draws_for
from jaxcl.losses.tail import choose_tail, draw_columns

with contextlib.suppress(ImportError):
    from jaxtyping import Array, ArrayLike, Bool, Float, Int


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
    skip_hardest: float = 0.0,
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
        query_groups: [N] int32; a negative one is nobody's partner.
        key_groups: [M] int32, likewise.
        temperature: scalar above 0, may be traced and learned.
        positive_index: [N] int32, key number of the only positive of each query; the rest of its group is then neither
            positive nor negative. A number outside [0, M) names none.
        top_k: the k most similar negatives of each query; None: all of them. Of equal ones the lowest column, keys
            before queue.
        tail: what becomes of negatives outside the top k. "drop": they do not count. "sampled": the value is that of
            all negatives, exactly, and the gradient runs through the k selected and through `tail_samples` others,
            drawn uniformly, that together carry the mass of all others. On average over keys it approaches the
            gradient of all negatives, with an error that falls as 1/√tail_samples.
        tail_samples: int, at least 1, read with tail="sampled".
        tail_key: random key, another one each step, read with tail="sampled".
        skip_hardest: share in [0, 1) of the negatives of each query, rounded down: that many of its most similar ones
            are left out, and the `top_k` most similar of the rest are kept, or all of it where it is less. Only
            negatives that the query has count: no unfilled row of the queue, nothing of its own group. So a query
            with a negative keeps one. Among the hardest are false negatives: other images of the same class. Needs
            `top_k`, and tail="drop", since a tail would bring them back.
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
    skip = check_top_k(
        top_k,
        keys=problem.keys.shape[0],
        queue=None if problem.bank is None else problem.bank.values.shape[0],
        use_key_negatives=use_key_negatives,
        exclude_diagonal=exclude_diagonal,
        skip_hardest=skip_hardest,
    )
    samples = check_tail(tail, tail_samples, tail_key, top_k, skip)
    positive, negative = _masks(problem, exclude_diagonal, use_key_negatives)
    draws = None
    if tail_key is not None and top_k is not None:
        draws = _draws(problem, tail_key, samples, top_k, use_key_negatives)
    return _loss(problem, positive, negative, top_k, (skip_hardest, skip), draws, samples)


def _draws(problem: Problem, key: Array, samples: int, top_k: int, use_key_negatives: bool) -> Int[Array, "n r"]:
    """The columns that `streaming_infonce` draws."""
    n, m, bank = problem.queries.shape[0], problem.keys.shape[0], problem.bank
    keys = m if use_key_negatives else 0
    count = draws_for(samples, top_k, keys + (0 if bank is None else bank.values.shape[0]))
    filled = 0 if bank is None else bank.filled
    return draw_columns(key, jnp.arange(n), count, keys=keys, queue_start=m, filled=filled)


def _loss(
    problem: Problem,
    positive: Bool[Array, "n c"],
    negative: Bool[Array, "n c"],
    top_k: int | None,
    skip: tuple[float, int],
    draws: Int[Array, "n r"] | None,
    samples: int,
) -> InfoNCEOutput:
    """The formula; skip: the share that is left out, and the most that this is."""
    scores = _scores(problem)
    count = jnp.sum(positive, axis=1)
    valid = count > 0
    counted = positive | ~valid[:, None]  # a row without a positive counts all: a log-sum of nothing has no gradient
    if top_k is None:
        candidates = jnp.where(counted | negative, scores, -jnp.inf)
    else:
        every = jnp.where(negative, scores, -jnp.inf)
        chosen, numbers = _most_similar(every, top_k, skip)
        if draws is not None:
            chosen = _with_tail(every, chosen, numbers, draws, samples)
        candidates = jnp.concatenate([jnp.where(counted, scores, -jnp.inf), chosen], axis=1)
    log_sum = jax.nn.logsumexp(candidates, axis=1)
    attraction = jnp.sum(jnp.where(positive, scores, 0.0), axis=1) / jnp.maximum(count, 1)
    loss = jnp.where(valid, log_sum - attraction, 0.0)
    return InfoNCEOutput(loss, valid, without_gradient(_stats(problem, scores, positive, negative, top_k, skip)))


def _most_similar(
    every: Float[Array, "n c"], top_k: int, skip: tuple[float, int]
) -> tuple[Float[Array, "n k"], Int[Array, "n k"]]:
    """Scores and columns of the selected negatives, −inf where a row has fewer."""
    share, most = skip
    values, numbers = lax.top_k(every, top_k + most)
    if not most:
        return values, numbers
    first = jnp.minimum(share_of(share, jnp.sum(every != -jnp.inf, axis=1, dtype=jnp.int32)), most)
    kept = first[:, None] + jnp.arange(top_k)
    values, numbers = (jnp.take_along_axis(x, kept, axis=1) for x in (values, numbers))
    # a NaN ranks first, and would be left out
    return jnp.where(jnp.any(jnp.isnan(every), axis=1, keepdims=True), jnp.nan, values), numbers


def _with_tail(
    every: Float[Array, "n c"], values: Float[Array, "n k"], numbers: Int[Array, "n k"], draws: Array, samples: int
) -> Float[Array, "n w"]:
    """Selected negatives, then drawn ones that carry the mass of all others; where a row drew none, the selected do."""
    drawn = jnp.take_along_axis(every, draws, axis=1, mode="fill", fill_value=-jnp.inf)
    selected, repulsion = (jax.nn.logsumexp(x, axis=1) for x in (values, every))
    found = choose_tail(*lax.stop_gradient((values, numbers, drawn)), draws, selected, repulsion, samples)
    scores = jnp.take_along_axis(every, found.numbers, axis=1, mode="fill", fill_value=-jnp.inf)
    return jnp.concatenate([values + found.boost[:, :1], scores + found.boost[:, 1:]], axis=1)


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
        known = (problem.query_groups[:, None] >= 0) & (problem.key_groups[None, :] >= 0)
        same = (columns == problem.partner[:, None]) & known
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
    skip: tuple[float, int],
) -> Stats:
    """Numbers about the selection; every row sees all its columns as one block, and none is skipped."""
    rows = scores.shape[0]
    every = jnp.where(negative, scores, -jnp.inf)
    chosen = every if top_k is None else _most_similar(every, top_k, skip)[0]
    negatives = jnp.sum(negative, axis=1, dtype=jnp.int32)
    attracted = jax.nn.logsumexp(jnp.where(positive, scores, -jnp.inf), axis=1)
    used, full = (jnp.logaddexp(attracted, jax.nn.logsumexp(x, axis=1)) for x in (chosen, every))
    bad = jnp.sum(~is_finite(problem.keys))
    if problem.bank is not None:
        bad += jnp.sum(problem.bank.valid & ~is_finite(problem.bank.values))
    return Stats(
        rows_tested=jnp.float32(rows),
        rows_skipped=jnp.float32(0),
        elements_selected=jnp.float32(0 if top_k is None else every.size),
        subblocks_tested=jnp.float32(0),
        subblocks_skipped=jnp.float32(0),
        maxima_selected=jnp.float32(0),
        hardest=jnp.max(every, axis=1),
        kth=jnp.full(rows, -jnp.inf) if top_k is None else chosen[:, -1],
        tail_mass=jnp.where(full == -jnp.inf, 0.0, -jnp.expm1(jnp.minimum(used - full, 0.0))),
        positives=jnp.sum(positive, axis=1, dtype=jnp.int32),
        negatives=negatives - jnp.minimum(share_of(skip[0], negatives), skip[1]),
        nonfinite=bad.astype(jnp.int32),
    )
