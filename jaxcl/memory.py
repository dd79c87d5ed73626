"""Says before a run how much memory its training step needs, compiled for a device that need not be there.

python -m jaxcl.memory --config=configs/vit_b32_stream.py --target=rtx3070-8gb
python -m jaxcl.memory --config=configs/vit_b32_stream.py --target=a100-80gb --embeddings=8192,65536 --json
python -m jaxcl.memory --config=configs/vit_ti.py --target=rtx3060-12gb --fit
python -m jaxcl.memory --config=configs/vit_b32_stream.py --target=a100-80gb --vs=torch

N counts embeddings: of SimCLR two an image. Nothing is trained, no data is read, no memory is taken.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from jaxcl.command import OVERRIDE, Parser, folder, guarded, leave, refuse_repeated, split_overrides
from jaxcl.config import Config, ConfigError, describe, load_config, resolve

VERSUS = "runs/versus"
BUDGET = 50.0  # seconds, so that the whole command takes less than a minute


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: those of the command line; None: of this process.

    Returns:
        The exit code: 0, also where nothing fits; 2 after a mistake in what was asked for.
    """
    return guarded(lambda: _run(_parse(sys.argv[1:] if arguments is None else arguments)))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The flags, with `--config.a.b=v` collected in `overrides`."""
    overrides, others = split_overrides(arguments)
    refuse_repeated(arguments, ("--config", "--target", "--embeddings", "--devices", "--vs", "--out"))
    parser = Parser(
        prog="python -m jaxcl.memory",
        description=(__doc__ or "").strip(),
        epilog=describe(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", required=True, metavar="FILE[:VARIANT]", help="a file in configs/")
    add("--target", metavar="NAME", help="a CUDA card such as rtx3070-8gb, a TPU such as v5e, a .txtpb file, or cpu")
    add("--embeddings", metavar="N,…", help="embeddings of a batch, a row each; left out: those of the config")
    add("--devices", type=int, metavar="N", help="devices that there are; left out: as many as mesh.shape names")
    add("--fit", action="store_true", help="find the largest batch.size that fits")
    add(
        "--seconds", type=_seconds, default=BUDGET, help=f"for settings that save memory [{BUDGET:g}]; 0: none is tried"
    )
    add(
        "--vs",
        choices=("torch",),
        help="beside PyTorch: dense, streaming and cached, over N = 512 … 65,536, and a plot",
    )
    add("--out", metavar="DIR", help=f"with --vs: folder of the plot and the numbers [{VERSUS}]")
    add("--json", action="store_true", help="print one array of rows instead of the table")
    add(f"{OVERRIDE}SETTING=VALUE", action="store_true", dest="_", help="change one setting, listed below")
    flags = parser.parse_args(others)
    flags.overrides = overrides
    return flags


def _run(flags: argparse.Namespace) -> None:
    """Everything after the flags."""
    begun = time.monotonic()
    config, sizes = resolve(load_config(flags.config, flags.overrides)), _sizes(flags.embeddings)
    if flags.out and not flags.vs:
        raise ConfigError(f"--out={flags.out} is the folder of --vs=torch, which is not asked for")
    if flags.vs and flags.fit:
        raise ConfigError("--fit and --vs=torch are two questions; ask one at a time")
    if flags.devices is not None and flags.devices < 1:
        raise ConfigError(f"--devices={flags.devices}: at least 1")
    shape = config.mesh.shape
    _before_jax(flags.devices or abs(shape.data) * abs(shape.model))
    from jaxcl.planner.silence import silenced

    with silenced():
        if flags.vs:
            print(_versus(config, [size for size in sizes if size], flags))
            return
        found = _find(config, sizes, flags, begun)
    print(_as_json(found) if flags.json else _as_text(found, flags.seconds))


def _versus(config: Config, embeddings: Sequence[int], flags: argparse.Namespace) -> str:
    """The comparison with PyTorch; no N is named: over all of them."""
    from jaxcl.planner.targets import find_target
    from jaxcl.planner.versus import EMBEDDINGS, PLOT, table, versus
    from jaxcl.report import Stages

    target, out = find_target(flags.target), folder(flags.out or VERSUS)
    planner, how = _Planner(config, target, flags), f"compiled for {target.name}"
    with Stages() as tell:
        peaks = versus(
            planner.config, planner.peak, embeddings=embeddings or EMBEDDINGS, how=how, folder=out, tell=tell
        )
    if flags.json:
        return json.dumps([peak._asdict() for peak in peaks], indent=1)
    return "\n".join([*planner.notes, table(peaks), "", f"plot: {out / PLOT}"])


def _seconds(text: str) -> float:
    """The number of `--seconds`."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return value


