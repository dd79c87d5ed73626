"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import pkgutil

import jax.numpy as jnp
import numpy as np
import pytest

import jaxcl

MODULES = sorted(item.name for item in pkgutil.walk_packages(jaxcl.__path__, "jaxcl."))


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs={"jnp": jnp, "np": np}, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0
