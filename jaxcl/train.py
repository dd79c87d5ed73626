"""The loop: build, restore, step, log, checkpoint, evaluate; no maths."""

from __future__ import annotations

import dataclasses
import logging
import shlex
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxcl.adapt import QueueLength
from jaxcl.assess import SCORES, quick_score
from jaxcl.build import Parts, build, warn_of_stale_negatives
from jaxcl.checkpoint import Checkpoints, newest_step
from jaxcl.config import Config, ConfigError, batch_line, mesh_that_fits, micro_size, resolve, to_dict
from jaxcl.data import Loader, caption_line, make_loader
from jaxcl.finish import finish
from jaxcl.interrupt import Interrupt, Interrupted, stopping
from jaxcl.methods import traits
from jaxcl.optim import group_table
from jaxcl.portions import Portions
from jaxcl.pretrained import random_parts, whole_paths
from jaxcl.profiling import Profile
from jaxcl.report import Health, MetricsWriter, Progress, read_metrics
from jaxcl.resume import begin, check_resumable, saved_config, with_base, with_moved
from jaxcl.state import TrainState
from jaxcl.teacher import check_apart, remember, remembered
from jaxcl.usage import MemoryLines, memory_use
from jaxcl.workdir import CHECKPOINTS, CONFIG, PROFILE, claim, write_json


def train(config: Config, workdir: Path, *, resume: bool = False, overwrite: bool = False) -> dict[str, Any]:
    """Trains, evaluates, and leaves everything in a folder.

    Args:
        config: from `jaxcl.config.resolve`.
        workdir: output folder.
        resume: continue the run that is there, bitwise.
        overwrite: replace the run that is there.

    Returns:
        What `summary.json` holds.

    Raises:
        ConfigError: a setting, the data or the folder does not allow the run; known before anything compiles.
        Interrupted: Ctrl-C or SIGTERM; the state was saved.
    """
    started = time.monotonic()
    _quiet_libraries()
    config = whole_paths(config)
    check_apart(config, workdir)
    fresh = not resume or newest_step(workdir / CHECKPOINTS) is None
    parts = build(config, remembered(workdir) if resume else None, fresh=fresh)
    captions = caption_line(parts.splits.train, parts.tokenizer) if parts.tokenizer else None
    loader = _open_loader(parts)
    claimed = claim(workdir, resume=resume, overwrite=overwrite)
    try:
        before = check_resumable(workdir, config)
        warn_of_stale_negatives(config, len(parts.splits.train))
        table = group_table(parts.like.params, config.optim, parts.like.frozen)
        print(f"workdir: {workdir}\n{batch_line(config)}\n{table}", flush=True)
        for line in (captions, fresh and random_parts(config, parts.like.params)):
            if line:
                print(line, flush=True)
        with Interrupt() as interrupt:
            checkpoints = Checkpoints(workdir / CHECKPOINTS, keep=config.checkpoint.keep)
            try:
                state, first = begin(parts, loader, checkpoints, workdir, steps_before=before)
                write_json(workdir / CONFIG, to_dict(config))
                if parts.teacher is not None:
                    remember(workdir, parts.teacher)
                with MetricsWriter(workdir) as writer:
                    writer.truncate_after(first)
                    folder = workdir / PROFILE if config.run.profile else None
                    profile = Profile(folder, first=first + 1, last=config.steps)
                    fit = Fit(parts, loader, writer, checkpoints, interrupt, profile)
                    fit.replay(read_metrics(workdir))
                    state = fit.run(state, first)
                checkpoints.wait()
            finally:
                checkpoints.close()
                loader.close()
        command = shlex.join(["python", "-m", "jaxcl.evaluate", f"--workdir={workdir}"])
        if interrupt.requested:
            raise Interrupted(f"trained to the end and saved; {command} scores it", interrupt.requested)
        with stopping(f"trained to the end and saved, but not scored; {command} scores it"):
            return finish(parts, state, workdir, fit.images_per_second, started)
    finally:
        claimed.release()