def _find(config: Config, sizes: Sequence[int | None], flags: argparse.Namespace, begun: float) -> _Found:
    """Plans all that is asked for."""
    from jaxcl.planner.facts import assumptions
    from jaxcl.planner.targets import find_target

    target = find_target(flags.target)
    planner = _Planner(config, target, flags)
    rows = [planner.row(number) for number in sizes]
    notes = [note for note in (target.note, *planner.notes, *assumptions(config)) if note]
    fit = planner.fit() if flags.fit else None
    left = flags.seconds - (time.monotonic() - begun)
    savings = planner.savings(rows[-1], left) if flags.seconds else None
    return _Found(rows, target, notes, savings, fit, planner.views)


def _as_json(found: _Found) -> str:
    """One array; savings stand in the last row."""
    from jaxcl.planner.table import as_json

    last, (rows, target, notes, savings, fit, _) = len(found.rows) - 1, found
    return json.dumps(
        [as_json(row, target, notes, savings if i == last else None, fit) for i, row in enumerate(rows)], indent=1
    )


def _as_text(found: _Found, seconds: float) -> str:
    """The tables, and what was looked for besides."""
    from jaxcl.planner.table import fit_text, plan_table, savings_text

    texts = [plan_table(found.rows, found.target, found.notes)]
    texts += [] if found.savings is None else [savings_text(found.savings, seconds)]
    if found.fit is not None:
        texts.append(fit_text(found.fit, found.views, found.rows[-1].limit_bytes, found.target))
    return "\n\n".join(texts)


class _Found(NamedTuple):
    """All that is printed: rows, their target, sentences, savings and fit where looked for, embeddings of an image."""

    rows: list[Any]
    target: Any
    notes: list[str]
    savings: Any
    fit: Any
    views: int


class _Planner:
    """A config, a target and one compiler for all that is asked of them."""

    def __init__(self, config: Config, target: Any, flags: argparse.Namespace) -> None:
        from jaxcl.methods import traits
        from jaxcl.planner.compiling import Compiler
        from jaxcl.planner.plan import adjusted, device_count

        self.config, self.notes = adjusted(config, target)
        self._target, self._compiler = target, Compiler(target.options)
        self._devices = device_count(config, flags.devices)
        self.views = traits(config.method).views

    def row(self, embeddings: int | None) -> Any:
        """The plan of a number of embeddings; None: as the config has it."""
        from jaxcl.planner.plan import plan, with_embeddings

        config = self.config if embeddings is None else with_embeddings(self.config, embeddings)
        return plan(config, self._target, self._compiler, devices=self._devices)

    def savings(self, row: Any, seconds: float) -> Any:
        """What would save most."""
        from jaxcl.planner.savings import find_savings

        def peaks_of(configs: Sequence[Config]) -> list[int | None]:
            with ThreadPoolExecutor(len(configs)) as pool:
                return list(pool.map(self.peak, configs))

        return find_savings(row, peaks_of, seconds=seconds)

    def fit(self) -> Any:
        """The largest batch that fits."""
        from jaxcl.planner.fit import largest
        from jaxcl.planner.plan import batch_unit, with_settings
        from jaxcl.report import Stages

        unit = batch_unit(self.config, self._devices)
        limit = self._target.limit_bytes
        with Stages() as tell:

            def peak_of(size: int) -> int | None:
                tell(f"--fit: compiling with batch.size = {size:,}")
                return self.peak(with_settings(self.config, {"batch.size": size}))

            return largest(peak_of, limit, start=self.config.batch.size, unit=unit, smallest=max(unit, 2))

    def peak(self, config: Config) -> int | None:
        """Bytes of a device; None where the compiler refuses."""
        from jaxcl.planner.plan import draw_for, peak_of

        return peak_of(draw_for(config, self._target, self._devices), self._compiler)


def _before_jax(devices: int) -> None:
    """What must be said before JAX is loaded: no device of its own, and as many virtual CPUs as the mesh has."""
    from jaxcl.planner.targets import use_cpu

    use_cpu()
    flag = "--xla_force_host_platform_device_count"
    if flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}={devices}".strip()


def _sizes(text: str | None) -> list[int | None]:
    """The numbers of `--embeddings`."""
    if text is None:
        return [None]
    try:
        sizes: list[int | None] = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--embeddings={text} is not a list of whole numbers such as 8192,65536") from None
    if min(size or 0 for size in sizes) < 4:
        raise ConfigError(f"--embeddings={text}: at least 4 embeddings make a batch")
    return sizes


if __name__ == "__main__":
    leave(main())
