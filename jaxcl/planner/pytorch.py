"""Peak memory of the same training step in PyTorch (extra `torch`): measured on a GPU, or followed without one.

The baseline is what one writes first: the ViT of `jaxcl.models.vit`, NT-Xent with its N x N matrix, AdamW, bfloat16 by
autocast. `dense` keeps the activations of all images. `cached` is the same with cached gradients: images wait on the
host, micro-batches are encoded without gradient, the loss is taken of all embeddings, and each is encoded again.

Without a GPU tensors are fake ones, which have shapes and no numbers (`FakeTensorMode`), and PyTorch's own `MemTracker`
adds up what is alive. That counts tensors, and neither scratch memory of kernels nor what an allocator rounds up to.

Source of the cached step: Gao, Zhang, Han and Callan, "Scaling Deep Contrastive Learning Batch Size under Memory
Limited Setup" (2021).
"""

from __future__ import annotations

import gc
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxcl.config import ConfigError
from jaxcl.planner.torch_tower import Shape, embed, make_tower

MISSING = "--vs=torch needs PyTorch: pip install 'jaxcl[torch]'"
VARIANTS = ("dense", "cached")
FAKE = "fake tensors"
_FOLLOWED = 2  # micro-batches of each pass that are followed without a GPU; all others repeat them


class TorchRow(NamedTuple):
    """One measurement.

    Attributes:
        variant: one of `VARIANTS`.
        embeddings: N, one an image.
        peak_bytes: the most that was allocated; None: it does not fit the GPU.
        parts: bytes of the peak by what they hold, where `MemTracker` tells.
        how: `FAKE`, or the name of the GPU.
    """

    variant: str
    embeddings: int
    peak_bytes: int | None
    parts: dict[str, int]
    how: str


def check_installed() -> None:
    """Raises where PyTorch is missing.

    Raises:
        ConfigError: with the line that installs it.
    """
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(MISSING)


def torch_rows(
    embeddings: Sequence[int],
    *,
    image_size: int,
    patch: int,
    width: int,
    depth: int,
    heads: int,
    mlp: int,
    head_dim: int,
    head_hidden: tuple[int, ...] = (),
    channels: int = 3,
    pool: str = "cls",
    micro: int = 64,
    temperature: float = 0.1,
    variants: Sequence[str] = VARIANTS,
    snapshots: Path | None = None,
    tell: Callable[[str], None] | None = None,
) -> list[TorchRow]:
    """Peak memory of each variant at each N; on a GPU where there is one, else of fake tensors.

    Args:
        embeddings: N, even, each.
        image_size: as in `Shape`, and so are the others up to `pool`.
        patch: of it.
        width: of it.
        depth: of it.
        heads: of it.
        mlp: of it.
        head_dim: of it.
        head_hidden: of it.
        channels: of it.
        pool: of it.
        micro: images encoded at once by the cached variant.
        temperature: of the loss.
        variants: some of `VARIANTS`.
        snapshots: folder for a file of each measurement: PyTorch's memory snapshot (for https://pytorch.org/memory_viz)
            on a GPU, else `MemTracker`'s as JSON; None: none are written.
        tell: is told before each measurement what comes; None: nobody is.

    Returns:
        The measurements, by variant and then by N.

    Raises:
        ConfigError: PyTorch is not installed, or an odd N.
    """
    check_installed()
    odd = [n for n in embeddings if n % 2 or n < 4]
    if odd:
        raise ConfigError(f"--embeddings={odd[0]} is no even number of 4 or more: each image has a partner")
    shape = Shape(image_size, patch, width, depth, heads, mlp, head_dim, head_hidden, channels, pool)
    rows = []
    for variant in variants:
        for n in embeddings:
            if tell is not None:
                tell(f"PyTorch {variant}, N = {n:,}")
            rows.append(_measured(variant, n, shape, micro=micro, temperature=temperature, snapshots=snapshots))
    return rows


def _measured(
    variant: str, n: int, shape: Shape, *, micro: int, temperature: float, snapshots: Path | None
) -> TorchRow:
    """One measurement, and its file."""
    import torch

    file = None if snapshots is None else snapshots / f"pytorch_{variant}_{n}"
    measure = _on_gpu if torch.cuda.is_available() else _followed
    return measure(variant, n, shape, micro, temperature, file)


def _on_gpu(variant: str, n: int, shape: Shape, micro: int, temperature: float, file: Path | None) -> TorchRow:
    """Two steps on the GPU: the second one has the optimizer's state from the start."""
    import torch

    how = torch.cuda.get_device_name()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    memory: Any = torch.cuda.memory
    if file is not None:
        memory._record_memory_history(max_entries=200_000)
    try:
        step = make_step(variant, n, shape, micro=micro, temperature=temperature, device="cuda")
        for _ in range(2):
            step(None)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    except torch.OutOfMemoryError:
        peak = None
    finally:
        if file is not None:
            memory._dump_snapshot(str(file.with_suffix(".pickle")))
            memory._record_memory_history(enabled=None)
    return TorchRow(variant, n, peak, {}, how)


