import sys

import numpy as np
import pytest

from jaxcl.config import ConfigError
from jaxcl.vectors import check_writable, write_vectors

NAMES = ["a/1.png", "b, with a comma.png", "ü\\xff.png"]
VECTORS = np.array([[0.1, -1e-30], [1 / 3, 3e38], [0.0, -7.5]], np.float32)


def read(path):
    """Names and vectors as another program would read them."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return arrays["path"].tolist(), arrays["features"]
    if path.suffix == ".csv":
        import csv

        with path.open(newline="", encoding="utf-8") as file:
            (first, *columns), *rows = csv.reader(file)
        assert [first, *columns] == ["path", "f0", "f1"]
        return [row[0] for row in rows], np.array([row[1:] for row in rows], np.float32)
    table = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet").read_table(path)
    return table["path"].to_pylist(), np.array(table["features"].to_pylist(), np.float32)


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".npz"])
def test_names_and_every_bit_of_the_vectors_come_back(tmp_path, ending):
    if ending == ".parquet":
        pytest.importorskip("pyarrow", reason="needs the extra parquet")
    path = tmp_path / f"out{ending}"
    write_vectors(path, NAMES, VECTORS)
    names, vectors = read(path)
    assert names == NAMES
    np.testing.assert_array_equal(vectors, VECTORS)
    assert vectors.dtype == np.float32
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


def test_a_file_that_cannot_be_finished_leaves_the_old_one_and_nothing_else(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("old")
    with pytest.raises(ValueError, match="zip"):
        write_vectors(path, NAMES[:2], VECTORS)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.txt", r"out.txt ends with '.txt'; the formats are .parquet, .csv, .npz"),
        ("out", r"out has no ending; the formats are .parquet, .csv, .npz"),
        ("folder.csv", r"folder.csv is a folder; name a file in it"),
        ("there.npz", r"there.npz is there already; add --overwrite to replace it"),
        ("nowhere/out.csv", r"there is no folder .*nowhere"),
    ],
)
def test_what_could_not_be_written_is_said_first(tmp_path, name, message):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "there.npz").touch()
    with pytest.raises(ConfigError, match=message):
        check_writable(tmp_path / name, overwrite=False)


def test_a_file_may_be_replaced_on_request_and_endings_may_be_large(tmp_path):
    (tmp_path / "there.NPZ").touch()
    check_writable(tmp_path / "there.NPZ", overwrite=True)


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"needs pyarrow: pip install 'jaxcl\[parquet\]'; .csv and .npz need nothing"):
        check_writable(tmp_path / "out.parquet", overwrite=False)
