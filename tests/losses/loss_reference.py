"""The formula as three loops in float64, random problems, and value and gradient of a loss on one of them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from compile_options import FAST_COMPILE


def loop_loss(
    queries, keys, query_groups, key_groups, *, temperature, positive_index=None, top_k=None, skip_hardest=0.0,
    queue=None, queue_groups=None, queue_filled=None, exclude_diagonal=False, use_key_negatives=True,
):  # fmt: skip
    """Loss and validity of each query."""
    bank = [] if queue is None else list(zip(queue, queue_groups, strict=True))[:queue_filled]
    loss, valid = np.zeros(len(queries)), np.zeros(len(queries), bool)
    for i, query in enumerate(queries):
        positives, negatives = [], []
        for j, key in enumerate(keys):
            if exclude_diagonal and i == j:
                continue
            score = cosine(query, key) / temperature
            same = query_groups[i] == key_groups[j] and query_groups[i] >= 0
            named = same if positive_index is None else positive_index[i] == j and query_groups[i] >= 0 <= key_groups[j]
            if named:
                positives.append(score)
            elif not same and use_key_negatives:
                negatives.append(score)
        for row, group in bank:
            if query_groups[i] != group or group < 0:
                negatives.append(cosine(query, row) / temperature)
        skip = math.floor(skip_hardest * len(negatives) + 1e-6)  # a share of exactly n of them is n
        chosen = sorted(negatives, reverse=True)[skip : None if top_k is None else skip + top_k]
        valid[i] = bool(positives)
        if positives:
            log_sum = math.log(sum(math.exp(s) for s in positives + chosen))
            loss[i] = -sum(s - log_sum for s in positives) / len(positives)
    return loss, valid


def cosine(a, b):
    """Cosine of two vectors in float64."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return a @ b / math.sqrt((a @ a) * (b @ b))


def random_problem(seed, n, m=None, *, dim=7, groups=5, queue=0, filled=None, named=False, lowest=-1):
    """Arguments of a loss with random embeddings, groups and queue; m None: keys are the queries."""
    rng = np.random.default_rng(seed)
    queries = rng.normal(size=(n, dim)).astype(np.float32)
    query_groups = rng.integers(lowest, groups, n).astype(np.int32)
    keys = queries if m is None else rng.normal(size=(m, dim)).astype(np.float32)
    key_groups = query_groups if m is None else rng.integers(lowest, groups, m).astype(np.int32)
    settings = {}
    if queue:
        settings["queue"] = rng.normal(size=(queue, dim)).astype(np.float16)
        settings["queue_groups"] = rng.integers(lowest, groups, queue).astype(np.int32)
        settings["queue_filled"] = queue if filled is None else filled
    if named:
        settings["positive_index"] = rng.integers(-1, len(keys) + 1, n).astype(np.int32)
    return (queries, keys, query_groups, key_groups), settings


def findings(out):
    """Loss, validity and what the stats say of the candidates; not how much work it was to find them."""
    work = {
        "rows_tested",
        "rows_skipped",
        "elements_selected",
        "subblocks_tested",
        "subblocks_skipped",
        "maxima_selected",
    }
    return out.loss, out.valid, {name: value for name, value in out.stats._asdict().items() if name not in work}


def evaluate(loss, *arrays, **options):
    """The output of a loss, compiled as one program."""
    return jax.jit(lambda: loss(*arrays, **options), compiler_options=FAST_COMPILE)()


def value_and_gradients(loss, arrays, temperature=0.3, **settings):
    """Output, and gradients of a weighted sum for queries, keys (None where they are the queries) and temperature."""
    queries, keys, query_groups, key_groups = arrays
    weights = np.random.default_rng(1).normal(size=len(queries)).astype(np.float32)
    same = keys is queries

    def total(queries, keys, temperature):
        keys = queries if same else keys
        out = loss(queries, keys, query_groups, key_groups, temperature=temperature, **settings)
        return jnp.sum(out.loss * weights), out

    step = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True), compiler_options=FAST_COMPILE)
    (_, out), gradients = step(queries, None if same else keys, jnp.float32(temperature))
    return out, gradients


def assert_close(actual, expected, tolerance=1e-5):
    """Every leaf equal, relative to its largest entry."""
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, e = np.asarray(a, np.float64), np.asarray(e, np.float64)
        finite = np.isfinite(e)
        np.testing.assert_array_equal(np.where(finite, 0, a), np.where(finite, 0, e))
        scale = max(1.0, np.max(np.abs(e[finite]), initial=0))
        np.testing.assert_allclose(a[finite], e[finite], rtol=tolerance, atol=tolerance * scale)
