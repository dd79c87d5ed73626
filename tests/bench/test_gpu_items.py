"""What the GPU table consists of."""

import pytest

from jaxcl.bench.gpu_items import DRY, FLOOR, FULL, Item, batches, wide_block
from jaxcl.bench.programs import ENGINES


def test_the_table_covers_every_size_dtype_k_engine_and_way():
    items = [item for batch in batches(FULL) for item in batch]
    assert {item.n for item in items} == {8192, 32768, 65536}
    assert {item.dtype for item in items} == {"bfloat16", "float32"}
    assert {item.k for item in items} == {16, 64, 128, 256, None}
    names = {item.name for item in items}
    assert set(ENGINES) | {FLOOR, "lax.top_k", "two levels", "approx_max_k, recall 1"} <= names
    assert len(items) == len(set(items))


def test_a_batch_is_of_one_size_and_dtype_and_ascends_within_its_kind():
    order = [(batch[0].group, batch[0].dtype, batch[0].n) for batch in batches(FULL)]
    assert order[:3] == [("engines", "bfloat16", n) for n in FULL.n]
    for batch in batches(FULL):
        assert len({(item.n, item.dtype, item.group) for item in batch}) == 1


@pytest.mark.parametrize(
    ("k", "backward", "flops"), [(None, True, 8 * 100 * 3), (4, False, 2 * 100 * 3), (4, True, None)]
)
def test_operations_are_counted_as_the_table_says(k, backward, flops):
    assert Item("loss", "strip", 10, 3, k, "float32", None, backward).flops == flops


@pytest.mark.parametrize("n", [64, 96, 8192, 65536])
def test_a_wide_strip_is_a_power_of_two_within_its_bound(n):
    block = wide_block(FULL, n)
    assert block & (block - 1) == 0
    assert block <= n
    assert block * n <= FULL.strip_elements


def test_a_label_says_what_was_left_out():
    item = Item("loss", "strip", 64, 8, 4, "bfloat16", None, True)
    assert item.label == "strip, top 4, N=64, bfloat16, block its own, forward + backward"
    assert all(item.label for batch in batches(DRY) for item in batch)
