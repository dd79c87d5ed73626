"""Arrays are read one by one, and never from a pickle; a damaged file is one line."""

import io
import json
import pickle
import warnings
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest
from test_equal import FIXTURES

from jaxcl.config import ConfigError
from jaxcl.pretrained import open_arrays
from jaxcl.pretrained.files import Arrays

VIT = FIXTURES / "hf_vit.safetensors"


def a_file(path, header, data=b""):
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def as_npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def as_npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


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
    with pytest.raises(ConfigError, match=r"bad of .*a.npz cannot be read: .*allow_pickle=False"):
        arrays["bad"]
    with pytest.raises(KeyError):
        arrays["nowhere"]


def test_whether_a_name_is_there_is_told_without_reading_its_array():
    reads = []
    arrays = Arrays(VIT, {"a": lambda: reads.append("a") or np.ones(1)})
    assert ("a" in arrays, "b" in arrays, arrays.get("b")) == (True, False, None)
    assert reads == []
    assert arrays["a"] == 1
    assert reads == ["a"]


@pytest.mark.parametrize("compressed", [True, False])
def test_a_flipped_byte_of_an_array_is_one_line_and_the_archive_is_closed(tmp_path, compressed):
    file, save = tmp_path / "a.npz", np.savez_compressed if compressed else np.savez
    save(file, whole=np.ones(2), a=np.random.default_rng(0).normal(size=300))
    content = bytearray(file.read_bytes())
    for place in range(len(content) // 2, len(content) // 2 + 4):
        content[place] ^= 0xFF
    file.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        arrays = open_arrays(file)
        np.testing.assert_array_equal(arrays["whole"], np.ones(2))
        with pytest.raises(ConfigError, match=r"^a of .*a.npz cannot be read: [^\n]+$"):
            arrays["a"]


def test_a_member_of_an_archive_that_is_no_array_is_refused_when_it_is_asked_for(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.ones(1))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("readme.txt", "hello")
    arrays = open_arrays(tmp_path / "a.npz")
    assert arrays["a"] == 1
    with pytest.raises(ConfigError, match=r"readme.txt of .* cannot be read: it is no array"):
        arrays["readme.txt"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.safetensors", VIT.read_bytes()[:-1], "does not lie where the header says: the file is cut off"),
        ("a.safetensors", VIT.read_bytes()[:40], "not a safetensors file, or cut off in its header"),
        ("a.safetensors", b"", "cannot be read"),
        ("a.npz", b"PK nothing", "cannot be read"),
        ("a.npz", pickle.dumps(1), "it is no archive of arrays with names"),
        ("a.npz", as_npz(a=np.ones(3))[:-30], "or is cut off"),
        ("a.npz", as_npy(np.zeros(3)), "it is no archive of arrays with names, as numpy.savez writes, or is cut off"),
        ("a.pt", b"", "may hold a pickle, which can run any code: weights are read from .safetensors, .npz, .onnx"),
        ("a.h5", b"", "is none of them"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        open_arrays(tmp_path / name)


@pytest.mark.parametrize(
    "header", ['"abc"', "5", "null", "[1]", "[" * 200_000, "{", '{"a": "b"}', "{\xff}"], ids=range(8)
)
def test_a_header_that_is_no_object_of_arrays_is_refused(tmp_path, header):
    text = header.encode("latin1")
    (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(64))
    with pytest.raises(ConfigError, match=r"^[^\n]*a.safetensors cannot be read: [^\n]+$"):
        open_arrays(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F9"},
        {"dtype": []},
        {"shape": [3]},
        {"shape": [1.0]},
        {"shape": "1"},
        {"shape": [-1, -1]},
        {"data_offsets": [0, 99]},
        {"data_offsets": [4, 0]},
        {"data_offsets": 4},
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, entry):
    good = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    assert open_arrays(a_file(tmp_path / "a.safetensors", {"a": good}, bytes(4)))["a"] == 0
    with pytest.raises(ConfigError, match="cannot be read"):
        open_arrays(a_file(tmp_path / "a.safetensors", {"a": {**good, **entry}}, bytes(4)))


def test_a_type_that_is_not_read_is_named_with_one_that_is(tmp_path):
    file = a_file(
        tmp_path / "a.safetensors", {"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}, bytes(4)
    )
    with pytest.raises(ConfigError, match="a has type F8_E4M3, which is not read; save it as float16"):
        open_arrays(file)


def test_a_folder_stands_for_the_only_file_in_it(tmp_path):
    for message in ("it has none: name the file", "it has a.npz, b.npz: name the file"):
        with pytest.raises(ConfigError, match=message):
            open_arrays(tmp_path)
        for name in ("a.npz", "b.npz"):
            np.savez(tmp_path / name, x=np.ones(1))
    (tmp_path / "b.npz").unlink()
    assert list(open_arrays(tmp_path)) == ["x"]
