import shutil
import zlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcl.checkpoint import Checkpoints, stored_config
from jaxcl.config import ConfigError
from jaxcl.integrity import checksums
from jaxcl.mesh import along_data, make_mesh, replicated


def a_state(value=0.0):
    return {"w": jnp.arange(12.0).reshape(3, 4) + value, "n": jnp.int32(7), "q": jnp.ones((16, 2), jnp.float16)}


def like(state, sharding=None):
    sharding = sharding or replicated(make_mesh(1))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state)


def save(folder, step, state, score=None, position=None):
    folder.save(step, state, position=position or {}, config={"seed": 0}, score=score)


def test_a_state_and_its_data_position_come_back_bitwise(tmp_path):
    folder = Checkpoints(tmp_path)
    save(folder, 3, a_state(0.1), position={"next": 5})
    folder.wait()
    state, position = folder.restore(3, like(a_state()))
    assert position == {"next": 5}
    jax.tree.map(np.testing.assert_array_equal, state, a_state(0.1))


class Before(NamedTuple):
    w: jax.Array
    empty: None = None


class Since(NamedTuple):
    w: jax.Array
    empty: None = None
    rows: jax.Array | None = None


def test_a_state_of_an_earlier_version_without_a_field_that_is_empty_comes_back(tmp_path):
    folder = Checkpoints(tmp_path)
    save(folder, 3, Before(jnp.arange(4.0)))
    folder.wait()
    found = folder.restore_newest(like(Since(jnp.arange(4.0))))
    assert isinstance(found.state, Since)
    np.testing.assert_array_equal(found.state.w, np.arange(4.0))
    with pytest.raises(ConfigError, match="does not fit"):
        folder.restore_newest(like(Since(jnp.arange(4.0), rows=jnp.int32(1))))


def test_the_newest_two_and_the_best_are_kept(tmp_path):
    folder = Checkpoints(tmp_path, keep=2)
    for step, score in enumerate([0.1, 0.9, 0.2, 0.3, 0.25]):
        save(folder, step, a_state(), score)
    folder.close()
    folder = Checkpoints(tmp_path, keep=2)
    assert sorted(int(p.name) for p in tmp_path.iterdir()) == [1, 3, 4]
    assert (folder.latest(), folder.best()) == (4, 1)


def test_an_unscored_checkpoint_never_counts_as_the_best(tmp_path):
    folder = Checkpoints(tmp_path, keep=1)
    for step, score in enumerate([0.5, None, float("nan")]):
        save(folder, step, a_state(), score)
    folder.wait()
    assert (folder.latest(), folder.best()) == (2, 0)


def test_rows_saved_on_eight_devices_come_back_on_one(tmp_path):
    state = jax.device_put(jnp.arange(32.0).reshape(16, 2), along_data(make_mesh(8)))
    folder = Checkpoints(tmp_path)
    save(folder, 0, {"q": state})
    folder.wait()
    one, _ = folder.restore(0, like({"q": state}))
    np.testing.assert_array_equal(one["q"], state)
    assert len(one["q"].sharding.device_set) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_state_that_is_not_finite_is_never_saved(tmp_path, bad):
    folder = Checkpoints(tmp_path)
    state = a_state() | {"w": jnp.array([1.0, bad])}
    with pytest.raises(ConfigError, match=r"\['w'\] is not finite at step 4"):
        save(folder, 4, state)
    assert folder.latest() is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": jnp.ones((8, 2), jnp.float16)}, r"q is float16\[16, 2\], not float16\[8, 2\]$"),
        ({"n": jnp.float32(7)}, r"n is int32\[\], not float32\[\]$"),
        ({"extra": jnp.ones(2)}, r"extra is missing$"),
        ({"w": {"a": jnp.ones(2)}, "x": jnp.ones(2), "y": jnp.ones(2)}, r"w/a is missing; x .*; y .* and 1 more$"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_the_first_three_arrays_and_stays_where_it_is(
    tmp_path, change, message
):
    folder = Checkpoints(tmp_path)
    save(folder, 0, a_state())
    folder.wait()
    with pytest.raises(ConfigError, match=rf"checkpoint .*0 does not fit this configuration: {message}"):
        folder.restore_newest(like(a_state() | change))
    assert (tmp_path / "0").is_dir()


def two_steps(path):
    """A folder with steps 10 and 20, whose states differ by 10."""
    folder = Checkpoints(path / "checkpoints")
    for step in (10, 20):
        save(
            folder,
            step,
            {"w": jnp.full(5000, step, jnp.float32) + jnp.arange(5000)},
            position={"next": step},
            score=step,
        )
    folder.close()
    return path / "checkpoints"


def largest_file(folder):
    return max((file for file in folder.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)


def flip_a_bit(step):
    file = largest_file(step / "state")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(name):
    def damage(step):
        file = step / name if name else largest_file(step / "state")
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    return damage


def lose(name):
    return lambda step: shutil.rmtree(step / name)


def empty(step):
    shutil.rmtree(step)
    step.mkdir()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flip_a_bit, r"\(w\)"),
        (cut(""), ""),
        (cut("data/metadata"), ""),
        (cut("checksums/metadata"), ""),
        (lose("state"), ""),
        (lose("data"), ""),
        (empty, ""),
    ],
)
def test_a_damaged_checkpoint_is_named_and_kept_aside_and_the_one_before_it_is_used(tmp_path, damage, reason):
    path = two_steps(tmp_path)
    damage(path / "20")
    folder = Checkpoints(path)
    found = folder.restore_newest(like({"w": jnp.ones(5000)}))
    assert (path / "20").is_dir()  # nothing moves before the run is ready to go on
    with pytest.warns(
        UserWarning, match=rf"^checkpoints/20 is damaged .*{reason}.*: going back to step 10; .*damaged-20"
    ):
        folder.set_aside(found)
    assert (found.step, found.position, float(found.state["w"][3])) == (10, {"next": 10}, 13.0)
    assert (path / "damaged-20").is_dir()
    save(folder, 20, {"w": jnp.ones(5000)})
    folder.close()
    assert Checkpoints(path).latest() == 20


