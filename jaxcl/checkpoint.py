"""Checkpoints: saving without waiting, keeping the newest and the best, and restoring what is whole onto any mesh."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from jaxcl.config import ConfigError
from jaxcl.integrity import array_types, checksums, differing, first_non_finite, misfit, text_checksum

_CHECKSUMS = "checksums"
# what Orbax and the system say of a machine, and not of the files
_NOT_DAMAGE = ("RESOURCE_EXHAUSTED", "PERMISSION_DENIED", "UNAVAILABLE")


class DamagedError(ConfigError):
    """A checkpoint that is not what was saved."""


class Restored(NamedTuple):
    """What a checkpoint holds, and why newer ones were passed over.

    Attributes:
        step: its number.
        state: of the run.
        position: in the data.
        damaged: newer steps, each with what is wrong with it.
        frozen: checksums of the parameters that no checkpoint holds, by path.
    """

    step: int
    state: Any
    position: dict[str, Any]
    damaged: dict[int, str]
    frozen: dict[str, str | None]


class Found(NamedTuple):
    """What was read of a checkpoint, and which newer ones were passed over, each with what is wrong with it."""

    step: int
    read: Any
    damaged: dict[int, str]


class Checkpoints:
    """The folder `checkpoints/` of a run.

    A checkpoint holds the train state, the position in the data, checksums of both and the resolved configuration. Of
    frozen parameters, which are made anew from the configuration, it holds the checksums only.
    Saving returns at once and goes on in the background; an unfinished save is never taken for a checkpoint.
    """

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        """Opens or creates the folder.

        Args:
            folder: where the steps lie, one folder each.
            keep: newest checkpoints kept; that of the best score is kept besides.
        """
        newest = policies.LatestN(keep)
        best = policies.BestN(get_metric_fn=_score, n=1, keep_checkpoints_without_metrics=False)
        _drop_damaged_scores(folder)
        self._manager = ocp.CheckpointManager(
            folder.absolute(),
            options=ocp.CheckpointManagerOptions(
                create=True,
                best_fn=_score,
                # max_to_keep with best_fn would delete the newest one when it is not among the best
                preservation_policy=policies.AnyPreservationPolicy([newest, best]),
            ),
        )
        self._folder = folder
        self._frozen: dict[str, str | None] | None = None  # checksums, of what no step changes

    def latest(self) -> int | None:
        """The newest step that was saved whole, or None."""
        return self._manager.latest_step()

    def best(self) -> int | None:
        """The step of the highest score, or None where none has a score."""
        return self._manager.best_step()

    def save(
        self, step: int, state: Any, *, position: dict[str, Any], config: dict[str, Any], score: float | None
    ) -> None:
        """Starts to save; the arrays are copied before it returns, so the state may be donated.

        Args:
            step: its number; a step that is there already is left as it is.
            state: the train state.
            position: of the data, as JSON.
            config: resolved, as JSON.
            score: higher is better; None: this checkpoint is kept only while it is among the newest.

        Raises:
            ConfigError: a non-finite number in the state, which is then not saved; or this save, or the one before,
                cannot be written.
        """
        if step in self._manager.all_steps():
            return
        bad = first_non_finite(state)
        if bad is not None:
            raise ConfigError(f"{bad} is not finite at step {step}: the state was not saved; lower optim.base_lr")
        frozen, stored = getattr(state, "frozen", None), _stored(state)
        sums = {"arrays": checksums(stored), "data": text_checksum(position)}
        if frozen is not None:
            self._frozen = self._frozen or checksums(frozen)
            sums["frozen"] = self._frozen
        items: dict[str, Any] = {"data": position, "config": config, _CHECKSUMS: sums}
        with self._writing():
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(stored),
                    **{name: ocp.args.JsonSave(item) for name, item in items.items()},
                ),
                metrics=None if score is None or not math.isfinite(score) else {"score": float(score)},
            )

    def restore(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        """The state and the data position of a step, as they were saved to the last bit.

        Args:
            step: one that was saved.
            like: tree of `jax.ShapeDtypeStruct` with shardings, which place the arrays, whatever mesh saved them.

        Returns:
            The state, without frozen parameters, and the position.

        Raises:
            DamagedError: what lies there is not what was saved.
            ConfigError: the saved tree does not fit; the first arrays that do not are named.
        """
        state, position, _ = self._restore(step, like)
        return state, position

    def _restore(self, step: int, like: Any) -> tuple[Any, dict[str, Any], dict[str, str | None]]:
        """As `restore`, and the checksums of frozen parameters."""
        where = self._folder.absolute() / str(step)
        tree, sums = _listed(where)
        reason = misfit(array_types(tree), _held(array_types(like)))
        if reason:
            raise ConfigError(f"checkpoint {self._folder / str(step)} does not fit this configuration: {reason}")
        with _reading(where):
            known = _stored(like, tree)
            items = ocp.args.Composite(state=ocp.args.StandardRestore(known), data=ocp.args.JsonRestore())
            restored = self._manager.restore(step, args=items)
            state, position = restored["state"], dict(restored["data"])
            state = state if known is like else like._replace(**{**dict.fromkeys(like._fields), **state})
        if sums:
            bad = differing(checksums(state), sums["arrays"])
            bad = "data" if bad is None and text_checksum(position) != sums["data"] else bad
            if bad:
                raise DamagedError(f"{_brief(where)} is damaged ({bad})")
        return state, position, sums["frozen"] if sums else {}

    def restore_newest(self, like: Any) -> Restored | None:
        """The newest checkpoint that is whole; the folder stays as it is.

        Args:
            like: as in `restore`.

        Returns:
            What it holds, and which newer ones are damaged; None where nothing was saved.

        Raises:
            ConfigError: none is whole, or one does not fit.
        """
        found = newest_whole(self._folder, lambda step: self._restore(step, like))
        if found is None:
            return None
        state, position, frozen = found.read
        return Restored(found.step, state, position, found.damaged, frozen)

    def set_aside(self, restored: Restored) -> None:
        """Says which checkpoints are damaged, and renames them so that none is taken for the newest again.

        Args:
            restored: from `restore_newest`.
        """
        for step, reason in restored.damaged.items():
            free = _free_name(self._folder / f"damaged-{step}")
            warnings.warn(f"{reason}: going back to step {restored.step}; it is now {_brief(free)}", stacklevel=2)
            (self._folder / str(step)).rename(free)
        if restored.damaged:
            self._manager.reload()

    def wait(self) -> None:
        """Returns when all saves are on disk.

        Raises:
            ConfigError: one of them cannot be written.
        """
        with self._writing():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits and releases the folder; a save that fails is told by `wait`, and not a second time."""
        with contextlib.suppress(Exception):
            self._manager.wait_until_finished()
        with contextlib.suppress(Exception):
            self._manager.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """What Orbax says of a disk that takes no more, as one line."""
        try:
            yield
        except (jax.errors.JaxRuntimeError, MemoryError):
            raise
        except Exception as error:  # of this save or of the one before
            steps = _steps(self._folder)
            newest = f"the newest whole checkpoint is of step {steps[0]}" if steps else "there is none yet"
            raise ConfigError(f"checkpoints cannot be written: {_one_line(error)}; {newest}") from error


