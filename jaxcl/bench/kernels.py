"""Which kernels a compiled program consists of, counted in its text."""

from __future__ import annotations

import re
from collections import Counter

# operations that run as kernels of their own; products that became library calls are custom calls
_OPERATION = re.compile(r"= [^=]*?[\]})] (sort|topk|dot|all-gather|reduce-scatter|collective-permute)(?:-start)?\(")
_CUSTOM = re.compile(r'custom_call_target="([^"]+)"')


def count_kernels(text: str) -> dict[str, int]:
    r"""Sorts, selections, products and library calls of an optimised program, each counted where it stands.

    One inside a loop counts once, however often the loop runs it.

    Args:
        text: HLO, as `Compiled.as_text()` prints it.

    Returns:
        Name and number, by name.

    >>> count_kernels('%a = f32[8]{0} sort(%b), x\n%c = f32[4]{0} custom-call(%a), custom_call_target="__gpu$TopK"')
    {'__gpu$TopK': 1, 'sort': 1}
    """
    return dict(sorted(Counter(_OPERATION.findall(text) + _CUSTOM.findall(text)).items()))
