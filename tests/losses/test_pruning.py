"""The law of what can be skipped, and when the column engine prunes."""

import math
from itertools import pairwise

import numpy as np
import pytest

from jaxcl.losses import expected_skip_rate
from jaxcl.losses.pruning import column_blocks, pruning_for


@pytest.mark.parametrize(("n", "block", "k"), [(40, 10, 3), (41, 10, 3), (9, 10, 2), (30, 1, 1), (64, 8, 9)])
def test_the_law_is_the_mean_over_blocks_of_a_ratio_of_binomials(n, block, k):
    ends = [*range(0, n, block), n]
    rates = [math.comb(before, k) / math.comb(end, k) if end >= k else 0.0 for before, end in pairwise(ends)]
    assert expected_skip_rate(n, block, k) == pytest.approx(np.mean(rates), abs=1e-12)


def test_the_law_is_what_shuffled_scores_do():
    rng, (n, block, k) = np.random.default_rng(0), (96, 8, 4)
    skipped = 0
    for scores in rng.permuted(np.tile(np.arange(n), (2000, 1)), axis=1):
        for start in range(block, n, block):
            skipped += max(scores[start : start + block]) < np.sort(scores[:start])[-k]
    assert skipped / 2000 / (n // block) == pytest.approx(expected_skip_rate(n, block, k), abs=0.01)


@pytest.mark.parametrize(("n", "block", "k"), [(8192, 512, 32), (65536, 1024, 1), (2048, 128, 16)])
def test_the_law_stays_below_what_a_perfect_threshold_could_skip(n, block, k):
    assert 0 < expected_skip_rate(n, block, k) < (1 - block / n) ** k


def test_the_law_refuses_sizes_below_one():
    with pytest.raises(ValueError, match="k=0 must be at least 1"):
        expected_skip_rate(8, 2, 0)


def test_it_prunes_where_few_are_kept_of_many_columns_and_not_where_most_are():
    assert pruning_for(8192, 4096, 32) == ("blocks", 16)
    assert pruning_for(1 << 16, 256, 4) == ("rows", 0)
    for columns, block, top_k in ((8192, 4096, 128), (200, 200, 32), (8192, 128, 64), (1, 1, 1)):
        assert pruning_for(columns, block, top_k) == (None, 0)


def test_blocks_are_even_sub_blocks_whole_and_tiles_bounded():
    sizes = dict(rows=5000, strip=128, queue=0, top_k=8, block_size=None)
    blocks = column_blocks(keys=5000, **sizes)
    assert (blocks.block, blocks.width % blocks.sub) == (2500, 0)
    assert blocks.width - blocks.block < blocks.sub <= 24
    assert blocks.tile % blocks.strip == 0
    assert blocks.tile * blocks.width <= 1 << 19
    assert column_blocks(keys=5000, **dict(sizes, block_size=9000)).block == 5000
    assert column_blocks(keys=5000, **dict(sizes, top_k=None)).prune is None
