"""Times become fractions of a peak; what fails or comes too late is said."""

import dataclasses

import jax
import pytest

from jaxcl.bench import gpu_rows
from jaxcl.bench.budget import Budget
from jaxcl.bench.gpu_items import DRY, FLOOR, Item
from jaxcl.bench.gpu_rows import measure_batch, measure_peaks
from jaxcl.bench.measure import Program

FLOOR_ITEM = Item("selection", FLOOR, 64, 8, None, "float32", 32)
WAY = dataclasses.replace(FLOOR_ITEM, name="lax.top_k", k=4)
PEAKS = {"float32": 1e-3, "bfloat16": 1e-3}


def test_a_row_has_time_fraction_memory_and_kernels():
    (floor, way), left_out = measure_batch([FLOOR_ITEM, WAY], PEAKS, Budget(60), workers=1)
    assert left_out == []
    assert floor.tflops == pytest.approx(2 * 64**2 * 8 / floor.ms / 1e9)
    assert floor.fraction == pytest.approx(floor.tflops / 1e-3)
    assert way.predicted_bytes > way.temp_bytes >= 0
    assert way.kernels
    assert (way.aim, way.met) == (None, None)


def test_a_program_for_which_there_is_no_time_is_left_out():
    rows, left_out = measure_batch([FLOOR_ITEM, WAY], PEAKS, Budget(0), workers=1)
    assert rows == []
    assert left_out == [FLOOR_ITEM, WAY]


def test_a_program_that_does_not_fit_is_a_row_with_its_error(monkeypatch):
    def out_of_memory(self):
        if self.name == "lax.top_k":
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nmore")
        return Program(lambda: 0.0, 1, 2, 0.1, "")

    monkeypatch.setattr(Item, "program", out_of_memory)
    (floor, way), _ = measure_batch([FLOOR_ITEM, WAY], PEAKS, Budget(60), workers=1)
    assert floor.error is None
    assert way.error == "RESOURCE_EXHAUSTED: Out of memory"
    assert way.ms is None


@pytest.mark.parametrize(
    ("change", "aim"),
    [
        (dict(k=None, backward=True), 0.5),
        (dict(k=128), 0.3),
        (dict(k=256), None),
        (dict(k=64, backward=True), None),
        (dict(k=64, dtype="float32"), None),
        (dict(k=None, backward=True, name="dense"), None),
    ],
)
def test_aims_are_for_engines_in_half_precision(change, aim):
    item = Item("loss", "strip", 8192, 512, 64, "bfloat16")
    assert gpu_rows._aim(dataclasses.replace(item, **change)) == aim


def test_the_peak_is_measured_for_both_dtypes():
    assert set(measure_peaks(DRY)) == {"float32", "bfloat16"}