def _open_loader(parts: Parts) -> Loader:
    """The training batches of this process."""
    config, batch = parts.config, parts.config.batch
    return make_loader(
        parts.splits.train,
        config=config.data,
        augment=config.augment,
        batch=batch.size,
        seed=config.seed,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
        bad=parts.bad.train,
        views=traits(config.method).views,
        tokenizer=parts.tokenizer,
        portions=Portions(batch.size, micro_size(config)) if batch.images == "disk" else None,
    )


class Fit:
    """One pass through the steps that are left, and what it learned on the way."""

    def __init__(
        self,
        parts: Parts,
        loader: Loader,
        writer: MetricsWriter,
        checkpoints: Checkpoints,
        interrupt: Interrupt,
        profile: Profile,
    ) -> None:
        self._parts, self._config = parts, parts.config
        self._loader, self._writer, self._checkpoints, self._interrupt = loader, writer, checkpoints, interrupt
        self._memory, self._profile, self._lost_in_a_row = MemoryLines(), profile, 0
        queue = self._config.queue
        self._length = QueueLength(start=queue.start, size=queue.size) if queue.adapt and queue.start else None
        self._health = Health(
            steps=self._config.steps,
            warmup=self._config.optim.warmup_steps,
            clip_norm=self._config.optim.clip_norm,
        )
        self._busy, self._timed = 0.0, 0  # seconds and steps, without the first one, which compiles
        self._skipped = 0.0

    @property
    def images_per_second(self) -> float | None:
        """Of all steps but the first; None where there was no other."""
        return self._timed * self._config.batch.size / self._busy if self._timed else None

    def run(self, state: TrainState, first: int) -> TrainState:
        """Trains to the last step.

        Args:
            state: to begin with; it is given up.
            first: the steps behind it.

        Returns:
            The trained state, which is saved.

        Raises:
            Interrupted: on request, after saving.
            ConfigError: too many non-finite steps in a row.
        """
        if first >= self._config.steps:
            return state
        self._skipped = float(state.step - state.updates)
        batch = next(self._loader)
        print("compiling the training step", flush=True)
        with Progress(self._config.steps, first=first, images_per_step=self._config.batch.size) as progress:
            for number in range(first + 1, self._config.steps + 1):
                tick = time.monotonic()
                position = self._loader.position()
                with self._profile.step(number):
                    state, metrics = self._parts.train_step(state, self._parts.place(batch))
                    ids = batch["id"]
                    if number < self._config.steps:
                        batch = next(self._loader)  # while the device works
                    values = {name: float(value) for name, value in jax.device_get(metrics).items()}
                if number > first + 1:
                    self._busy, self._timed = self._busy + time.monotonic() - tick, self._timed + 1
                self._watch(number, values, ids)
                progress.update(number, loss=values["loss"])
                state = self._record(number, state, values, position)
        return state

    def _watch(self, number: int, values: dict[str, float], ids: Any) -> None:
        """Counts the steps that a NaN or an infinity undid, names their images, and gives up after too many."""
        lost, self._skipped = values["skipped"] > self._skipped, values["skipped"]
        if values.get("overflow"):  # so the factor of the loss finds its size
            return
        self._lost_in_a_row = self._lost_in_a_row + 1 if lost else 0
        if lost:
            shown = ", ".join(map(str, ids[:5])) + (", …" if len(ids) > 5 else "")
            warnings.warn(f"step {number} was not finite and changed nothing (image ids {shown})", stacklevel=2)
        if self._lost_in_a_row >= self._config.max_nonfinite:
            newest = self._checkpoints.latest()
            saved = "there is no checkpoint yet" if newest is None else f"the newest checkpoint is of step {newest}"
            raise ConfigError(
                f"{self._lost_in_a_row} non-finite steps in a row (max_nonfinite = {self._config.max_nonfinite}), the "
                f"last one {number}: lower optim.base_lr = {self._config.optim.base_lr} or raise loss.temperature = "
                f"{self._config.loss.temperature}; {saved}"
            )

    def _record(self, number: int, state: TrainState, values: dict[str, float], position: dict[str, Any]) -> TrainState:
        """Logs, scores and saves what is due after a step; the state changes where a score changes its queue."""
        config, last = self._config, number == self._config.steps
        scores = {}
        if config.eval.every and number % config.eval.every == 0:
            encoder = self._parts.encoder(state)
            scores = quick_score(encoder, self._parts.readers, settings=config.eval, mesh=self._parts.mesh)
            state = self._adapt(number, state, scores)
        if number == 1 or number % config.log.every == 0 or scores or last:
            speed = {"images_per_second": self.images_per_second} if self._timed else {}
            use = memory_use()
            self._writer.write(number, {**values, **scores, **speed, **use})
            if line := self._memory.line(use):
                print(line, flush=True)
            for sentence in self._health.look(number, values):
                warnings.warn(sentence, stacklevel=2)
        stop = self._interrupt.requested
        if number % config.checkpoint.every == 0 or scores or last or stop:
            # without scores the best checkpoint is the one of the lowest loss
            score = next(iter(scores.values()), None if config.eval.every else -values["loss"])
            self._checkpoints.save(number, state, position=position, config=to_dict(config), score=score)
        if stop and not last:
            self._checkpoints.wait()
            said = f"stopped at step {number} of {config.steps}, which is saved; --resume continues"
            raise Interrupted(said, stop, resumable=True)
        return state

    def _adapt(self, number: int, state: TrainState, scores: dict[str, float]) -> TrainState:
        """The state with the queue length that validation asks for."""
        if self._length is None:
            return state
        for score in scores.values():
            said = self._length.see(score)
            if said:
                print(f"step {number}: {said}", flush=True)
        like: Any = self._parts.like.queue_rows
        return state._replace(queue_rows=jax.device_put(np.int32(self._length.rows), like.sharding))

    def replay(self, rows: list[dict[str, Any]]) -> None:
        """Shows what decides the queue's length the scores before a resumed run.

        Args:
            rows: of the log, up to the step that is resumed.
        """
        for row in rows:
            for name in SCORES:
                if self._length is not None and row.get(name) is not None:
                    self._length.see(row[name])


