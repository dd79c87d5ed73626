"""Elements of a Grain data set in order, read before they are asked for, by threads or worker processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import grain

_BUFFERED_BATCHES = 2


def read_ahead(dataset: grain.MapDataset, workers: int) -> grain.DatasetIterator:
    """Iterate in order while later elements are read: in threads of this process, or in worker processes.

    Args:
        dataset: its elements are whole batches.
        workers: processes; 0: threads of this one.

    Returns:
        An iterator; close it.
    """
    if workers == 0:
        threads = max(1, min(4, (os.cpu_count() or 1) - 1))  # decoding and resizing release the GIL
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads + 1)
        return iter(dataset.to_iter_dataset(options))
    _parse_absl_flags()
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    several = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=_BUFFERED_BATCHES)
    return iter(dataset.to_iter_dataset(options).mp_prefetch(several, worker_init_fn=_start_worker))


def _parse_absl_flags() -> None:
    """Grain reads absl flags when it starts a process, and fails in a program that has not parsed any."""
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


def _start_worker(index: int, count: int) -> None:
    """Leave Ctrl-C and SIGTERM to the main process, which saves first; end when it is gone, however it ended."""
    import multiprocessing

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.join,), daemon=True).start()


def _end_with(wait: Callable[[], None]) -> None:
    """Wait, then end this process at once."""
    wait()
    os._exit(1)
