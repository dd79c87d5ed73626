"""Peak memory is read from the device, in order, and only where it rises."""

import json

import jax

from jaxcl.bench.gpu_items import Item
from jaxcl.bench.gpu_memory import run_in_order
from jaxcl.bench.measure import Program

ITEM = Item("loss", "strip", 64, 8, None, "float32", None, True)


def test_a_device_without_statistics_is_said_in_words():
    assert "reports no memory statistics" in run_in_order([ITEM])


def test_a_peak_that_did_not_rise_is_no_figure(monkeypatch):
    peaks = iter([1, 100, 100, 250])

    class Device:
        def memory_stats(self):
            return {"peak_bytes_in_use": next(peaks)}

    monkeypatch.setattr(jax, "devices", lambda: [Device()])
    monkeypatch.setattr(Item, "program", lambda self: Program(lambda: 0.0))
    found = run_in_order([ITEM] * 3)
    assert json.loads(json.dumps(found)) == [100, None, 250]
