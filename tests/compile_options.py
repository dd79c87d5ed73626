"""Compiler options for tests, which compile much and compute little."""

import jax


def _fastest():
    """The fastest that this version knows: where it has fusion emitters, three times as fast without them."""
    slow = {"xla_backend_optimization_level": 0}
    fast = {**slow, "xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=fast)
    except jax.errors.JaxRuntimeError:
        return slow
    return fast


FAST_COMPILE = _fastest()
