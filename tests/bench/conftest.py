"""What the benchmark's tests share."""

import pytest
from compile_options import FAST_COMPILE


@pytest.fixture(scope="session")
def fast_compile():
    """Options with which programs compile fastest."""
    return FAST_COMPILE
