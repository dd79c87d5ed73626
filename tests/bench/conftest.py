"""What the benchmark's tests share."""

import jax
import pytest


@pytest.fixture(scope="session")
def fast_compile():
    """Options with which programs compile fastest: where the version has fusion emitters, three times without them."""
    slow = {"xla_backend_optimization_level": 0}
    fast = {**slow, "xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=fast)
    except jax.errors.JaxRuntimeError:
        return slow
    return fast
