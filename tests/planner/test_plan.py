"""A config planned without its data: every method and mode is drawn and traced, a few are compiled for this CPU."""

from pathlib import Path

import jax
import numpy as np
import pytest

from jaxcl import build as building
from jaxcl import methods
from jaxcl.blueprint import draw
from jaxcl.build import build
from jaxcl.config import Config, ConfigError, load_config, resolve
from jaxcl.data import make_loader
from jaxcl.planner.compiling import Compiler, why
from jaxcl.planner.facts import assumptions, expected_facts, expected_teacher
from jaxcl.planner.parts import Stats
from jaxcl.planner.pieces import STEP, device_bytes, loss_piece, pieces_of, waiting_in
from jaxcl.planner.plan import (
    adjusted,
    batch_unit,
    device_count,
    draw_for,
    peak_of,
    plan,
    with_embeddings,
    with_settings,
)
from jaxcl.planner.targets import Rates, Target

ROOT = Path(__file__).parents[2]
CPU = Target("cpu", "cpu", 1 << 34, 1.0, Rates(dict.fromkeys(("tf32", "float32"), 1e9), 1e9, 1e9))
TINY = {
    "data.name": "folder:/nowhere",
    "data.image_size": 16,
    "batch.size": 16,
    "augment.blur_prob": 0.0,  # less to compile
    "augment.jitter_prob": 0.0,
    "augment.grayscale_prob": 0.0,
    "model.head_hidden": 16,
    "model.head_dim": 8,
    "model.predictor_hidden": 16,
    "text.width": 16,
    "text.depth": 1,
    "text.length": 8,
    "text.heads": 2,
}
OF = {
    "moco_v2": {"queue.size": 32, "target.key_splits": 2},
    "distill": {"distill.teacher": "/nowhere", "queue.size": 32},
}
MODES = {
    "accumulate": {"batch.micro": 8},
    "cached": {"batch.micro": 8, "batch.mode": "cached"},
    "hosted": {"batch.micro": 8, "batch.mode": "cached", "batch.images": "host"},
}


def tiny(method="simclr", mode="hosted", **settings):
    own = {name: value for name, value in TINY.items() if not name.startswith("text.") or method == "clip"}
    own = {k: v for k, v in own.items() if not k.startswith("model.pred") or methods.traits(method).predictor}
    return with_settings(Config(method=method), {**own, **OF.get(method, {}), **MODES[mode], **settings})


def drawn(config, devices=1):
    return draw(config, expected_facts(config)[0], expected_teacher(config)[0], devices=jax.devices()[:devices])


def compiler():
    return Compiler({})


@pytest.mark.parametrize("method", methods.available())
def test_every_method_is_drawn_and_traced_without_data_or_teacher(method):
    pieces = pieces_of(drawn(tiny(method)))
    assert [piece.name for piece in pieces] == ["encode", "loss", "replay", "update"]
    for piece in pieces:
        piece.function.trace(*piece.arguments)
        assert sum(piece.live.values()) >= device_bytes(piece.arguments)


@pytest.mark.parametrize("method", methods.available())
def test_the_loss_alone_is_traced_for_every_method(method):
    piece = loss_piece(drawn(tiny(method, "accumulate")))
    gradient = jax.eval_shape(piece.function, *piece.arguments)
    assert jax.tree.map(np.shape, gradient) == jax.tree.map(np.shape, piece.arguments[0])
    assert {len(x) for x in jax.tree.leaves(gradient)} == {8}  # a micro-batch is a problem of its own


@pytest.mark.parametrize("mode", MODES)
def test_parts_sum_to_the_peak_and_the_peak_is_the_largest_program(mode):
    row, peak = plan(tiny(mode=mode), CPU, compiler()), peak_of(draw_for(tiny(mode=mode), CPU), compiler())
    assert sum(row.parts.values()) == row.peak_bytes == max(program.peak_bytes for program in row.programs) == peak
    assert all(value >= 0 for value in row.parts.values())
    assert row.fits
    assert row.flops > 0
    assert row.seconds > 0
    assert row.host_bytes == 2 * 16 * (2 * 16 * 16 * 3 + 4 * 4)


