"""Checkpoints: saving without waiting, keeping the newest and the best, and restoring onto any mesh."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from jaxcl.config import ConfigError


class Checkpoints:
    """The folder `checkpoints/` of a run.

    A checkpoint holds the train state, the position in the data and the resolved configuration. Saving returns at once
    and goes on in the background; an unfinished save is never taken for a checkpoint.
    """

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        """Opens or creates the folder.

        Args:
            folder: where the steps lie, one folder each.
            keep: newest checkpoints kept; that of the best score is kept besides.
        """
        newest = policies.LatestN(keep)
        best = policies.BestN(get_metric_fn=_score, n=1, keep_checkpoints_without_metrics=False)
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
            ConfigError: a non-finite number in the state, which is then not saved.
        """
        if step in self._manager.all_steps():
            return
        bad = _first_non_finite(state)
        if bad is not None:
            raise ConfigError(f"{bad} is not finite at step {step}: the state was not saved; lower optim.base_lr")
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state), data=ocp.args.JsonSave(position), config=ocp.args.JsonSave(config)
            ),
            metrics=None if score is None or not math.isfinite(score) else {"score": float(score)},
        )

    def restore(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        """The state and the data position of a step.

        Args:
            step: one that was saved.
            like: tree of `jax.ShapeDtypeStruct` with shardings, which place the arrays, whatever mesh saved them.

        Returns:
            The state and the position.

        Raises:
            ConfigError: the saved tree does not fit.
        """
        try:
            restored = self._manager.restore(
                step, args=ocp.args.Composite(state=ocp.args.StandardRestore(like), data=ocp.args.JsonRestore())
            )
        except (ValueError, KeyError, FileNotFoundError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(f"checkpoint {self._folder / str(step)} cannot be restored: {reason}") from error
        _check_shapes(restored["state"], like, self._folder / str(step))
        return restored["state"], restored["data"]

    def wait(self) -> None:
        """Returns when all saves are on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits and releases the folder."""
        self._manager.wait_until_finished()
        self._manager.close()


def newest_step(folder: Path) -> int | None:
    """The newest step that was saved whole, found without opening the folder for writing.

    Args:
        folder: `checkpoints/` of a run; it may be missing.

    Returns:
        The step, or None.
    """
    names = [item.name for item in folder.iterdir()] if folder.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=None)  # unfinished ones have longer names


def saved_arrays(folder: Path, step: int) -> dict[str, jax.ShapeDtypeStruct]:
    """What the state of a step holds; nothing is written and no array is read.

    Args:
        folder: `checkpoints/` of a run.
        step: one that was saved.

    Returns:
        Shape and type of each array by its path, as in "params.encoder.conv1.kernel".

    Raises:
        ConfigError: it cannot be read.
    """
    with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler, _readable(folder, step):
        tree = handler.metadata(_state_of(folder, step))
        leaves = jax.tree_util.tree_leaves_with_path(tree.tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        for path, leaf in leaves
    }


def restore_part(folder: Path, step: int, like: Any) -> Any:
    """Some arrays of the state of a step; the others are not read, and nothing is written.

    Args:
        folder: `checkpoints/` of a run.
        step: one that was saved.
        like: nested dictionaries of `jax.ShapeDtypeStruct` with shardings, all of them in `saved_arrays`.

    Returns:
        The same tree of arrays.

    Raises:
        ConfigError: they cannot be read.
    """
    arguments = ocp.args.PyTreeRestore(
        item=like, restore_args=ocp.checkpoint_utils.construct_restore_args(like), partial_restore=True
    )
    with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler, _readable(folder, step):
        restored = handler.restore(_state_of(folder, step), args=arguments)
    return jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(restored))  # empty dictionaries are left out


def _state_of(folder: Path, step: int) -> Path:
    """Where the arrays of a step lie."""
    return folder.absolute() / str(step) / "state"


@contextlib.contextmanager
def _readable(folder: Path, step: int) -> Iterator[None]:
    """What Orbax finds wrong with a checkpoint, as one line."""
    try:
        yield
    except (ValueError, KeyError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"checkpoint {folder / str(step)} cannot be read: {reason}") from error


def _score(metrics: dict[str, float]) -> float:
    """What checkpoints are ranked by."""
    return metrics["score"]


def _first_non_finite(state: Any) -> str | None:
    """The path of the first array with a NaN or an infinity, or None."""
    paths = jax.tree_util.tree_flatten_with_path(state)[0]
    floats = [(path, leaf) for path, leaf in paths if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    finite = jax.device_get(_all_finite([leaf for _, leaf in floats]))
    return next((jax.tree_util.keystr(path) for (path, _), ok in zip(floats, finite, strict=True) if not ok), None)


@jax.jit
def _all_finite(leaves: list[jax.Array]) -> list[jax.Array]:
    """For each array whether all its numbers are finite."""
    return [jnp.isfinite(leaf).all() for leaf in leaves]


def _check_shapes(restored: Any, like: Any, where: Path) -> None:
    """Raises where a leaf came back in another shape or type, which Orbax does not always notice."""
    found = jax.tree_util.tree_flatten_with_path(restored)[0]
    for (path, leaf), wanted in zip(found, jax.tree.leaves(like), strict=True):
        if leaf.shape != wanted.shape or leaf.dtype != wanted.dtype:
            raise ConfigError(
                f"checkpoint {where}: {jax.tree_util.keystr(path)} is {leaf.dtype}{list(leaf.shape)}; "
                f"this configuration needs {wanted.dtype}{list(wanted.shape)}"
            )
