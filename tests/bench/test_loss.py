"""The table of the loss, at sizes that take seconds."""

import json

import pytest

from jaxcl.bench import loss, pytorch
from jaxcl.bench.loss import FULL, QUICK, TORCH, loss_rows
from jaxcl.bench.programs import ENGINES
from jaxcl.bench.rows import FASTER

LONG = pytest.mark.slow(reason="half a minute: twenty losses are compiled for one table")


@pytest.fixture(scope="module")
def rows(fast_compile):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytorch, "is_installed", lambda: False)
        patch.setattr(loss, "FAST_COMPILE", fast_compile)
        return loss_rows(QUICK)


def named(rows, name, **fields):
    return [r for r in rows if r.name == name and all(getattr(r, key) == value for key, value in fields.items())]


@LONG
def test_every_engine_has_a_row_beside_the_dense_loss(rows):
    for engine in ENGINES:
        assert named(rows, f"{engine}, top {QUICK.k}", to="dense, all negatives", ratio_is=FASTER), engine


@LONG
def test_the_rows_that_were_asked_for_are_there(rows):
    k = f"strip, top {QUICK.k}"
    assert named(rows, f"{k}, two arrays")
    assert named(rows, "strip, all negatives", n=QUICK.long)[0].bar.most == 150 << 20
    assert named(rows, "strip, top 1")
    assert named(rows, f"{k}, learned τ", to="dense, all negatives, learned τ")
    assert named(rows, k, dtype="bfloat16")
    assert named(rows, k, n=QUICK.n - 1)
    assert named(rows, k, n=2 * QUICK.n)[0].to == f"N={QUICK.n}"
    assert named(rows, k, work="forward")[0].to == "GEMM + row maximum, the faster"
    assert named(rows, "selection, nothing pruned")[0].ms > 0
    assert named(rows, loss.NTXENT, n=QUICK.pairwise)[0].ms > 0
    assert named(rows, loss.NTXENT, n=QUICK.n)[0].temp_bytes >= QUICK.n**2 * QUICK.dims[0] * 4


@LONG
def test_bars_of_the_full_size_are_shown_at_the_small_one_but_not_judged(rows):
    assert sum(row.bar is not None for row in rows) >= 9
    assert {row.met for row in rows} == {None}


@LONG
def test_missing_pytorch_is_said_and_is_no_failure(rows):
    missing = named(rows, TORCH)[0]
    assert missing.ms is None
    assert "not installed" in missing.note
    against = next(row for row in rows if row.to == TORCH)
    assert (against.ratio, against.met) == (None, None)
    assert "no PyTorch" in against.note


@LONG
def test_what_is_compared_computes_the_same_loss(rows):
    every = {row.loss for row in rows if row.n == QUICK.n and row.loss and row.k is None and "two" not in row.name}
    assert max(every) - min(every) < 1e-4
    pairwise = {row.loss for row in rows if row.n == QUICK.pairwise}
    assert max(pairwise) - min(pairwise) < 1e-4


@LONG
def test_rows_are_json(rows):
    read = json.loads(json.dumps([row.as_json() for row in rows]))
    for row in read:
        assert {"name", "N", "D", "k", "dtype", "ms", "ratio", "to", "temp_bytes", "bar", "met"} <= set(row)
        assert row["ms"] is not None or row["temp_bytes"] is not None or row["note"]


def test_the_full_size_is_that_of_the_bars():
    assert (FULL.n, FULL.dims, FULL.k, FULL.long, FULL.judged) == (8192, (128, 512), 64, 65536, True)
    assert len(loss.BARS) == len(FULL.dims)
    assert [bars.dense.least for bars in loss.BARS] == [2.0, 1.6]