def stored_config(folder: Path) -> dict[str, Any] | None:
    """The resolved configuration inside the newest checkpoint that has one.

    Args:
        folder: `checkpoints/` of a run; it may be missing, and nothing is written.

    Returns:
        The configuration, or None.
    """
    for step in _steps(folder):
        with contextlib.suppress(OSError, ValueError):
            return dict(ocp.JsonCheckpointHandler().restore(folder.absolute() / str(step) / "config"))
    return None


def _held(types: dict[str, str]) -> dict[str, str]:
    """Of the arrays of a state those that a checkpoint holds."""
    return {path: kind for path, kind in types.items() if not path.startswith("frozen/")}


def _stored(state: Any, tree: Any = None) -> Any:
    """A state by the names of its fields, "frozen" left out, and empty ones that a saved tree does not have yet."""
    if not hasattr(state, "_asdict"):
        return state
    fields = {name: value for name, value in state._asdict().items() if name != "frozen"}
    return {name: value for name, value in fields.items() if tree is None or name in tree or value is not None}


def _steps(folder: Path) -> list[int]:
    """The steps that were saved whole, the newest first; unfinished and damaged ones have longer names."""
    names = [item.name for item in folder.iterdir()] if folder.is_dir() else []
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def _free_name(path: Path) -> Path:
    """The path, or with the first number behind it that is not taken."""
    names = itertools.chain([path], (path.with_name(f"{path.name}-{number}") for number in itertools.count(2)))
    return next(name for name in names if not name.exists())


