"""A run does not grow: what a step takes it gives back."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxcl.usage import resident_bytes

SETTLED, STEPS = 250, 1250  # after the first epoch of 189 steps, in which the source keeps what it decodes
# a KiB a step; 20 floats of metrics that somebody keeps are more
BOUND = (STEPS - SETTLED) * 1024
RUN = """
import ctypes, json, sys
from pathlib import Path
from jaxcl import train as training, usage
from jaxcl.config import resolve

trim = ctypes.CDLL("libc.so.6").malloc_trim


def memory_use():
    trim(0)  # what was freed and not yet given back, a quarter of a GiB after compiling, is nobody's
    return usage.memory_use()


training.memory_use, training.finish = memory_use, lambda *_: {}
training.train(resolve(json.loads(sys.argv[1])), Path(sys.argv[2]))
"""


def has_trim():
    try:
        return hasattr(ctypes.CDLL("libc.so.6"), "malloc_trim")
    except OSError:
        return False


@pytest.mark.slow(reason="half a minute: 1,250 steps")
@pytest.mark.skipif(resident_bytes() is None or not has_trim(), reason="needs Linux with glibc, which tell and trim")
def test_resident_memory_does_not_grow_over_a_thousand_steps(tmp_path):
    config = {
        "steps": STEPS,
        "data": {"image_size": 8},
        "model": {"head_hidden": 8, "head_dim": 4},
        "queue": {"size": 16},
        "batch": {"size": 8},
        "mesh": {"shape": {"data": 1}},
        "log": {"every": 50},
        "checkpoint": {"every": STEPS},
    }
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_COMPILATION_CACHE_DIR": ""}
    command = [sys.executable, "-c", RUN, json.dumps(config), str(tmp_path / "run")]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    resident = {row["step"]: row["resident_bytes"] for row in rows}
    assert resident[STEPS] - resident[SETTLED] < BOUND, resident
