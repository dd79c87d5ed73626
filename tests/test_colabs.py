from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from jaxcl.config import load_config, resolve

NOTEBOOKS = sorted((Path(__file__).parents[1] / "colabs").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_without_outputs(path):
    cells = nbformat.read(path, as_version=4).cells
    assert [cell for cell in cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)] == []


def test_the_quickstart_is_the_default_run_as_its_text_says():
    notebook = nbformat.read(Path(__file__).parents[1] / "colabs" / "quickstart.ipynb", as_version=4)
    cell = next(cell.source for cell in notebook.cells if "load_config(" in cell.source)
    names = {}
    exec(cell.replace("../configs", str(Path(__file__).parents[1] / "configs")), names)
    assert names["config"] == resolve(load_config("configs/simclr_stream.py"))


@pytest.mark.slow(reason="a minute: a kernel of its own, which compiles everything again")
def test_the_quickstart_runs_from_the_first_cell_to_the_last(tmp_path):
    path = Path(__file__).parents[1] / "colabs" / "quickstart.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for old, new in {"simclr_stream.py": "simclr_stream.py:smoke", "../runs/quickstart": str(tmp_path / "run")}.items():
        assert sum(old in cell.source for cell in notebook.cells) >= 1
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.source = cell.source.replace(old, new)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": path.parent}}).execute()
    assert (tmp_path / "run" / "summary.json").exists()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert "linear_top1" in outputs[-1]["text"]
