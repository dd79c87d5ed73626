import jax
import numpy as np
import pytest

from jaxcl import mesh as meshes


def test_a_mesh_takes_the_first_devices_in_order():
    mesh = meshes.make_mesh(4, 2)
    assert mesh.shape == {"data": 4, "model": 2}
    assert list(mesh.devices.flat) == jax.devices()


def test_too_few_devices_are_an_error_with_both_numbers():
    with pytest.raises(ValueError, match="needs 16 devices; there are 8"):
        meshes.make_mesh(8, 2)


def test_a_batch_is_split_by_rows_over_the_data_axis():
    mesh = meshes.make_mesh(8)
    batch = jax.device_put(np.arange(16), meshes.along_data(mesh))
    assert [shard.data.tolist() for shard in batch.addressable_shards] == [[2 * i, 2 * i + 1] for i in range(8)]


@pytest.mark.parametrize(
    ("shape", "model", "expected"),
    [
        ((3, 3, 64, 128), 2, (None, None, None, "model")),
        ((768, 64), 2, ("model",)),
        ((4099, 3), 2, ()),
        ((64,), 2, ()),
        ((64, 128), 1, ()),
    ],
)
def test_a_large_parameter_is_split_along_its_longest_axis_that_divides(shape, model, expected):
    assert tuple(meshes.parameter_spec(shape, model)) == expected
