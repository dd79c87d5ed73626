"""The table of `python -m jaxcl.bench step`: cached gradients against the step that keeps every activation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcl.bench.measure import Measured, Program, compile_program, measure
from jaxcl.bench.rows import MEMORY, TIME, Bar, Row, compared
from jaxcl.blueprint import make_prepare
from jaxcl.cached import Programs, make_cached_step, make_programs
from jaxcl.config import Config, ModelConfig, first_loss_scale
from jaxcl.hosted import HostedStep
from jaxcl.mesh import make_mesh, replicated
from jaxcl.methods import find
from jaxcl.methods.base import Method
from jaxcl.models import make_encoder, make_head
from jaxcl.optim import make_optimizer
from jaxcl.portions import Portions
from jaxcl.schedules import make_learning_rate
from jaxcl.state import TrainState, make_init_state
from jaxcl.step import make_train_step

# a second forward pass is a third of forward and backward together; what is saved of memory gives some of it back
BAR = Bar(most=1.3)
ONE_SHOT, CACHED, HOSTED = "one shot", "cached", "cached, images on the host"
FAST_COMPILE = {"xla_backend_optimization_level": 0}


@dataclass(frozen=True)
class Scale:
    """How large everything is.

    Attributes:
        encoders: their names and settings.
        images: of a batch; SimCLR has two embeddings of each.
        micro: images of a micro-batch.
        side: pixels of an image's side.
        rounds: timings of each step.
        judged: whether the bar is for this size, and the programs optimised; else they only compile fast.
    """

    encoders: tuple[tuple[str, ModelConfig], ...]
    images: int
    micro: int
    side: int
    rounds: int
    judged: bool


# without batch norm, so that all steps have one loss
FULL = Scale(
    encoders=(
        ("ViT-Ti, 32 px in patches of 8", ModelConfig(encoder="vit_ti", patch=8, head_norm=False)),
        ("small conv, 32 px", ModelConfig(norm="group", head_norm=False)),
    ),
    images=256,
    micro=64,
    side=32,
    rounds=3,
    judged=True,
)
QUICK = Scale(
    encoders=(("small conv, 8 px", ModelConfig(norm="group", head_norm=False, head_hidden=16, head_dim=8)),),
    images=8,
    micro=4,
    side=8,
    rounds=1,
    judged=False,
)


def step_rows(scale: Scale, say: Callable[[str], None] = lambda _: None) -> list[Row]:
    """Measures everything.

    Args:
        scale: sizes.
        say: told what comes next.

    Returns:
        Rows in the order of the table.
    """
    rows = []
    for name, model in scale.encoders:
        say(f"{name}, {2 * scale.images} embeddings: every step side by side")
        found = measure(step_programs(scale, model), scale.rounds)
        rows += _rows(scale, name, model, found)
    return rows if scale.judged else [replace(row, met=None) for row in rows]


def step_programs(scale: Scale, model: ModelConfig) -> dict[str, Program]:
    """SimCLR steps of the same state and batch, ready to run.

    Args:
        scale: sizes.
        model: encoder and head.

    Returns:
        By name; each gives the loss first.
    """
    config = Config(model=model)

    def method_of(looped: bool) -> Method:
        return find("simclr")(networks={"encoder": make_encoder(model, looped=looped), "head": head}, config=config)

    head, total = make_head(model), 100
    method = method_of(False)
    optimizer = make_optimizer(config.optim, batch_size=scale.images, total_steps=total)
    init = make_init_state(
        method,
        optimizer,
        views_shape=(2, 2, scale.side, scale.side, 3),
        queue_size=0,
        queue_dim=model.head_dim,
        queue_dtype="float16",
        loss_scale=first_loss_scale(config),
    )
    state = jax.jit(init)(jax.random.key(0))
    given: dict[str, Any] = dict(
        learning_rate=make_learning_rate(config.optim, batch_size=scale.images, total_steps=total),
        temperature=lambda *_: config.loss.temperature,
    )
    portions, prepare = Portions(scale.images, scale.micro), make_prepare(config)
    programs = make_programs(method, optimizer, prepare, portions=portions, **given)
    in_a_loop = method_of(jax.default_backend() == "cpu")  # as a run has it
    steps = {
        ONE_SHOT: make_train_step(method, optimizer, prepare, **given),
        CACHED: make_cached_step(make_programs(in_a_loop, optimizer, prepare, portions=portions, **given), portions),
    }
    batch, options = a_batch(scale.images, scale.side), None if scale.judged else FAST_COMPILE
    on_device = jax.tree.map(jnp.asarray, batch)
    compiled = {
        name: compile_program(loss_first(step), state, on_device, options=options) for name, step in steps.items()
    }
    return compiled | {HOSTED: _hosted(programs, portions, state, batch)}


def loss_first(step: Callable[..., tuple[Any, dict[str, jax.Array]]]) -> Callable[..., tuple[jax.Array, Any]]:
    """A step whose first result is its loss."""

    def run(*given: Any) -> tuple[jax.Array, Any]:
        state, metrics = step(*given)
        return metrics["loss"], (state, metrics)

    return run


def a_batch(images: int, side: int) -> dict[str, np.ndarray]:
    """Random images on the host."""
    views = np.random.default_rng(0).integers(0, 256, (images, 2, side, side, 3), np.uint8)
    ids = np.arange(images, dtype=np.int32)
    return {"views": views, "id": ids, "label": np.full_like(ids, -1), "epoch": np.zeros_like(ids)}


def _hosted(programs: Programs, portions: Portions, state: TrainState, batch: dict[str, np.ndarray]) -> Program:
    """The four programs and their loop; each run is given a copy of the state, which it uses up."""
    mesh = make_mesh(1)
    state = jax.device_put(state, replicated(mesh))
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
    step = HostedStep(programs, portions, mesh=mesh, like=like)
    largest = max(
        getattr(step.programs, name).lower(*arguments).compile().memory_analysis().temp_size_in_bytes
        for name, arguments in step.arguments(batch)._asdict().items()
    )
    run = loss_first(step)
    return Program(lambda: run(jax.tree.map(jnp.copy, state), batch), temp_bytes=largest)


def _rows(scale: Scale, encoder: str, model: ModelConfig, found: dict[str, Measured]) -> list[Row]:
    """The steps of one encoder."""

    def row(name: str, note: str | None = None) -> Row:
        own = found[name]
        fields: dict[str, Any] = dict(
            n=2 * scale.images, d=model.head_dim, k=None, dtype=model.dtype, work=f"step, {encoder}"
        )
        named = f"{name}, {encoder.split(',')[0]}"
        return Row(named, ms=own.ms, temp_bytes=own.temp_bytes, loss=own.value, note=note, **fields)

    rows = [row(ONE_SHOT)]
    for name, note in (
        (CACHED, f"{scale.micro} images at a time"),
        (HOSTED, "memory: of the largest program"),
    ):
        for kind, bar in ((TIME, BAR), (MEMORY, None)):
            rows.append(compared(row(name, note), kind, found[name], found[ONE_SHOT], "one shot", bar))
    return rows
