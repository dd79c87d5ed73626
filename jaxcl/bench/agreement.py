"""Whether every engine computes on this device what the definition says: value and gradients, small."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcl.bench.programs import ENGINES, TEMPERATURE, embeddings
from jaxcl.losses import infonce

FLOAT32, BFLOAT16 = 1e-5, 1e-2  # relative to the largest entry; gradients of bfloat16 arrays are rounded to 8 bits
ACROSS_DEVICES = 1e-4  # the definition itself on this device and on the host, whose exponentials differ


class Case(NamedTuple):
    """A problem.

    Attributes:
        kind: "pairs": queries are keys; "classes": the same with many positives a row; "queue": two arrays and a
            part-filled float16 queue; "queue alone": the same, and keys are no negatives.
        k: negatives kept; None: all.
        dtype: of the embeddings.
    """

    kind: str
    k: int | None
    dtype: str = "float32"


# more than 1024 columns: below that no selection kernel of a GPU is used
ROWS, D = 1031, 48
CASES = (
    *(Case("pairs", k) for k in (1, 16, 64, 200, None)),
    *(Case("pairs", k, "bfloat16") for k in (16, 64, None)),
    *(Case(kind, k) for kind in ("queue", "classes") for k in (64, None)),
    Case("queue alone", 16),
)
DRY_ROWS = 67
DRY_CASES = (Case("pairs", 5), Case("queue", None), Case("classes", None, "bfloat16"))


class Verdict(NamedTuple):
    """How far one engine is from the definition.

    Attributes:
        engine: its name.
        kind: of the case.
        k: of the case.
        dtype: of the case.
        loss: largest difference of a row's loss, relative to the largest loss.
        gradient: the same of the gradients; the worst of queries, keys and temperature.
        tolerance: for both.
        agrees: whether they keep it.
        error: what was raised instead.
    """

    engine: str
    kind: str
    k: int | None
    dtype: str
    loss: float | None
    gradient: float | None
    tolerance: float
    agrees: bool
    error: str | None = None


class Result(NamedTuple):
    """Loss of each row, and gradients of queries, keys (where they are another array) and temperature."""

    losses: np.ndarray
    gradients: list[np.ndarray]


def agreements(cases: Iterable[Case], rows: int, workers: int) -> list[Verdict]:
    """Compares every engine with `infonce` on this device, and that with itself on the host.

    Args:
        cases: problems.
        rows: queries of each.
        workers: programs that are compiled at once.

    Returns:
        A verdict for each case and engine.
    """
    with ThreadPoolExecutor(workers) as pool:
        return [verdict for found in pool.map(lambda case: _verdicts(case, rows), cases) for verdict in found]


def difference(actual: Any, expected: Any) -> float:
    """The largest difference of two arrays over the largest entry of the second; infinite where one alone is NaN.

    >>> difference([1.0, 2.0], [1.0, 4.0])
    0.5
    """
    a, b = (np.asarray(x, np.float64) for x in (actual, expected))
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return float("inf")
    return float(np.nanmax(np.abs(a - b)) / max(float(np.nanmax(np.abs(b))), 1e-30))


def _verdicts(case: Case, rows: int) -> list[Verdict]:
    """All engines in one case; engines of one definition are compared with one result of it."""
    expected: dict[tuple, Result | str] = {}
    verdicts = []
    for name, engine in ENGINES.items():
        if case.k is None and "tail" in engine.options:
            continue  # a tail only exists beside a top k
        definition = tuple(engine.definition.items())
        if definition not in expected:
            expected[definition] = _try_evaluate(infonce, case, rows, engine.definition)
        actual = expected[definition] if name == "dense" else _try_evaluate(engine.function, case, rows, engine.options)
        other = _on_host(case, rows) if name == "dense" else expected[definition]
        verdicts.append(_verdict(name, case, actual, other))
    return verdicts


def _verdict(name: str, case: Case, actual: Result | str, expected: Result | str) -> Verdict:
    """One engine in one case."""
    tolerance = BFLOAT16 if case.dtype == "bfloat16" else ACROSS_DEVICES if name == "dense" else FLOAT32
    for result in (actual, expected):
        if isinstance(result, str):
            return Verdict(name, *case, None, None, tolerance, False, result)
    assert not isinstance(actual, str)
    assert not isinstance(expected, str)
    loss = difference(actual.losses, expected.losses)
    gradient = max(difference(a, b) for a, b in zip(actual.gradients, expected.gradients, strict=True))
    return Verdict(name, *case, loss, gradient, tolerance, max(loss, gradient) <= tolerance)


def _on_host(case: Case, rows: int) -> Result | str:
    """The definition on the host's processor, or on this device where the host has no backend of its own."""
    try:
        host = jax.devices("cpu")[0]
    except RuntimeError:
        host = jax.devices()[0]
    with jax.default_device(host):
        return _try_evaluate(infonce, case, rows, {})


def _try_evaluate(function: Callable[..., Any], case: Case, rows: int, options: Mapping[str, Any]) -> Result | str:
    """A result, or the first line of the device's complaint."""
    try:
        return _evaluate(function, case, rows, options)
    except jax.errors.JaxRuntimeError as error:
        return str(error).strip().splitlines()[0][:200]


def _evaluate(function: Callable[..., Any], case: Case, rows: int, options: Mapping[str, Any]) -> Result:
    """Losses, and gradients of a weighted sum of them, computed from host arrays."""
    arrays, vectors, flags = _problem(case, rows)
    weights = np.random.default_rng(5).standard_normal(rows, np.float32)
    same = len(arrays) == 1

    def total(arrays: list[jax.Array], temperature: jax.Array, vectors: dict[str, jax.Array]) -> Any:
        named = dict(vectors)
        groups = named.pop("query_groups"), named.pop("key_groups")
        drawn = {"tail_key": jax.random.key(1)} if "tail" in options else {}
        keys = arrays[0] if same else arrays[1]
        out = function(
            arrays[0], keys, *groups, temperature=temperature, top_k=case.k, **named, **flags, **options, **drawn
        )
        return jnp.sum(out.loss * weights), out.loss

    step = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))
    (_, losses), (of_arrays, of_temperature) = step(arrays, np.float32(TEMPERATURE), vectors)
    return Result(np.asarray(losses), [np.asarray(x, np.float32) for x in (*of_arrays, of_temperature)])


def _problem(case: Case, rows: int) -> tuple[list[np.ndarray], dict[str, Any], dict[str, Any]]:
    """Embeddings, what comes with them, and flags, on the host."""
    number = np.arange(rows, dtype=np.int32)
    same = case.kind in ("pairs", "classes")
    arrays = [np.asarray(embeddings(rows, D, case.dtype, seed)) for seed in range(1 if same else 2)]
    groups = {"pairs": number // 2, "classes": number % 5}.get(case.kind, number)
    vectors: dict[str, Any] = {"query_groups": groups, "key_groups": groups}
    if same:
        return arrays, vectors, {"exclude_diagonal": True}
    length = rows + rows // 3
    vectors["queue"] = np.asarray(embeddings(length, D, "float16", 3))
    vectors["queue_groups"] = np.arange(length, dtype=np.int32) + rows - 3  # three rows belong to queries
    vectors["queue_filled"] = np.int32(length - 5)
    return arrays, vectors, {"use_key_negatives": case.kind != "queue alone"}
