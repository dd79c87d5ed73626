"""Arrays are read one by one, and never from a pickle; a damaged file is one line."""

import json
import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from test_equal import FIXTURES

from jaxcl.config import ConfigError
from jaxcl.pretrained import open_arrays

VIT = FIXTURES / "hf_vit.safetensors"


def a_file(path, header, data=b""):
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_every_type_and_shape_is_read_as_it_was_written(tmp_path):
    arrays = {
        "half": np.arange(6, dtype=np.float16).reshape(2, 3),
        "scalar": np.float32(2.5),
        "none": np.zeros((0, 3), np.float32),
        "brain": np.asarray(jnp.arange(3, dtype=jnp.bfloat16)),
        "number": np.array([1, -2]),
    }
    kinds, header, data = {"half": "F16", "scalar": "F32", "none": "F32", "brain": "BF16", "number": "I64"}, {}, b""
    for name, array in arrays.items():
        end = len(data) + array.nbytes
        header[name] = {"dtype": kinds[name], "shape": list(array.shape), "data_offsets": [len(data), end]}
        data += array.tobytes()
    found = open_arrays(a_file(tmp_path / "a.safetensors", {**header, "__metadata__": {"format": "pt"}}, data))
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_an_array_is_read_when_it_is_asked_for_and_not_before(tmp_path):
    np.savez(tmp_path / "a.npz", good=np.ones(2), bad=np.array([{}], object))
    arrays = open_arrays(tmp_path / "a.npz")
    np.testing.assert_array_equal(arrays["good"], np.ones(2))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        arrays["bad"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.safetensors", VIT.read_bytes()[:-1], "does not lie where the header says: the file is cut off"),
        ("a.safetensors", VIT.read_bytes()[:40], "not a safetensors file, or cut off in its header"),
        ("a.safetensors", b"", "cannot be read"),
        ("a.npz", b"PK nothing", "cannot be read"),
        ("a.npz", pickle.dumps(1), "cannot be read"),
        ("a.pt", b"", "may hold a pickle, which can run any code: weights are read from .safetensors, .npz, .onnx"),
        ("a.h5", b"", "is none of them"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        open_arrays(tmp_path / name)


@pytest.mark.parametrize(
    "entry", [{"dtype": "F9"}, {"shape": [3]}, {"data_offsets": [0, 99]}, {"data_offsets": [4, 0]}]
)
def test_a_header_that_lies_is_refused(tmp_path, entry):
    good = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    assert open_arrays(a_file(tmp_path / "a.safetensors", {"a": good}, bytes(4)))["a"] == 0
    with pytest.raises(ConfigError, match="cannot be read"):
        open_arrays(a_file(tmp_path / "a.safetensors", {"a": {**good, **entry}}, bytes(4)))


def test_a_folder_stands_for_the_only_file_in_it(tmp_path):
    for message in ("it has none: name the file", "it has a.npz, b.npz: name the file"):
        with pytest.raises(ConfigError, match=message):
            open_arrays(tmp_path)
        for name in ("a.npz", "b.npz"):
            np.savez(tmp_path / name, x=np.ones(1))
    (tmp_path / "b.npz").unlink()
    assert list(open_arrays(tmp_path)) == ["x"]
