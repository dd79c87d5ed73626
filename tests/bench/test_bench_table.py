"""What a person reads: figures, bars, and verdicts in words."""

import dataclasses

import pytest

from jaxcl.bench.rows import FASTER, MEMORY, TIME, Bar, Row
from jaxcl.bench.table import count, loss_table, verdict

ROW = Row("strip, top 64", 8192, 128, 64, "float32", "forward + backward", 462.3, 12 << 20)


def row(**fields):
    return dataclasses.replace(ROW, **fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (dict(met=None, bar=Bar(least=2.0)), "not judged"),
        (dict(met=False, ratio=1.0, bar=Bar(least=2.0)), "NOT MET"),
        (dict(met=True, ratio=2.0, bar=Bar(least=2.0)), "met"),
        (dict(met=True, ratio=2.2, bar=Bar(least=2.0, aim=2.5)), "met, the aim not"),
        (dict(met=True, ratio=2.6, bar=Bar(least=2.0, aim=2.5)), "met, and the aim"),
    ],
)
def test_a_verdict_is_in_words(fields, words):
    assert verdict(row(ratio_is=FASTER, **fields)) == words


def test_figures_stand_beside_their_bars():
    rows = [
        row(ratio=2.357, ratio_is=FASTER, to="dense", bar=Bar(least=2.0, aim=2.5), met=True),
        row(ratio=1 / 42.7, ratio_is=MEMORY, to="dense", bar=Bar(most=1 / 35), met=True),
        row(name="forward only", ratio=2.4, ratio_is=TIME, to="GEMM", bar=Bar(most=2.2), met=False),
        row(n=65536, name="long", temp_bytes=132 << 20, ms=None, bar=Bar(most=150 << 20), met=True, note="compiled"),
    ]
    lines = [" ".join(line.split()) for line in loss_table(rows).splitlines()]
    assert lines == [
        "N=8,192, D=128",
        "strip, top 64 462 ms 12.00 MiB 2.36× as fast as dense ≥ 2, aim 2.5 met, the aim not",
        "1/42.7 of the memory of dense ≤ 1/35 met",
        "forward only 462 ms 12.00 MiB 2.40× the time of GEMM ≤ 2.2 NOT MET",
        "",
        "N=65,536, D=128",
        "long 132 MiB ≤ 150 MiB met (compiled)",
    ]
    assert count(rows) == "3 bars met, 1 not met, 0 not judged."


def test_half_precision_and_a_forward_pass_are_named():
    text = loss_table([row(dtype="bfloat16"), row(work="forward")])
    assert "strip, top 64, bf16" in text
    assert "strip, top 64, forward" in text


def test_a_missing_competitor_has_no_figure():
    text = loss_table([row(ratio=None, ratio_is=FASTER, to="dense, PyTorch", bar=Bar(least=3.0), note="no PyTorch")])
    assert "–× as fast as dense, PyTorch" in text
    assert "not judged  (no PyTorch)" in text
