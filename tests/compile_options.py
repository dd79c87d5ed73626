"""Compiler options for tests, which compile much and compute little.

Where XLA has its fusion emitters for CPUs, it compiles up to three times as fast without them. No version says which
flags it knows, and an unknown one ends the process: the versions that have this one are named.
"""

import importlib.metadata
import sys

HAS_EMITTERS = importlib.metadata.version("jaxlib").startswith("0.10.")
# for the whole process, before jax starts
WITHOUT_EMITTERS = ["--xla_cpu_use_fusion_emitters=false"] if HAS_EMITTERS else []
# LLVM has each program whole: cut up for its threads, as by default, one costs a fifth more, and all cores have tests
UNDIVIDED = ["--xla_cpu_parallel_codegen_split_count=1"]
# LLVM's part, on which most tests spend more time than on running what it made; slow ones, `pytest -m slow`, run it
UNOPTIMISED = [] if "slow" in sys.argv else ["--xla_backend_optimization_level=0"]
# for what does not depend on the code of a CPU at all
FAST_COMPILE = {"xla_backend_optimization_level": 0}
# for what may: what an optimiser drops, how much memory a program takes
AS_USERS_COMPILE = {"xla_backend_optimization_level": 3}
AS_USERS_COMPILE |= {"xla_cpu_use_fusion_emitters": True} if HAS_EMITTERS else {}