def test_where_no_checkpoint_is_whole_all_are_named_and_none_is_moved(tmp_path):
    path = two_steps(tmp_path)
    for step in ("10", "20"):
        flip_a_bit(path / step)
    with pytest.raises(
        ConfigError, match=r"checkpoints/20 is damaged \(w\); checkpoints/10 is damaged \(w\): there is no"
    ):
        Checkpoints(path).restore_newest(like({"w": jnp.ones(5000)}))
    assert {item.name for item in path.iterdir()} == {"10", "20"}


def test_a_checkpoint_of_a_version_without_checksums_is_accepted(tmp_path):
    path = two_steps(tmp_path)
    shutil.rmtree(path / "20" / "checksums")
    assert Checkpoints(path).restore_newest(like({"w": jnp.ones(5000)})).step == 20


def test_a_damaged_score_costs_the_score_alone(tmp_path):
    path = two_steps(tmp_path)
    cut("metrics/metrics")(path / "20")
    with pytest.warns(UserWarning, match="checkpoints/20 has a damaged score"):
        folder = Checkpoints(path)
    assert (folder.best(), folder.restore_newest(like({"w": jnp.ones(5000)})).step) == (10, 20)


def test_checksums_are_those_of_the_bytes_on_any_devices():
    state = {"a": jnp.arange(32.0).reshape(16, 2), "b": jnp.ones((), jnp.bfloat16), "c": jnp.zeros(0)}
    on_eight = {**state, "a": jax.device_put(state["a"], along_data(make_mesh(8)))}
    assert checksums(on_eight) == checksums(state)
    assert checksums(state)["a"] == f"{zlib.crc32(np.arange(32, dtype=np.float32).tobytes()):08x}"
    assert checksums({"a": state["a"].at[3, 1].set(np.nextafter(np.float32(7), 8))}) != checksums({"a": state["a"]})


def test_a_disk_that_is_full_is_one_error_with_the_newest_whole_step(tmp_path, monkeypatch):
    folder = Checkpoints(tmp_path)
    save(folder, 2, a_state())
    folder.wait()

    def full(*_, **__):
        raise ValueError("RESOURCE_EXHAUSTED: No space left on device\nand more")

    monkeypatch.setattr(folder._manager, "wait_until_finished", full)
    with pytest.raises(ConfigError, match=r"^checkpoints cannot be written: .* on device; the newest .* is of step 2$"):
        folder.wait()
    folder.close()
    folder = Checkpoints(tmp_path / "new")
    monkeypatch.setattr(folder._manager, "save", full)
    with pytest.raises(ConfigError, match=r"left on device; there is none yet$"):
        save(folder, 4, a_state())
    folder.close()


def test_the_settings_inside_the_newest_checkpoint_are_found_without_opening_the_folder(tmp_path):
    assert stored_config(tmp_path / "nothing") is None
    path = two_steps(tmp_path)
    shutil.rmtree(path / "20" / "config")
    assert stored_config(path) == {"seed": 0}
    assert {item.name for item in path.iterdir()} == {"10", "20"}
