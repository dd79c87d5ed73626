"""The end of a run: what its encoder scores, in a summary, a report and a table."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
from jax.tree_util import Partial

from jaxcl.assess import Assessment, Captions, assess, assess_captions, pixels
from jaxcl.build import Parts
from jaxcl.config import ConfigError, to_dict
from jaxcl.lora import merge
from jaxcl.report import Stages, read_metrics, summary_table, write_report, write_summary
from jaxcl.state import TrainState, parameter_count
from jaxcl.workdir import SUMMARY, read_json

CAPTIONS = (
    "each held-out caption once, by cosine; colours: ridge regression from a histogram of 64 colours to the words and "
    "letter triples of the caption, fitted to the training pairs"
)


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
    with Stages() as tell:
        result = assess(encoders, parts.readers, settings=config.eval, seed=config.seed, mesh=parts.mesh, tell=tell)
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
