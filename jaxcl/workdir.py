"""The output folder of a run: claimed by one process, refused when used, resumed or emptied on request."""

from __future__ import annotations

import datetime
import fcntl
import itertools
import json
import os
import shutil
import socket
from pathlib import Path
from typing import IO, Any

from jaxcl.config import ConfigError

CONFIG = "config.json"
TEACHER = "teacher.json"
CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
REPORT = "report.html"
PROFILE = "profile"
_LOCK = ".lock"
# what a run writes, and so all that --overwrite may delete
_OURS = (CONFIG, TEACHER, CHECKPOINTS, METRICS, f"{METRICS}.[0-9]*", SUMMARY, REPORT, PROFILE, "events.out.tfevents.*")

# Settings that a resumed run may change: they do not alter what a step computes, but that more `steps` stretch the
# learning-rate schedule, which the caller says
_FREE_ON_RESUME = ("steps", "log", "eval", "checkpoint", "mesh", "max_nonfinite", "run")
_FREE_KEYS_ON_RESUME = ("data.workers", "data.root", "optim.offload")
# Values that mean the same programs, and so the same bits
_ALIKE = {"batch.images": {"host", "disk"}}
_FILES = ("model.pretrained", "text.pretrained")


class Workdir:
    """A claimed output folder; `release` it, or leave that to the end of the process."""

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self._lock = lock

    def release(self) -> None:
        """Lets another process have the folder."""
        (self.path / _LOCK).unlink(missing_ok=True)
        self._lock.close()


def default_path(config_path: str) -> Path:
    """A new folder under `runs/`, named after the config and the time.

    >>> default_path("configs/simclr_stream.py:smoke").parent
    PosixPath('runs')
    """
    file, _, variant = config_path.partition(":")
    name = "-".join(part for part in (Path(file).stem, variant) if part)
    return Path("runs") / f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"


def claim(path: Path, *, resume: bool = False, overwrite: bool = False) -> Workdir:
    """Makes the folder this process's own.

    Args:
        path: of the folder; it is created.
        resume: continue the run that is there.
        overwrite: delete the run that is there; files that no run writes are never deleted.

    Returns:
        The claimed folder.

    Raises:
        ConfigError: not writable, used without `resume` or `overwrite`, nothing to resume, or in use by a process.
    """
    if resume and overwrite:
        raise ConfigError("--resume and --overwrite contradict each other; give one of them")
    used = (path / CONFIG).exists() or (path / CHECKPOINTS).exists()
    if resume and not used:
        raise ConfigError(f"--workdir={path} holds no run")
    if used and not (resume or overwrite):
        raise ConfigError(
            f"--workdir={path} holds a run already; add --resume to continue it or --overwrite to replace it"
        )
    if not used and path.is_dir() and any(item.name != _LOCK for item in path.iterdir()):
        raise ConfigError(f"--workdir={path} holds files that are not of a run; name a new or an empty folder")
    lock = _lock(path)
    if overwrite:
        _empty(path)
    return Workdir(path, lock)


def _lock(path: Path) -> IO[str]:
    """The open lock file, with this process's name in it."""
    handle = _lock_file(path)
    while not _is_at(handle, path / _LOCK):  # whoever had it has just released it, and with it this file
        handle.close()
        handle = _lock_file(path)
    handle.truncate(0)
    handle.write(f"process {os.getpid()} on {socket.gethostname()} since {datetime.datetime.now():%Y-%m-%d %H:%M:%S}\n")
    handle.flush()
    return handle


def _lock_file(path: Path) -> IO[str]:
    """The open lock file, locked."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = (path / _LOCK).open("a+")
    except OSError as error:
        raise ConfigError(f"--workdir={path} is not writable: {error.strerror}") from error
    try:
        # the kernel drops it with the process, so a killed run leaves no stale lock
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.seek(0)
        owner = handle.read().strip() or "another process"
        handle.close()
        raise ConfigError(f"--workdir={path} is in use by {owner}") from None
    return handle


def _is_at(handle: IO[str], path: Path) -> bool:
    """Whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _empty(path: Path) -> None:
    """Deletes what a run wrote."""
    for pattern in _OURS:
        for item in path.glob(pattern):
            shutil.rmtree(item) if item.is_dir() else item.unlink()


def keep_aside(path: Path) -> Path:
    """Renames a file that would be written anew: `.1` behind its name, or the first number that is free.

    Args:
        path: of the file.

    Returns:
        Where it is now.
    """
    names = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
    return path.rename(next(name for name in names if not name.exists()))


def write_json(path: Path, values: Any) -> None:
    """Writes a JSON file that is either whole or not there.

    Args:
        path: of the file.
        values: plain numbers, strings, lists and dictionaries; NaN is an error.
    """
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n")
    draft.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON file of settings.

    Args:
        path: of the file.

    Returns:
        The object in it.

    Raises:
        ConfigError: it is not there, not JSON, or not an object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} cannot be read: it holds a {type(values).__name__}, not settings")
    return values


def check_unchanged(saved: dict[str, Any], given: dict[str, Any]) -> None:
    """Raises where a run would be resumed with settings that change what its steps compute.

    Args:
        saved: the resolved configuration of the run.
        given: the one to resume with.

    Raises:
        ConfigError: names each such setting with both values.
    """
    before, after = _flat(saved), _flat(given)
    changed = [
        f"{name} = {after.get(name)!r} (the run has {before.get(name)!r})"
        for name in sorted(before.keys() | after.keys())
        if not _alike(name, before, after)
        and name.split(".")[0] not in _FREE_ON_RESUME
        and name not in _FREE_KEYS_ON_RESUME
    ]
    if changed:
        raise ConfigError(f"--resume with other settings than the run was started with: {'; '.join(changed)}")


def _alike(name: str, before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether two values of a setting mean the same steps."""
    values = before.get(name), after.get(name)
    if values[0] == values[1] or set(values) <= _ALIKE.get(name, set()):
        return True
    if name not in _FILES or None in values:
        return False
    # of what LoRA freezes, checksums say whether another file holds the same
    return bool(after.get("lora.rank")) or len({Path(str(value)).expanduser().absolute() for value in values}) == 1


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
