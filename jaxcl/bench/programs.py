"""The losses that are compared: a variant says which, over seeded embeddings in pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcl.losses import infonce, streaming_infonce

TEMPERATURE = 0.1
TAIL = {"tail": "sampled", "tail_samples": 64}


class Engine(NamedTuple):
    """A function and the arguments that make it this engine."""

    function: Callable[..., Any]
    options: Mapping[str, Any]

    @property
    def definition(self) -> dict[str, Any]:
        """Arguments with which `infonce` computes the same."""
        return {name: value for name, value in self.options.items() if name != "impl"}


# All of these take part in the table, the GPU check and its comparison with the definition.
ENGINES = {
    "dense": Engine(infonce, {}),
    "strip": Engine(streaming_infonce, {}),
    "column": Engine(streaming_infonce, {"impl": "column"}),
    "sampled": Engine(streaming_infonce, TAIL),
}


@dataclass(frozen=True)
class Variant:
    """One loss at one size.

    Attributes:
        engine: a name of `ENGINES`.
        n: embeddings, in pairs; of an odd number the last has no partner.
        d: dimensions.
        k: negatives kept a row; None: all.
        dtype: of the embeddings.
        two: queries and keys are two arrays, row i of one belongs to row i of the other.
        backward: with the gradient of the embeddings.
        block: rows or columns a block; None: the engine chooses.
        learned: with the gradient of the temperature too, for which a dense loss keeps one more N × N array.
    """

    engine: str
    n: int
    d: int
    k: int | None = None
    dtype: str = "float32"
    two: bool = False
    backward: bool = True
    block: int | None = None
    learned: bool = False

    @property
    def name(self) -> str:
        """How tables call it.

        >>> Variant("strip", 8192, 128, 64, two=True).name
        'strip, top 64, two arrays'
        """
        selected = "all negatives" if self.k is None else f"top {self.k}"
        more = [", two arrays"] * self.two + [", learned τ"] * self.learned
        return f"{self.engine}, {selected}{''.join(more)}"

    @property
    def work(self) -> str:
        """Which passes it runs."""
        return "forward + backward" if self.backward else "forward"


@lru_cache(maxsize=2)
def embeddings(n: int, d: int, dtype: str = "float32", seed: int = 0) -> jax.Array:
    """Seeded normal numbers, made on the host so that no scratch memory of the device is used.

    Args:
        n: rows.
        d: columns.
        dtype: of the result.
        seed: of the numbers.

    Returns:
        [n, d].
    """
    return jnp.asarray(np.random.default_rng(seed).standard_normal((n, d), np.float32).astype(jnp.dtype(dtype)))


def arguments_of(variant: Variant) -> tuple[jax.Array, ...]:
    """What `function_of` takes.

    Args:
        variant: which loss.

    Returns:
        Temperature, groups [n], queries [n, d] and, of two arrays, keys [n, d].
    """
    groups = np.arange(variant.n, dtype=np.int32) // (1 if variant.two else 2)
    arrays = [embeddings(variant.n, variant.d, variant.dtype, seed) for seed in range(1 + variant.two)]
    return jnp.float32(TEMPERATURE), jnp.asarray(groups), *arrays


def shapes_of(variant: Variant) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shapes and dtypes of `arguments_of`, for a program that is only compiled.

    Args:
        variant: which loss.

    Returns:
        As many as `arguments_of` returns.
    """
    array = jax.ShapeDtypeStruct((variant.n, variant.d), jnp.dtype(variant.dtype))
    groups = jax.ShapeDtypeStruct((variant.n,), jnp.int32)
    return jax.ShapeDtypeStruct((), jnp.float32), groups, *[array] * (1 + variant.two)


def function_of(variant: Variant) -> Callable[..., Any]:
    """Mean loss over the valid rows, with its gradient if the variant says so.

    Args:
        variant: which loss.

    Returns:
        A function of `arguments_of`.

    >>> value, gradients = function_of(Variant("dense", 4, 2))(*arguments_of(Variant("dense", 4, 2)))
    >>> [g.shape for g in gradients]
    [(4, 2)]
    """
    engine, options = ENGINES[variant.engine]
    options = {**options, **({} if variant.block is None else {"block_size": variant.block})}

    def mean(temperature: jax.Array, groups: jax.Array, queries: jax.Array, keys: jax.Array | None = None) -> jax.Array:
        if "tail" in options:
            options["tail_key"] = jax.random.key(0)
        out = engine(
            queries,
            queries if keys is None else keys,
            groups,
            groups,
            temperature=temperature,
            top_k=variant.k,
            exclude_diagonal=keys is None,
            **options,
        )
        return jnp.sum(out.loss) / jnp.sum(out.valid)

    of = (0,) * variant.learned + (2,) + (3,) * variant.two
    return jax.value_and_grad(mean, argnums=of) if variant.backward else mean
