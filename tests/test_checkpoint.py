import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcl.checkpoint import Checkpoints
from jaxcl.config import ConfigError
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


def test_another_shape_is_refused_by_name(tmp_path):
    folder = Checkpoints(tmp_path)
    save(folder, 0, a_state())
    folder.wait()
    with pytest.raises(ConfigError, match=r"checkpoint .*0.*"):
        folder.restore(0, like(a_state() | {"q": jnp.ones((8, 2), jnp.float16)}))


def test_a_tree_with_another_leaf_is_refused(tmp_path):
    folder = Checkpoints(tmp_path)
    save(folder, 0, a_state())
    folder.wait()
    with pytest.raises(ConfigError, match="cannot be restored"):
        folder.restore(0, like(a_state() | {"extra": jnp.ones(2)}))
