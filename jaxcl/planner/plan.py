"""One config planned for one target: its step drawn, compiled, and its bytes, operations and seconds added up."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax

from jaxcl import methods
from jaxcl.blueprint import Blueprint, batch_shapes, draw
from jaxcl.config import Config, ConfigError, mesh_sizes, micro_size, resolve, to_dict
from jaxcl.planner.compiling import Compiler
from jaxcl.planner.cost import costs, flops_of, seconds_of
from jaxcl.planner.facts import expected_facts, expected_teacher
from jaxcl.planner.parts import Stats, peak_parts, share_scratch
from jaxcl.planner.pieces import STEP, Piece, device_bytes, loss_piece, pieces_of, waiting_in
from jaxcl.planner.targets import Target, devices_of

HOST_BATCHES = 2  # the one that is trained on and the next, which is read meanwhile


class Program(NamedTuple):
    """One program of a step, bytes of one device.

    Attributes:
        name: of the program.
        calls: in a real update.
        temp_bytes: scratch memory.
        argument_bytes: what it reads.
        output_bytes: its results.
        alias_bytes: of these, in the place of arguments.
        other_bytes: arrays that are alive beside its arguments.
        peak_bytes: all of it.
        flops: of the matrix products of all calls, over all devices.
        reason: why the compiler refuses it; empty: it does not. Then bytes are 0.
    """

    name: str
    calls: float
    temp_bytes: int
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    other_bytes: int
    peak_bytes: int
    flops: float
    reason: str = ""


class Row(NamedTuple):
    """A config on a target.

    Attributes:
        config: that was planned.
        embeddings: of a batch, views times images.
        devices: of the mesh.
        peak_bytes: of one device, the largest over the programs; None: the compiler refused one.
        peak_program: which one that is.
        limit_bytes: what a program may use of one device.
        host_bytes: of this process: two batches, and what waits on the host.
        parts: bytes of one device at the peak, by part; they sum to it.
        programs: of the step.
        flops: of a real update, over all devices.
        seconds: of a real update at the public rates, so at least; None: they are not known.
        reason: why it does not fit where the compiler refused; else empty.
    """

    config: Config
    embeddings: int
    devices: int
    peak_bytes: int | None
    peak_program: str
    limit_bytes: int
    host_bytes: int
    parts: dict[str, int]
    programs: list[Program]
    flops: float
    seconds: float | None
    reason: str = ""

    @property
    def fits(self) -> bool:
        """Whether the peak is within what a program may use."""
        return self.peak_bytes is not None and self.peak_bytes <= self.limit_bytes


def with_settings(config: Config, settings: dict[str, Any]) -> Config:
    """A config with some settings changed.

    Args:
        config: the run.
        settings: dotted names and values.

    Returns:
        The changed config.

    Raises:
        ConfigError: a rule does not allow them together.

    >>> with_settings(Config(), {"batch.size": 64}).batch.size
    64
    """
    values = to_dict(config)
    for name, value in settings.items():
        *groups, last = name.split(".")
        section = values
        for group in groups:
            section = section[group]
        section[last] = value
    return resolve(values)


def with_embeddings(config: Config, count: int) -> Config:
    """A config whose batch has so many embeddings.

    Args:
        config: the run.
        count: views times images.

    Returns:
        The changed config.

    Raises:
        ConfigError: the views of its method do not divide the count, or a rule does not allow the batch.

    >>> with_embeddings(Config(), 256).batch.size
    128
    """
    views = methods.traits(config.method).views
    if count % views:
        raise ConfigError(
            f"--embeddings={count} is not a multiple of the {views} views of an image; the nearest are "
            f"{count // views * views} and {-(-count // views) * views}"
        )
    return with_settings(config, {"batch.size": count // views})


def device_count(config: Config, given: int | None = None) -> int:
    """How many devices a run has.

    Args:
        config: `mesh.shape`.
        given: how many there are; None: as many as the mesh names, one along an axis of −1.

    Returns:
        Devices of the mesh.

    Raises:
        ConfigError: they do not make the mesh.

    >>> device_count(Config())
    1
    """
    shape = config.mesh.shape
    if given is None:
        given = abs(shape.data) * abs(shape.model)
    data, model = mesh_sizes(shape, given)
    return data * model


def batch_unit(config: Config, devices: int) -> int:
    """What a batch grows by: whole micro-batches, or an image for each device along `data`.

    Args:
        config: the run.
        devices: of the mesh.

    Returns:
        Images.

    >>> batch_unit(Config(), 4)
    4
    """
    data, _ = mesh_sizes(config.mesh.shape, devices)
    splits = config.target.key_splits if methods.traits(config.method).key_norm else 1
    return config.batch.micro or math.lcm(data, splits)


def adjusted(config: Config, target: Target) -> tuple[Config, list[str]]:
    """The config as a target can run it.

    Args:
        config: the run.
        target: the device.

    Returns:
        The config, and a sentence where it had to be changed.
    """
    if target.bfloat16 or config.model.dtype != "bfloat16":
        return config, []
    note = f"{target.name} has no matrix units for bfloat16: planned with model.dtype = 'float16'"
    return with_settings(config, {"model.dtype": "float16"}), [note]


def draw_for(config: Config, target: Target, devices: int = 1) -> Blueprint:
    """A run drawn for a target, with the data and the teacher that it is expected to find.

    Args:
        config: checked; no data and no weights need be there.
        target: the device.
        devices: of the mesh.

    Returns:
        The blueprint.

    Raises:
        ConfigError: what the config or the devices do not allow.
    """
    facts, _ = expected_facts(config)
    find, _ = expected_teacher(config)
    return draw(config, facts, find, devices=devices_of(target, devices))


def plan(config: Config, target: Target, compiler: Compiler, *, devices: int = 1) -> Row:
    """Lowers and compiles the train step of a config for a target.

    Args:
        config: checked; no data and no weights need be there.
        target: the device.
        compiler: for it.
        devices: of the mesh.

    Returns:
        The row.

    Raises:
        ConfigError: what the config or the devices do not allow.
    """
    blueprint = draw_for(config, target, devices)
    pieces = pieces_of(blueprint)
    alone = [loss_piece(blueprint)] if pieces[0].name == STEP else []
    traced = [piece.function.trace(*piece.arguments) for piece in (*pieces, *alone)]
    found = compiler([trace.lower() for trace in traced])
    loss = found[-1] if alone and isinstance(found[-1], Stats) else None
    ops = [costs(trace.jaxpr, target.platform) for trace in traced]
    rows = [_program(*each, loss, blueprint) for each in zip(pieces, found, ops, strict=False)]
    programs = [program for program, _ in rows]
    refused = next((f"{program.name}: {program.reason}" for program in programs if program.reason), "")
    peak, parts = max(rows, key=lambda row: row[0].peak_bytes)
    seconds = None
    if target.rates is not None:
        busy = sum(p.calls * seconds_of(o, target.rates, devices) for p, o in zip(pieces, ops, strict=False))
        seconds = max(busy, _sent(blueprint) / target.rates.host)
    return Row(
        config=config,
        embeddings=config.batch.size * methods.traits(config.method).views,
        devices=devices,
        peak_bytes=None if refused else peak.peak_bytes,
        peak_program=peak.name,
        limit_bytes=target.limit_bytes,
        host_bytes=_host_bytes(blueprint),
        parts={} if refused else parts,
        programs=programs,
        flops=sum(program.flops for program in programs),
        seconds=seconds,
        reason=refused,
    )


def peak_of(blueprint: Blueprint, compiler: Compiler) -> int | None:
    """Bytes of one device at the peak of a step: what `plan` says of it, in less time.

    Encode is left out, a part of replay that needs less.

    Args:
        blueprint: of the run.
        compiler: for them.

    Returns:
        The largest over the programs; None: the compiler refuses one.
    """
    pieces = [piece for piece in pieces_of(blueprint) if piece.name != "encode"]
    found = compiler([piece.function.trace(*piece.arguments).lower() for piece in pieces])
    programs = [_program(piece, stats, None, None, blueprint)[0] for piece, stats in zip(pieces, found, strict=True)]
    return None if any(program.reason for program in programs) else max(program.peak_bytes for program in programs)


def _program(
    piece: Piece, stats: Stats | str, ops: Any, loss: Stats | None, blueprint: Blueprint
) -> tuple[Program, dict[str, int]]:
    """One program and the parts of its peak."""
    flops = piece.calls * flops_of(ops) if ops else 0.0
    if isinstance(stats, str):
        return Program(piece.name, piece.calls, 0, 0, 0, 0, 0, 0, flops, stats), {}
    handed = device_bytes(piece.arguments)
    if piece.name == STEP:
        similarity = loss.temp + loss.arguments if loss else 0
        gradients = device_bytes(blueprint.like.params)  # float32, like them
        scratch = share_scratch(stats.temp, similarity=similarity, gradients=gradients)
    else:
        scratch = {piece.scratch: stats.temp}
    parts = peak_parts(piece.live, handed, stats, scratch=scratch, results=piece.results)
    peak, alive = sum(parts.values()), sum(piece.live.values())
    program = Program(
        piece.name, piece.calls, stats.temp, stats.arguments, stats.outputs, stats.aliased, alive - handed, peak, flops
    )
    return program, parts


def _sent(blueprint: Blueprint) -> int:
    """Bytes that travel from the host to one device in a real update."""
    config = blueprint.config
    batch = device_bytes(batch_shapes(config, blueprint.facts, blueprint.mesh))
    return batch * (1 if config.batch.images == "device" else 2)


def _host_bytes(blueprint: Blueprint) -> int:
    """Bytes of the host: two batches, or two micro-batches that are read twice, and what waits there of every state."""
    shapes = batch_shapes(blueprint.config, blueprint.facts, blueprint.mesh)
    batch = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))
    if blueprint.config.batch.images not in ("device", "host"):  # read when they are needed
        batch = batch * micro_size(blueprint.config) // blueprint.config.batch.size
    return HOST_BATCHES * batch + blueprint.mesh.size * waiting_in(blueprint).total()