@contextlib.contextmanager
def _reading(where: Path) -> Iterator[None]:
    """Whatever goes wrong with files that are not what was saved, as one line."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError):
        raise
    except Exception as error:  # Orbax and its file formats raise almost anything on hostile bytes
        missing = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
        if (isinstance(error, OSError) and not missing) or str(error).startswith(_NOT_DAMAGE):
            raise ConfigError(f"checkpoint {where} cannot be read: {_one_line(error)}") from error
        raise DamagedError(f"{_brief(where)} is damaged ({_one_line(error)})") from error


def _brief(where: Path) -> str:
    """A path as `checkpoints/20`."""
    return f"{where.parent.name}/{where.name}"


def _one_line(error: Exception) -> str:
    """The first line of an error; of a long one what happened, at its begin, and why, at its end."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0].partition(" See full")[0]
    return text if len(text) <= 120 else f"{text[:50]} … {text[-60:]}"


def _drop_damaged_scores(folder: Path) -> None:
    """Renames scores that are no JSON: Orbax would not open the folder, and a checkpoint may go without."""
    for file in folder.glob("[0-9]*/metrics/metrics"):
        try:
            float(json.loads(file.read_bytes())["score"])
        except (ValueError, KeyError, TypeError):
            warnings.warn(f"{_brief(file.parent.parent)} has a damaged score, which counts no more", stacklevel=3)
            file.rename(_free_name(file.with_name("damaged")))


def newest_step(folder: Path) -> int | None:
    """The newest step that was saved whole, found without opening the folder for writing.

    Args:
        folder: `checkpoints/` of a run; it may be missing.

    Returns:
        The step, or None.
    """
    return next(iter(_steps(folder)), None)


def newest_whole(folder: Path, read: Callable[[int], Any]) -> Found | None:
    """What a function reads of the newest checkpoint that is whole; the folder stays as it is.

    Args:
        folder: `checkpoints/` of a run; it may be missing.
        read: from a step; `DamagedError` sends it to the one before.

    Returns:
        What it read and where; None where nothing was saved.

    Raises:
        ConfigError: none is whole.
    """
    damaged: dict[int, str] = {}
    for step in _steps(folder):
        try:
            return Found(step, read(step), damaged)
        except DamagedError as error:
            damaged[step] = str(error)
    if damaged:
        raise ConfigError(f"{'; '.join(damaged.values())}: there is no whole one in {folder}")
    return None


def saved_types(folder: Path, step: int) -> dict[str, str]:
    """What the state of a step holds; nothing is written and no array is read.

    Args:
        folder: `checkpoints/` of a run.
        step: one that was saved.

    Returns:
        As `jaxcl.integrity.array_types`.

    Raises:
        DamagedError: what lies there is not what was saved.
    """
    return array_types(_listed(folder.absolute() / str(step))[0])


def restore_part(folder: Path, step: int, like: Any) -> Any:
    """Some arrays of the state of a step; the others are not read, and nothing is written.

    Args:
        folder: `checkpoints/` of a run.
        step: one that was saved.
        like: nested dictionaries of `jax.ShapeDtypeStruct` with shardings, all of them in `saved_types`.

    Returns:
        The same tree of arrays, as they were saved to the last bit.

    Raises:
        DamagedError: what lies there is not what was saved.
    """
    where = folder.absolute() / str(step)
    sums = _listed(where)[1]
    arguments = ocp.args.PyTreeRestore(
        item=like, restore_args=ocp.checkpoint_utils.construct_restore_args(like), partial_restore=True
    )
    with _reading(where), contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
        restored = handler.restore(where / "state", args=arguments)
        # empty dictionaries are left out
        part = jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(restored))
    bad = differing(checksums(part), sums["arrays"]) if sums else None
    if bad:
        raise DamagedError(f"{_brief(where)} is damaged ({bad})")
    return part


def _listed(where: Path) -> tuple[Any, dict[str, Any] | None]:
    """What Orbax knows of the arrays of a step, and its checksums; None where an earlier version saved it, without."""
    sums = None
    with _reading(where), contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
        tree = handler.metadata(where / "state").tree
        saved = array_types(tree)
        if (where / _CHECKSUMS).exists():
            read = ocp.JsonCheckpointHandler().restore(where / _CHECKSUMS)
            sums = {"arrays": dict(read["arrays"]), "data": read["data"], "frozen": dict(read.get("frozen", {}))}
    if sums and sums["arrays"].keys() != saved.keys():
        raise DamagedError(f"{_brief(where)} is damaged (the list of its arrays)")
    return tree, sums


def _score(metrics: dict[str, float]) -> float:
    """What checkpoints are ranked by."""
    return metrics["score"]