def _followed(variant: str, n: int, shape: Shape, micro: int, temperature: float, file: Path | None) -> TorchRow:
    """One step of fake tensors, whose optimizer has its state already."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        tracker = MemTracker()
        step = make_step(variant, n, shape, micro=micro, temperature=temperature, device="cpu", follow=_FOLLOWED)
        step(tracker)
        (peak,) = tracker.get_tracker_snapshot("peak").values()
    parts = {_part_name(kind): int(size) for kind, size in peak.items()}
    total = parts.pop("total")
    if file is not None:
        snapshot = {"variant": variant, "embeddings": n, **shape._asdict(), "peak_bytes": total, "parts": parts}
        file.with_suffix(".json").write_text(json.dumps(snapshot, indent=1) + "\n")
    return TorchRow(variant, n, total, parts, FAKE)


def _part_name(kind: Any) -> str:
    """What `MemTracker` calls a part of the memory, in small letters."""
    return str(getattr(kind, "value", kind)).lower()


def make_step(
    variant: str, n: int, shape: Shape, *, micro: int, temperature: float, device: str, follow: int | None = None
) -> Callable[[Any], None]:
    """A training step with its parameters, optimizer state and images.

    Args:
        variant: one of `VARIANTS`.
        n: images.
        shape: of the tower.
        micro: images encoded at once by "cached".
        temperature: of the loss.
        device: "cpu" or "cuda"; fake tensors are on the CPU.
        follow: micro-batches that each pass of "cached" does; None: all.

    Returns:
        A function of a `MemTracker`, or of None, that does one step.
    """
    import torch

    with torch.device(device):
        tower = make_tower(shape)
    optimizer = torch.optim.AdamW(tower.parameters(), lr=1e-4)
    for parameter in tower.parameters():  # so that the optimizer has its state
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    sides = (shape.channels, shape.image_size, shape.image_size)

    def arrive(start: int, count: int) -> Any:
        del start
        return torch.randint(256, (count, *sides), dtype=torch.uint8, device=device)

    # those of the cached step wait on the host, and of fake tensors all are on one device
    images = arrive(0, n if variant == "dense" else 0)

    def encode(images: Any) -> Any:
        with torch.autocast(device, dtype=torch.bfloat16):
            return embed(tower, images, shape)

    def backward() -> None:
        if variant == "dense":
            nt_xent(encode(images), temperature).backward()
        else:
            embeddings = torch.zeros((n, shape.head_dim), device=device)
            cached_backward(encode, arrive, embeddings, micro=micro, temperature=temperature, follow=follow)

    def step(tracker: Any) -> None:
        if tracker is None:
            one()
            return
        tracker.track_external(tower, optimizer, images)
        with tracker:
            one()

    def one() -> None:
        backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def cached_backward(
    encode: Callable[[Any], Any],
    arrive: Callable[[int, int], Any],
    embeddings: Any,
    *,
    micro: int,
    temperature: float,
    follow: int | None = None,
) -> None:
    """The gradient of the loss of all images, with the activations of one micro-batch.

    Args:
        encode: from images to embeddings; its parameters get the gradient.
        arrive: from the first image and their number to a micro-batch on the device.
        embeddings: where they are written, [N, D].
        micro: images encoded at once; the last ones may be fewer.
        temperature: of the loss.
        follow: micro-batches that each pass does; None: all.
    """
    import torch

    n = len(embeddings)
    parts = [(start, min(micro, n - start)) for start in range(0, n, micro)][:follow]
    with torch.no_grad():
        for start, count in parts:
            embeddings[start : start + count] = encode(arrive(start, count))
    embeddings.requires_grad_()
    nt_xent(embeddings, temperature).backward()
    for start, count in parts:
        encode(arrive(start, count)).backward(embeddings.grad[start : start + count])


def nt_xent(embeddings: Any, temperature: float) -> Any:
    """NT-Xent by one matrix product and one cross-entropy, rows 2i and 2i + 1 being partners.

    Args:
        embeddings: [N, D], float32.
        temperature: of the loss.

    Returns:
        The mean loss.
    """
    import torch

    unit = torch.nn.functional.normalize(embeddings)
    scores = (unit @ unit.T / temperature).fill_diagonal_(-torch.inf)
    partner = torch.arange(len(embeddings), device=embeddings.device) ^ 1
    return torch.nn.functional.cross_entropy(scores, partner)