def test_a_step_that_is_one_program_needs_what_the_real_one_does():
    config = tiny(mode="accumulate", **{"data.name": "emoji", "mesh.shape.data": 1})
    parts = build(config)
    loader = make_loader(
        parts.splits.train, config=config.data, augment=config.augment, batch=config.batch.size, seed=config.seed
    )
    batch = next(loader)
    loader.close()
    memory = parts.train_step.lower(parts.like, batch).compile().memory_analysis()
    row = plan(config, CPU, compiler())
    (program,) = row.programs
    assert program.temp_bytes == memory.temp_size_in_bytes
    assert program.argument_bytes == memory.argument_size_in_bytes
    unread = 2 * 16 * 4  # "label" and "bad" are alive, and nothing of the step reads them
    new = memory.output_size_in_bytes - memory.alias_size_in_bytes
    assert program.peak_bytes == memory.temp_size_in_bytes + memory.argument_size_in_bytes + new + unread


def test_in_hosted_mode_activations_do_not_grow_with_the_batch_and_the_loss_grows_with_it():
    small, large = (plan(tiny(**{"batch.size": size, "loss.block_size": 8}), CPU, compiler()) for size in (64, 128))
    small, large = ({program.name: program for program in row.programs} for row in (small, large))
    assert large["replay"].temp_bytes <= small["replay"].temp_bytes * 1.05
    assert large["loss"].argument_bytes == pytest.approx(2 * small["loss"].argument_bytes, rel=0.05)
    assert large["loss"].temp_bytes < 3 * small["loss"].temp_bytes
    assert large["replay"].peak_bytes - small["replay"].peak_bytes == pytest.approx(64 * 2 * 8 * 4, rel=0.2)


def test_on_two_devices_each_has_half_of_the_batch_and_the_work_is_the_same():
    one, two = (pieces_of(drawn(tiny(mode="cached"), devices)) for devices in (1, 2))
    assert one[0].live["batch"] == 2 * two[0].live["batch"]
    assert one[0].live["parameters"] == two[0].live["parameters"]


def test_arrays_alive_beside_the_gradients_of_a_micro_batch_are_the_optimizer_and_the_next_micro_batch():
    blueprint = drawn(tiny(**{"queue.size": 32}))
    replay = next(piece for piece in pieces_of(blueprint) if piece.name == "replay")
    beside = sum(replay.live.values()) - device_bytes(replay.arguments)
    state = blueprint.like
    waiting = device_bytes((state.opt_state, state.queue, state.updates, state.batch_stats, state.batch_stats))
    assert beside >= waiting + 8 * 2 * 16 * 16 * 3
    assert replay.live["gradients"] == device_bytes(state.params)


def test_low_rank_adaptation_has_small_gradients_and_moments():
    full, low = (drawn(tiny(**settings)) for settings in ({}, {"lora.rank": 2}))
    full, low = (next(p for p in pieces_of(drawing) if p.name == "replay").live for drawing in (full, low))
    assert low["gradients"] < full["gradients"] / 3
    assert low["optimizer"] < full["optimizer"] / 3
    assert low["parameters"] > full["parameters"]


def test_no_data_is_opened(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("opened")

    monkeypatch.setattr(building, "open_source", refuse)
    monkeypatch.setattr("jaxcl.data.sources._open", refuse)
    assert drawn(tiny()).like.params


def test_what_the_compiler_refuses_is_a_row_that_does_not_fit():
    class Refusing(Compiler):
        def _compile(self, program):
            return "ran out of memory: used 32G of 15.75G"

    row = plan(tiny(), CPU, Refusing({}))
    assert (row.fits, row.peak_bytes, row.parts) == (False, None, {})
    assert row.reason == "encode: ran out of memory: used 32G of 15.75G"
    assert peak_of(draw_for(tiny(), CPU), Refusing({})) is None


def test_a_program_whose_text_is_the_same_is_compiled_once():
    compile_ = compiler()
    lowered = [jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((size,), np.float32)) for size in (3, 3, 4)]
    first, again, other = compile_(lowered)
    assert compile_.compiled == 2
    assert first == again
    assert isinstance(other, Stats)


def test_what_the_compiler_says_is_one_line():
    assert why("INTERNAL: a\n b") == "a b"


def test_a_card_without_bfloat16_is_planned_in_float16():
    config, notes = adjusted(tiny(**{"model.dtype": "bfloat16"}), CPU._replace(name="t4-16gb", bfloat16=False))
    assert config.model.dtype == "float16"
    assert "t4-16gb" in notes[0]
    assert adjusted(tiny(), CPU._replace(bfloat16=False)) == (tiny(), [])


