"""Programs compiled side by side, each text once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jaxcl.planner.parts import Stats

THREADS = 2


class Compiler:
    """Memory of lowered programs; one whose text was compiled before is not compiled again.

    Attributes:
        compiled: programs so far.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Nothing is compiled yet.

        Args:
            options: of XLA.
        """
        self._options, self._known = dict(options), dict[str, Stats | str]()
        self.compiled = 0

    def __call__(self, programs: Sequence[Any]) -> list[Stats | str]:
        """Compiles what is new.

        Args:
            programs: lowered; for devices that may not be there.

        Returns:
            For each what the compiler says, or why it refuses, in one line.
        """
        texts = [program.as_text() for program in programs]
        names = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        new = {name: p for name, p in zip(names, programs, strict=True) if name not in self._known}
        # what takes longest first, or it would be left for one core in the end
        order = sorted(new, key=lambda name: -len(texts[names.index(name)]))
        with ThreadPoolExecutor(THREADS) as pool:
            self._known |= dict(zip(order, pool.map(self._compile, (new[name] for name in order)), strict=True))
        self.compiled += len(new)
        return [self._known[name] for name in names]

    def _compile(self, program: Any) -> Stats | str:
        """One program; what XLA raises has no class of its own for memory."""
        try:
            memory = program.compile(compiler_options=self._options).memory_analysis()
        except Exception as error:
            if type(error).__name__ not in ("JaxRuntimeError", "XlaRuntimeError"):
                raise
            return why(str(error))
        return Stats(
            temp=memory.temp_size_in_bytes,
            arguments=memory.argument_size_in_bytes,
            outputs=memory.output_size_in_bytes,
            aliased=memory.alias_size_in_bytes,
        )


def why(message: str) -> str:
    """The first sentence of what a compiler says, on one line and without its code.

    >>> why("RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in hbm. Used 32G of 15.75G hbm.")
    'ran out of memory: used 32G of 15.75G'
    """
    used = re.search(r"Used ([\d.]+\w) of ([\d.]+\w)", message)
    if used:
        return f"ran out of memory: used {used[1]} of {used[2]}"
    text = " ".join(message.split())
    return re.sub(r"^[A-Z_]+: ", "", text)[:160]
