"""What a measurement depends on is written down."""

import datetime

import jax

from jaxcl.bench.about import about, device_line


def test_device_versions_and_date_are_named():
    found = about()
    assert found["versions"]["jax"] == jax.__version__
    assert found["device"]["cores"] >= 1
    datetime.date.fromisoformat(found["date"])


def test_a_package_that_is_missing_is_said():
    found = about()
    found["versions"]["torch"] = None
    assert "torch not installed" in device_line(found)
