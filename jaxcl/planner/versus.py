"""This library and PyTorch side by side: peak memory of one training step over N, as a table and a plot.

Five rows: here the N x N matrix (dense), the streamed loss with all activations (streaming) and cached gradients with
images on the host (cached); in PyTorch the first and the last of them. The numbers here come from whoever calls, such
as the planner; those of PyTorch from `jaxcl.planner.pytorch`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxcl import methods
from jaxcl.config import Config, ConfigError, resolve, to_dict
from jaxcl.models import ViT, make_encoder
from jaxcl.planner.pytorch import VARIANTS, check_installed, torch_rows
from jaxcl.planner.torch_tower import Shape

GIB = 2**30
EMBEDDINGS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
CARDS = {"8 GB": 8 * GIB, "24 GB": 24 * GIB, "80 GB": 80 * GIB, "141 GB": 141 * 10**9}
MICRO = 64  # images encoded at once where the config does not say
PLOT, VALUES = "versus.svg", "versus.json"
OURS = ("JAX dense", "JAX streaming", "JAX cached")
THEIRS = {variant: f"PyTorch {variant}" for variant in VARIANTS}
COLOURS = {
    "JAX dense": "#9bbfe8",
    "JAX streaming": "#5b9cf0",
    "JAX cached": "#1c5fb5",
    "PyTorch dense": "#e9b48c",
    "PyTorch cached": "#c05a12",
}

Plan = Callable[[Config], int | None]


class Peak(NamedTuple):
    """One point of the comparison.

    Attributes:
        name: of the row.
        embeddings: N.
        peak_bytes: of the device; None: there is no number, and `how` says why.
        how: where the number is from.
    """

    name: str
    embeddings: int
    peak_bytes: int | None
    how: str


def ours(config: Config, embeddings: int) -> dict[str, Config]:
    """The three ways here to one step of N embeddings.

    Args:
        config: model, optimizer and compute type of all of them.
        embeddings: N.

    Returns:
        Checked configs by the names in `OURS`.

    Raises:
        ConfigError: N that the views of an image do not divide.

    >>> {name: c.batch.mode for name, c in ours(Config(), 512).items()}
    {'JAX dense': 'accumulate', 'JAX streaming': 'accumulate', 'JAX cached': 'cached'}
    """
    views = methods.traits(config.method).views
    if embeddings % views or embeddings < 2 * views:
        raise ConfigError(f"--embeddings={embeddings} is not {views} views of 2 images or more")
    size = embeddings // views
    micro = min(config.batch.micro or max(MICRO // views, 2), size)
    while size % micro == 1:  # or one image would be left alone
        micro += 1
    whole: dict[str, Any] = dict(size=size, micro=None, mode="accumulate", images="device")
    cached: dict[str, Any] = dict(size=size, micro=micro, mode="cached", images="host")
    streamed: dict[str, Any] = dict(impl="column" if config.loss.impl == "column" else "strip")
    dense: dict[str, Any] = dict(impl="dense", block_size=None)
    asked = zip(OURS, (whole, whole, cached), (dense, streamed, streamed), strict=True)
    values = to_dict(config)
    return {
        name: resolve({**values, "batch": {**values["batch"], **batch}, "loss": {**values["loss"], **loss}})
        for name, batch, loss in asked
    }


def shape_of(config: Config, channels: int = 3) -> Shape:
    """The sizes of the same tower in PyTorch.

    Args:
        config: of a run with a ViT.
        channels: of its images.

    Returns:
        Sizes of encoder and projection head.

    Raises:
        ConfigError: the encoder is no ViT, or of a kind that the baseline does not have.

    >>> from jaxcl.config import ModelConfig
    >>> shape_of(Config(model=ModelConfig(encoder="vit_b"))).width
    768
    """
    model, encoder = config.model, make_encoder(config.model)
    if not isinstance(encoder, ViT) or model.flavour != "plain":
        what = (
            f"model.flavour = {model.flavour!r}" if isinstance(encoder, ViT) else f"model.encoder = {model.encoder!r}"
        )
        raise ConfigError(f"--vs=torch compares a plain ViT, not {what}; vit_ti, vit_s or vit_b")
    if config.lora.rank or model.head_norm_out:
        what = f"lora.rank = {config.lora.rank}" if config.lora.rank else "model.head_norm_out = True"
        raise ConfigError(f"--vs=torch has a baseline without {what}; leave it out")
    hidden = (model.head_hidden,) * (model.head_layers - 1)
    return Shape(
        image_size=config.data.image_size,
        patch=encoder.patch,
        width=encoder.width,
        depth=encoder.depth,
        heads=encoder.heads,
        mlp=4 * encoder.width,
        head_dim=model.head_dim,
        head_hidden=hidden,
        channels=channels,
        pool=encoder.pool,
    )


def versus(
    config: Config,
    plan: Plan,
    *,
    embeddings: Sequence[int] = EMBEDDINGS,
    how: str,
    folder: Path,
    cards: Mapping[str, int] = CARDS,
    tell: Callable[[str], None] | None = None,
) -> list[Peak]:
    """Measures all rows and writes them as `versus.json`, the plot, and PyTorch's snapshots beside it.

    Args:
        config: of a run with a ViT.
        plan: from a config to the peak bytes of its step; None, or a `ConfigError`, where it does not fit.
        embeddings: N, each even.
        how: where the numbers of `plan` are from, such as "compiled for h200-141gb".
        folder: for the files; it is made.
        cards: bytes of some cards by name, lines of the plot.
        tell: is told before each number what comes; None: nobody is.

    Returns:
        By row and then by N, for `table`.

    Raises:
        ConfigError: no ViT, an odd N, or no PyTorch; before anything is measured.
    """
    shape, views = shape_of(config), methods.traits(config.method).views
    check_installed()
    micro = {n: ours(config, n)["JAX cached"].batch.micro or MICRO for n in embeddings}
    folder.mkdir(parents=True, exist_ok=True)
    peaks = planned(config, plan, embeddings, how=how, tell=tell)
    rows = torch_rows(
        embeddings,
        **shape._asdict(),
        micro=views * max(micro.values()),
        temperature=config.loss.temperature,
        snapshots=folder,
        tell=tell,
    )
    peaks += [Peak(THEIRS[row.variant], row.embeddings, row.peak_bytes, row.how) for row in rows]
    (folder / VALUES).write_text(json.dumps([peak._asdict() for peak in peaks], indent=1) + "\n", encoding="utf-8")
    draw(peaks, folder / PLOT, cards=cards)
    return peaks


def planned(
    config: Config, plan: Plan, embeddings: Iterable[int], *, how: str, tell: Callable[[str], None] | None = None
) -> list[Peak]:
    """The rows of this library.

    Args:
        config: as in `versus`, and so are the others.
        plan: of it.
        embeddings: of it.
        how: of it.
        tell: of it.

    Returns:
        By name and then by N.
    """
    found = []
    for n in embeddings:
        for name, chosen in ours(config, n).items():
            if tell is not None:
                tell(f"{name}, N = {n:,}")
            try:
                found.append(Peak(name, n, plan(chosen), how))
            except ConfigError as error:
                found.append(Peak(name, n, None, str(error)))
    return sorted(found, key=lambda peak: (OURS.index(peak.name), peak.embeddings))


def table(peaks: Sequence[Peak]) -> str:
    """Peak GiB, a line for each N, a column for each row of the comparison.

    Args:
        peaks: of all rows.

    Returns:
        Several lines without a final newline; a dash where there is no number.

    >>> print(table([Peak("JAX dense", 512, 3 << 29, "compiled"), Peak("PyTorch dense", 512, None, "a GPU")]))
    peak GiB    JAX dense   PyTorch dense
         512         1.50               –
    JAX: compiled; PyTorch: a GPU
    """
    names = list(dict.fromkeys(peak.name for peak in peaks))
    cells = {(peak.name, peak.embeddings): peak.peak_bytes for peak in peaks}
    widths = [max(len(name), 9) + 3 for name in names]
    lines = ["peak GiB " + "".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True))]
    for n in sorted({peak.embeddings for peak in peaks}):
        values = (_gib(cells.get((name, n))) for name in names)
        lines.append(f"{n:>8,} " + "".join(f"{value:>{width}}" for value, width in zip(values, widths, strict=True)))
    origin = {peak.name.split()[0]: peak.how for peak in peaks if peak.peak_bytes is not None}
    origin = {peak.name.split()[0]: peak.how for peak in peaks} | origin
    return "\n".join([*lines, "; ".join(f"{name}: {how}" for name, how in origin.items())])


def draw(peaks: Sequence[Peak], path: Path, *, cards: Mapping[str, int] = CARDS) -> None:
    """Peak memory over N, both axes logarithmic, with the sizes of some cards.

    Args:
        peaks: of all rows.
        path: an .svg or .png file.
        cards: bytes by name.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    sizes = sorted({peak.embeddings for peak in peaks})
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "versus", "font.family": "sans-serif"}):
        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        axes = figure.add_subplot()
        for name in dict.fromkeys(peak.name for peak in peaks):
            points = [(p.embeddings, p.peak_bytes / GIB) for p in peaks if p.name == name and p.peak_bytes is not None]
            if points:
                style = "--" if name in THEIRS.values() else "-"
                wide = name == OURS[0]  # streaming often needs as much, and would hide it
                look: dict[str, Any] = dict(linewidth=4.0, markersize=9.0) if wide else {}
                axes.plot(*zip(*points, strict=True), style, marker="o", label=name, color=COLOURS.get(name), **look)
        axes.set(xscale="log", yscale="log", xlabel="embeddings in one contrastive problem", ylabel="peak GiB")
        for name, size in cards.items():
            axes.axhline(size / GIB, color="0.6", linewidth=0.8, linestyle=":")
            axes.annotate(
                name, (1, size / GIB), xycoords=("axes fraction", "data"), ha="right", va="bottom", color="0.4"
            )
        axes.set_xticks(sizes, [f"{n:,}" for n in sizes], rotation=30, ha="right")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)


def _gib(size: int | None) -> str:
    """Bytes in GiB."""
    return "–" if size is None else f"{size / GIB:,.2f}"
