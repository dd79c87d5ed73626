"""Training batches by Grain: shuffled by seed, sliced by process, cropped on the host, resumable at any batch."""

from __future__ import annotations

from typing import Any

import grain

from jaxcl.config import AugmentConfig, ConfigError, DataConfig
from jaxcl.data.bad import BadImages
from jaxcl.data.crops import VIEWS
from jaxcl.data.loader import BatchReader, Loader
from jaxcl.data.record import Source
from jaxcl.data.tokens import Tokenizer
from jaxcl.data.twice import LoaderOfMicroBatches
from jaxcl.portions import Portions


def make_loader(
    source: Source,
    *,
    config: DataConfig,
    augment: AugmentConfig,
    batch: int,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
    bad: BadImages | None = None,
    views: int = VIEWS,
    tokenizer: Tokenizer | None = None,
    portions: Portions | None = None,
) -> Loader:
    """Training batches of random crops of each image, in an order that depends on the seed alone.

    Every epoch is a new permutation, cut into full batches; each process reads its contiguous slice of every batch.
    The batches are the same for any number of workers, and together for any number of processes.

    Args:
        source: the training split.
        config: `image_size`, `workers`, `max_bad_fraction`.
        augment: size and shape of the crops.
        batch: images in a batch, over all processes.
        seed: of the run.
        process_index: which slice is read here.
        process_count: slices in a batch.
        bad: ledger of unreadable images; None: a new one.
        views: crops of each image, 1 or 2; the first does not depend on how many there are.
        tokenizer: of captions, which the source then has; None: no tokens.
        portions: of the batch, to have it as `Twice`, which never is in memory as a whole; None: as arrays.

    Returns:
        An iterator of dicts: `views` uint8 `[B, V, H, W, C]` and int32 `[B]` `id`, `label` (-1: none), `epoch`, and
        `bad` (id of the unreadable image that this row replaces, -1: none), with B = batch / process_count; with a
        tokenizer also `tokens` int32 `[B, L]`.

    Raises:
        ConfigError: fewer images than one batch, or a batch that the processes cannot share.
    """
    if len(source) < batch:
        raise ConfigError(
            f"batch.size={batch} exceeds the {len(source)} training images of data.name={source.name}; "
            f"the largest valid batch.size is {len(source)}; few images also want queue.size=0 and an empty loss.top_k"
        )
    if batch % process_count:
        lower = batch - batch % process_count
        valid = " or ".join(str(size) for size in (lower, lower + process_count) if 0 < size <= len(source))
        raise ConfigError(f"batch.size={batch} is not divisible by {process_count} processes; nearest valid: {valid}")
    share = batch // process_count
    rows = slice(process_index * share, (process_index + 1) * share)
    order = grain.MapDataset.range(len(source)).seed(seed).shuffle().batch(batch, drop_remainder=True)
    reader = BatchReader(source, config.image_size, augment, seed, len(order), rows, views, tokenizer)
    bad = BadImages(source, config.max_bad_fraction) if bad is None else bad
    given: dict[str, Any] = dict(batch=batch, config=config, bad=bad)
    if portions is not None:
        return LoaderOfMicroBatches(order.repeat(), reader, portions=portions, **given)
    return Loader(order.repeat(), reader, **given)
