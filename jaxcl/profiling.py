"""A look inside a few steps of a run: what they do, on a time line, and which arrays the devices hold after them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import jax

STEPS = 3  # traced, after the first one, which compiles
MEMORY = "device_memory.pb.gz"


class Profile:
    """Traces some steps; where it is off, a step costs one comparison of integers."""

    def __init__(self, folder: Path | None, *, first: int, last: int) -> None:
        """Nothing is written yet.

        Args:
            folder: for the trace and the memory profile; None: there are none.
            first: the first step of this process; it compiles, and is traced only where there is no other.
            last: the last step.
        """
        begin = min(first + 1, last)
        self._folder = folder
        self._steps = range(begin, min(begin + STEPS, last + 1)) if folder else range(0)

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Around one step, which has ended when it is left.

        Args:
            number: of the step.
        """
        if self._folder is None or number not in self._steps:
            yield
            return
        if number == self._steps[0]:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # every call of a Python function would bury the step, and take a minute
            jax.profiler.start_trace(self._folder, profiler_options=options)
        whole = False
        try:
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                yield
            whole = True
        finally:
            if number == self._steps[-1] or not whole:
                jax.profiler.stop_trace()
        if number == self._steps[-1]:
            jax.profiler.save_device_memory_profile(str(self._folder / MEMORY))
            print(how_to_open(self._folder, self._steps), flush=True)


def how_to_open(folder: Path, steps: range) -> str:
    """What was saved, and with which programs it is looked at.

    Args:
        folder: of the profile.
        steps: that were traced.

    >>> print(how_to_open(Path("runs/a/profile"), range(2, 5)).splitlines()[0])
    profile of steps 2 to 4: runs/a/profile
    """
    return "\n".join(
        [
            f"profile of steps {steps[0]} to {steps[-1]}: {folder}",
            f"  memory of the devices   pprof -http=localhost:8080 {folder / MEMORY}",
            f"  time line               open plugins/profile/*/*.trace.json.gz at https://ui.perfetto.dev, or "
            f"tensorboard --logdir {folder} (pip install tensorboard-plugin-profile)",
        ]
    )