@pytest.mark.parametrize(
    ("shape", "given", "count"), [((-1, 1), None, 1), ((4, 2), None, 8), ((-1, 2), 8, 8), ((-1, 2), None, 2)]
)
def test_the_mesh_says_how_many_devices_there_are(shape, given, count):
    config = with_settings(Config(), {"mesh.shape.data": shape[0], "mesh.shape.model": shape[1]})
    assert device_count(config, given) == count


@pytest.mark.parametrize(("method", "views"), [("simclr", 2), ("clip", 1)])
def test_embeddings_are_views_times_images(method, views):
    config = with_embeddings(Config(method=method), 64)
    assert config.batch.size * views == 64


def test_an_odd_number_of_embeddings_is_an_error_with_the_nearest():
    with pytest.raises(ConfigError, match=r"--embeddings=65 is not a multiple of the 2 views .* 64 and 66"):
        with_embeddings(Config(), 65)


def test_a_batch_grows_by_whole_micro_batches_or_an_image_a_device():
    assert batch_unit(tiny(), 4) == 8
    assert batch_unit(Config(), 4) == 4


def test_guesses_about_data_tokens_and_teacher_are_said():
    config = tiny("clip", **{"text.tokenizer": "/nowhere/tokenizer.json"})
    assert expected_facts(config)[0].vocab == 49_411
    assert len(assumptions(config)) == 1
    assert assumptions(resolve({"data": {"name": "tfds:mnist"}}))[0].endswith("are taken to have 1 channel")
    assert any("as large as its student" in note for note in assumptions(tiny("distill")))
    assert expected_facts(resolve({"data": {"name": "fashion_mnist"}}))[0].channels == 1
    facts, notes = expected_facts(resolve({"data": {"name": "folder:/nowhere/my_mnist"}}))
    assert (facts.channels, notes) == (3, [])


def test_what_waits_on_the_host_takes_no_memory_of_the_device():
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    here = jax.ShapeDtypeStruct((3,), np.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    there = jax.ShapeDtypeStruct((5,), np.float32, sharding=sharding)
    assert device_bytes([here, there]) == 12


def test_a_step_in_one_program_has_one_piece_and_its_name():
    assert [piece.name for piece in pieces_of(drawn(tiny(mode="cached")))] == [STEP]


@pytest.mark.parametrize("variant", ["", ":lora"])
def test_the_large_batch_of_a_vit_is_drawn_without_its_data_and_without_memory(variant):
    config = resolve(load_config(f"{ROOT / 'configs' / 'vit_b32_stream.py'}{variant}"))
    pieces = {piece.name: piece for piece in pieces_of(drawn(config))}
    assert pieces["replay"].calls == 128
    assert pieces["loss"].live["similarity_and_selection"] == 8192 * 512 * 4
    assert (pieces["replay"].live["gradients"] < 2**23) is bool(variant)


@pytest.mark.parametrize("known", [True, False], ids=["a device with memories", "a device that is not there"])
def test_what_waits_on_the_host_is_on_the_device_for_its_own_program_alone(monkeypatch, known):
    if not known:  # JAX forgets the kind of memory of a sharding for a device without any
        for module in ("state", "hostqueue"):
            monkeypatch.setattr(f"jaxcl.{module}.on_host", lambda sharding: sharding)
    sizes = {"queue.size": 70_000, "model.head_dim": 32}  # three blocks of 32,768 rows, the last not full
    config = tiny("simclr", "hosted", **sizes, **{"queue.offload": True, "optim.offload": True})
    pieces = {piece.name: piece for piece in pieces_of(drawn(config))}
    blueprint, block = drawn(config), 32_768 * 32 * 2
    moments = waiting_in(blueprint)["optimizer"]
    assert moments > device_bytes(blueprint.like.params)  # two of each parameter, or one and a count
    assert waiting_in(blueprint)["queue"] == 3 * block
    for name, piece in pieces.items():
        assert (piece.live["optimizer"] >= moments) == (name == "update")
        blocks = 2 * block if name in ("loss", "queue visit", "queue pull", "queue write") else 0
        assert blocks <= piece.live["queue"] < blocks + block  # beside groups and counters
        assert sum(piece.live.values()) >= device_bytes(piece.arguments)
    assert pieces["queue visit"].calls == pieces["queue pull"].calls == 2
