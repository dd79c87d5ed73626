"""What memory is used for: bytes by part, which sum to the peak of a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

PARAMETERS = "parameters"
GRADIENTS = "gradients"
OPTIMIZER = "optimizer"
BATCH = "batch"
QUEUE = "queue"
ACTIVATIONS = "activations"
SIMILARITY = "similarity_and_selection"
OTHER = "other"
PARTS = (PARAMETERS, GRADIENTS, OPTIMIZER, BATCH, QUEUE, ACTIVATIONS, SIMILARITY, OTHER)


class Stats(NamedTuple):
    """What a compiler says of a program, bytes of one device.

    Attributes:
        temp: scratch memory.
        arguments: that it reads, padded as the device lays them out.
        outputs: all results.
        aliased: results in the place of arguments that were given up.
    """

    temp: int
    arguments: int
    outputs: int
    aliased: int


def peak_parts(
    live: Mapping[str, int], handed: int, stats: Stats, *, scratch: Mapping[str, int], results: str
) -> dict[str, int]:
    """The peak of a program and of what lies beside it, by part.

      peak = arrays that are alive + padding of arguments + results in places of their own + scratch memory

    Args:
        live: bytes of all arrays that are alive when it starts, its arguments among them, by part.
        handed: bytes of its arguments without padding.
        stats: of the compiler.
        scratch: what the scratch memory is used for, by part; the sum is at most `stats.temp`, the rest is "other".
        results: the part of results in places of their own.

    Returns:
        Bytes of every part in `PARTS`.

    >>> stats = Stats(temp=5, arguments=8, outputs=4, aliased=3)
    >>> sum(peak_parts({"batch": 10}, 8, stats, scratch={"activations": 5}, results="other").values())
    16
    """
    total = Counter(dict(live))
    total[OTHER] += max(stats.arguments - handed, 0) + stats.temp - sum(scratch.values())
    total[results] += max(stats.outputs - stats.aliased, 0)
    total.update(scratch)
    return {part: total[part] for part in PARTS}


def share_scratch(temp: int, *, similarity: int, gradients: int) -> dict[str, int]:
    """What the scratch memory of a step in one program is used for.

    Args:
        temp: of the step.
        similarity: scratch memory of the loss compiled alone, and its embeddings.
        gradients: of the parameters.

    Returns:
        Bytes by part: what was measured first, then gradients, and activations are what remains.

    >>> share_scratch(100, similarity=30, gradients=20)
    {'similarity_and_selection': 30, 'gradients': 20, 'activations': 50}
    """
    first = min(similarity, temp)
    second = min(gradients, temp - first)
    return {SIMILARITY: first, GRADIENTS: second, ACTIVATIONS: temp - first - second}
