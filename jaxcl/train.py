"""The loop: build, restore, step, log, checkpoint, evaluate; no maths."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shlex
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.tree_util import Partial

from jaxcl.adapt import QueueLength
from jaxcl.assess import SCORES, Assessment, Captions, assess, assess_captions, pixels, quick_score
from jaxcl.build import Parts, build, warn_of_stale_negatives
from jaxcl.checkpoint import Checkpoints, newest_step
from jaxcl.config import Config, ConfigError, batch_line, mesh_that_fits, resolve, to_dict
from jaxcl.data import Loader, caption_line, make_loader
from jaxcl.interrupt import Interrupt, Interrupted, stopping
from jaxcl.lora import merge
from jaxcl.methods import traits
from jaxcl.optim import group_table
from jaxcl.report import Health, MetricsWriter, Progress, read_metrics, summary_table, write_report, write_summary
from jaxcl.resume import begin, check_resumable, saved_config, with_base
from jaxcl.state import TrainState, parameter_count
from jaxcl.teacher import check_apart, remember, remembered
from jaxcl.workdir import CHECKPOINTS, CONFIG, SUMMARY, claim, read_json, write_json

CAPTIONS = (
    "each held-out caption once, by cosine; colours: ridge regression from a histogram of 64 colours to the words and "
    "letter triples of the caption, fitted to the training pairs"
)


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
        if captions:
            print(captions, flush=True)
        with Interrupt() as interrupt:
            checkpoints = Checkpoints(workdir / CHECKPOINTS, keep=config.checkpoint.keep)
            try:
                state, first = begin(parts, loader, checkpoints, workdir, steps_before=before)
                write_json(workdir / CONFIG, to_dict(config))
                if parts.teacher is not None:
                    remember(workdir, parts.teacher)
                with MetricsWriter(workdir) as writer:
                    writer.truncate_after(first)
                    fit = Fit(parts, loader, writer, checkpoints, interrupt)
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
    config = parts.config
    return make_loader(
        parts.splits.train,
        config=config.data,
        augment=config.augment,
        batch=config.batch.size,
        seed=config.seed,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
        bad=parts.bad.train,
        views=traits(config.method).views,
        tokenizer=parts.tokenizer,
    )


class Fit:
    """One pass through the steps that are left, and what it learned on the way."""

    def __init__(
        self, parts: Parts, loader: Loader, writer: MetricsWriter, checkpoints: Checkpoints, interrupt: Interrupt
    ) -> None:
        self._parts, self._config = parts, parts.config
        self._loader, self._writer, self._checkpoints, self._interrupt = loader, writer, checkpoints, interrupt
        self._lost_in_a_row = 0
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
                position, ids = self._loader.position(), batch["id"]
                state, metrics = self._parts.train_step(state, self._parts.place(batch))
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
            self._writer.write(number, {**values, **scores, **speed})
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


def evaluate(workdir: Path) -> dict[str, Any]:
    """Scores the newest checkpoint of a run again, and writes and prints the result.

    Args:
        workdir: of the run.

    Returns:
        What `summary.json` holds.

    Raises:
        ConfigError: no run, no checkpoint, or one that is still going on.
    """
    started = time.monotonic()
    _quiet_libraries()
    claimed = claim(workdir, resume=True)
    try:
        with stopping("stopped; nothing was scored"):
            saved = saved_config(workdir)
            if saved is None or not (workdir / CHECKPOINTS).is_dir():
                raise ConfigError(f"--workdir={workdir} has no checkpoint yet")
            config = resolve(saved)
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


def finish(
    parts: Parts, state: TrainState, workdir: Path, images_per_second: float | None, started: float
) -> dict[str, Any]:
    """Evaluates a trained state and writes and prints the result.

    Args:
        parts: of the run.
        state: trained.
        workdir: where `summary.json` and `report.html` go.
        images_per_second: of the training; None: as the log has it.
        started: `time.monotonic()` when the run began.

    Returns:
        What `summary.json` holds.
    """
    config = parts.config
    print("evaluating the encoder, a random one and raw pixels", flush=True)
    encoders = {
        "trained": parts.encoder(state),
        "random": parts.untrained(config.seed),
        "pixels": Partial(pixels),
    }
    result = assess(encoders, parts.readers, settings=config.eval, seed=config.seed, mesh=parts.mesh)
    captions = _captions(parts, state)
    rows = read_metrics(workdir)
    summary = {**scores_of(result), **captions, **describe(parts, state, result), **_facts(rows, images_per_second)}
    summary["wall_seconds"] = time.monotonic() - started
    if images_per_second is None and (workdir / SUMMARY).is_file():  # scored again: the time is still that of the run
        summary["wall_seconds"] = _wall_seconds_before(workdir)
    write_summary(workdir, summary)
    write_report(workdir, summary, rows, to_dict(config))
    print(summary_table(summary, workdir), flush=True)
    return summary


def scores_of(result: Assessment) -> dict[str, Any]:
    """The accuracies under the names of `summary.json`."""
    trained, random, raw = (result.scores[name] for name in ("trained", "random", "pixels"))
    return dict(
        knn_top1=trained.knn_top1,
        linear_top1=trained.linear_top1,
        view_retrieval_top1=trained.view_retrieval_top1,
        floor_pixels_top1=raw.linear_top1,
        floor_random_top1=random.linear_top1,
        floor_pixels_knn_top1=raw.knn_top1,
        floor_random_knn_top1=random.knn_top1,
        floor_pixels_view_retrieval=raw.view_retrieval_top1,
        floor_random_view_retrieval=random.view_retrieval_top1,
        chance_top1=result.chance_top1,
    )


def _captions(parts: Parts, state: TrainState) -> dict[str, Any]:
    """Retrieval between images and captions under the names of `summary.json`; nothing where none are read."""
    if parts.towers is None or parts.tokenizer is None:
        return {}
    print("retrieving captions and images", flush=True)
    towers, mesh = parts.towers(state), parts.mesh
    return caption_scores_of(
        assess_captions(towers, parts.tokenizer, parts.readers, settings=parts.config.eval, mesh=mesh)
    )


def caption_scores_of(result: Captions) -> dict[str, Any]:
    """Retrieval under the names of `summary.json`."""
    prefixes = dict(towers="", colours="floor_colours_", chance="chance_")
    names = [item.name for item in dataclasses.fields(result.chance)]
    return {
        f"{prefix}{name}": getattr(getattr(result, part), name, None)
        for part, prefix in prefixes.items()
        for name in names
    }


def describe(parts: Parts, state: TrainState, result: Assessment) -> dict[str, Any]:
    """What was trained and how it was scored, for `summary.json`."""
    config, own_task = parts.config, "" if parts.towers else "the training task itself: "
    return dict(
        data=config.data.name,
        method=config.method,
        steps=int(state.step),
        nonfinite_steps=int(state.step) - int(state.updates),
        devices=parts.mesh.size,
        bad_images=len(parts.bad.train) + len(parts.bad.test),
        param_count=parameter_count(jax.eval_shape(merge, state.params, state.frozen)),
        trained_param_count=parameter_count(state.params),
        protocol=dict(
            data=parts.splits.train.protocol,
            train_images=len(parts.splits.train),
            test_images=result.test_images,
            feature_layer="encoder output, frozen",
            probe="logistic regression on standardised features, L-BFGS, penalty chosen on a fifth of the training set",
            chance="the share of the largest class of the held-out images",
            linear_steps=config.eval.linear_steps,
            k=config.eval.knn_k,
            temperature=config.eval.knn_temperature,
            epochs=round(int(state.step) * config.batch.size / len(parts.splits.train), 1),
            view_retrieval=own_task + "the second augmented view among those of all held-out images",
            captions=CAPTIONS if parts.towers else None,
            seed=config.seed,
        ),
    )


def _facts(rows: list[dict[str, Any]], images_per_second: float | None) -> dict[str, Any]:
    """What only the log knows, for `summary.json`."""
    first, last = (rows[0], rows[-1]) if rows else ({}, {})
    return dict(
        loss_first=first.get("loss"),
        loss_last=last.get("loss"),
        negatives_per_anchor=last.get("negatives_per_anchor"),
        images_per_second=images_per_second or last.get("images_per_second"),
    )


def _wall_seconds_before(workdir: Path) -> float | None:
    """Of the run, from its summary; None where that is damaged, which is about to be replaced."""
    with contextlib.suppress(ConfigError):
        return read_json(workdir / SUMMARY).get("wall_seconds")
    return None


def _quiet_libraries() -> None:
    """Libraries that report every file they touch are silent: what fails also raises, and is told in one line."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)
