import numpy as np
import pytest

from jaxcl import usage
from jaxcl.usage import MemoryLines, memory_line, memory_use


class Device:
    def __init__(self, **stats):
        self._stats = stats or None

    def memory_stats(self):
        return self._stats


def test_the_fullest_device_counts():
    devices = [Device(bytes_in_use=5, peak_bytes_in_use=70), Device(bytes_in_use=6, peak_bytes_in_use=60)]
    use = memory_use(devices)
    assert (use["device_bytes_in_use"], use["device_peak_bytes"]) == (6, 70)
    assert all(type(value) is int for value in use.values())


def test_a_device_that_tells_nothing_is_left_out():
    assert set(memory_use([Device()])) <= {"resident_bytes"}


def test_resident_memory_is_that_of_the_process():
    before = usage.resident_bytes()
    if before is None:
        pytest.skip("this system does not tell")
    held = np.ones(8 << 20)
    assert 0.9 * held.nbytes < usage.resident_bytes() - before < 1.5 * held.nbytes


def test_a_system_that_does_not_tell_is_no_error(monkeypatch):
    monkeypatch.setattr(usage, "_STATM", "/nowhere/statm")
    assert memory_use([]) == {}
    assert MemoryLines().line({}) is None


def test_a_line_says_what_is_known_and_nothing_else():
    assert memory_line({"resident_bytes": 1 << 30}) == "memory: 1.00 GiB resident in this process"
    assert memory_line({"device_peak_bytes": 3 << 29}) == "memory: on the device 1.50 GiB at most"


def test_a_line_is_due_at_once_and_then_once_a_minute(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(usage.time, "monotonic", lambda: now[0])
    lines, said = MemoryLines(), []
    for _ in range(13):
        said.append(lines.line({"resident_bytes": 1}) is not None)
        now[0] += 10
    assert said == [True, *[False] * 5, True, *[False] * 5, True]