def evaluate(workdir: Path, *, pretrained: Path | None = None, text_pretrained: Path | None = None) -> dict[str, Any]:
    """Scores the newest checkpoint of a run again, and writes and prints the result.

    Args:
        workdir: of the run.
        pretrained: where the weights lie now beside which it was adapted (LoRA); None: where they lay.
        text_pretrained: the same of its text tower.

    Returns:
        What `summary.json` holds.

    Raises:
        ConfigError: no run, no checkpoint, one that is still going on, or other frozen weights.
    """
    started = time.monotonic()
    _quiet_libraries()
    claimed = claim(workdir, resume=True)
    try:
        with stopping("stopped; nothing was scored"):
            saved = saved_config(workdir)
            if saved is None or not (workdir / CHECKPOINTS).is_dir():
                raise ConfigError(f"--workdir={workdir} has no checkpoint yet")
            config = with_moved(resolve(saved), pretrained, text_pretrained)
            fitting = dataclasses.replace(config, mesh=mesh_that_fits(config, jax.device_count()))
            parts = build(fitting, remembered(workdir), fresh=False)
            checkpoints = Checkpoints(workdir / CHECKPOINTS, keep=config.checkpoint.keep)
            try:
                found = checkpoints.restore_newest(parts.like)
                if found is None:
                    raise ConfigError(f"--workdir={workdir} has no checkpoint yet")
                checkpoints.set_aside(found)
            finally:
                checkpoints.close()
            return finish(parts, with_base(found, parts), workdir, None, started)
    finally:
        claimed.release()


def _quiet_libraries() -> None:
    """Libraries that report every file they touch are silent: what fails also raises, and is told in one line."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)
