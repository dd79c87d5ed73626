"""The PyTorch competitor computes the same loss, where PyTorch is installed."""

import jax
import pytest

from jaxcl.bench import pytorch
from jaxcl.bench.programs import Variant, arguments_of, function_of


@pytest.mark.skipif(not pytorch.is_installed(), reason="needs the extra torch")
def test_it_equals_the_dense_loss():
    variant = Variant("dense", 24, 5)
    value, _ = jax.jit(function_of(variant))(*arguments_of(variant))
    assert pytorch.make_dense(variant).run() == pytest.approx(float(value), rel=1e-5)


def test_what_to_install_is_named():
    assert "pip install 'jaxcl[torch]'" in pytorch.MISSING
