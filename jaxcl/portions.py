"""Which images of a batch go through the encoder together, and where what it says of them lies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@dataclass(frozen=True)
class Portions:
    """A batch in micro-batches, of which the last may be short.

    The batch is cut into gcd(size, micro) runs of neighbours, and each micro-batch takes equally many of each run, so
    that on any number of devices that divides both it holds as many images of each: no image moves. Where micro
    divides size, micro-batch j holds every m-th image from j on, as with accumulation.

    Attributes:
        size: images of the batch.
        micro: images of a micro-batch, at most size.

    >>> Portions(6, 2).take(jnp.arange(6), 1).tolist(), Portions(6, 4).take(jnp.arange(6), 1, 2).tolist()
    ([1, 4], [2, 5])
    """

    size: int
    micro: int

    @property
    def whole(self) -> int:
        """Micro-batches of the full size.

        >>> Portions(7, 3).whole
        2
        """
        return self.size // self.micro

    @property
    def short(self) -> int:
        """Images of the last micro-batch; 0 where all are whole.

        >>> Portions(7, 3).short
        1
        """
        return self.size % self.micro

    @property
    def count(self) -> int:
        """Micro-batches of the batch.

        >>> Portions(7, 3).count
        3
        """
        return self.whole + (self.short > 0)

    def images(self, number: int) -> int:
        """How many images a micro-batch holds.

        Args:
            number: of the micro-batch from 0.

        Returns:
            `micro`, or `short` for the last one.

        >>> [Portions(7, 3).images(number) for number in range(3)]
        [3, 3, 1]
        """
        return self.micro if number < self.whole else self.short

    @property
    def _runs(self) -> int:
        """Runs of neighbours of which each micro-batch has equally many images."""
        return math.gcd(self.size, self.micro)

    def take(self, batch: Any, number: Any, images: int | None = None) -> Any:
        """The rows of one micro-batch.

        Args:
            batch: tree of arrays [B, …], of NumPy or JAX; or the rows that one of several processes has of each.
            number: of the micro-batch from 0; may be traced where the arrays are JAX's.
            images: that it holds, over all processes; None: `micro`.

        Returns:
            The same tree with [images, …] each.
        """
        run, own = self.size // self._runs, (images or self.micro) // self._runs
        start = number * (self.micro // self._runs)

        def rows(x: Any) -> Any:
            runs = x.reshape(-1, run, *x.shape[1:])
            mine = (
                lax.dynamic_slice_in_dim(runs, start, own, axis=1)
                if isinstance(x, jax.Array)
                else runs[:, start : start + own]
            )
            return mine.reshape(-1, *x.shape[1:])

        return jax.tree.map(rows, batch)

    def put(self, batch: Any, rows: Any, number: Any) -> Any:
        """Writes the rows of one micro-batch where `take` finds them.

        Args:
            batch: tree of arrays [B, …].
            rows: the same tree with [images, …] each.
            number: of the micro-batch from 0; may be traced.

        Returns:
            The tree with these rows changed.

        >>> Portions(6, 2).put(jnp.zeros(6, int), jnp.array([5, 7]), 1).tolist()
        [0, 5, 0, 0, 7, 0]
        """
        run, start = self.size // self._runs, number * (self.micro // self._runs)

        def write(x: jax.Array, part: jax.Array) -> jax.Array:
            runs, part = (y.reshape(self._runs, -1, *x.shape[1:]) for y in (x, part))
            assert runs.shape[1] == run
            return lax.dynamic_update_slice_in_dim(runs, part, start, axis=1).reshape(x.shape)

        return jax.tree.map(write, batch, rows)

    def blank(self, rows: Any) -> Any:
        """Zeros for `put` to write to.

        Args:
            rows: tree of arrays or shapes [images, …] of any micro-batch.

        Returns:
            The same tree with [B, …] each.
        """
        return jax.tree.map(lambda x: jnp.zeros((self.size, *x.shape[1:]), x.dtype), rows)


@dataclass(frozen=True)
class Held:
    """A batch in memory, gone through in micro-batches as often as one likes.

    Attributes:
        batch: tree of arrays [B, …], or the rows that one of several processes has of each.
        portions: how it is cut.

    >>> [rows["id"].tolist() for rows in Held({"id": jnp.arange(5)}, Portions(5, 2))]
    [[0, 1], [2, 3], [4]]
    """

    batch: Any
    portions: Portions

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.portions.count):
            yield self.portions.take(self.batch, number, self.portions.images(number))
