"""Kernels are counted in a program's text."""

import jax.numpy as jnp

from jaxcl.bench.kernels import count_kernels
from jaxcl.bench.measure import compile_program


def test_a_sort_in_a_compiled_program_is_counted():
    program = compile_program(lambda x, y: (jnp.sort(x), jnp.sort(y)), jnp.arange(7.0), jnp.arange(9.0))
    assert count_kernels(program.text)["sort"] == 2


def test_tuples_and_library_calls_are_read_and_names_that_only_contain_one_are_not():
    text = """
      ROOT %sort.1 = (f32[128,8192]{1,0}, s32[128,8192]{1,0}) sort(%p, %iota), dimensions={1}
      %dot.3 = f32[4,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}
      %custom-call.1 = (f32[4,4]{1,0}, s8[4]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm"
      %sorted = f32[4]{0} fusion(%sort.2), kind=kLoop
    """
    assert count_kernels(text) == {"__cublas$gemm": 1, "dot": 1, "sort": 1}
