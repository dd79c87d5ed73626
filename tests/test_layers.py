"""A module imports only from lower rows of the design; rows do not import sideways."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "jaxcl"
ROWS = [
    {"losses", "queue", "augment", "mesh", "config", "interrupt"},
    {"lora", "schedules", "spread", "adapt", "portions", "pixels", "scaling", "hostqueue"},
    {"methods", "models", "data", "probes", "optim", "integrity"},
    {"update"},
    {
        "step",
        "cached",
        "state",
        "checkpoint",
        "report",
        "workdir",
        "assess",
        "pretrained",
        "vectors",
        "usage",
        "profiling",
    },
    {"teacher", "blockwise"},
    {"hosted"},
    {"blueprint"},
    {"build", "command", "planner"},
    {"resume", "finish"},
    {"train", "trained"},
    {"main", "evaluate", "embed", "memory", "bench"},
]
LIGHT = {"losses", "queue", "augment"}


def unit(path):
    """The part of the design that a file belongs to: its package or its own name."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def units_imported(path):
    names = {name for name in imported(ast.parse(path.read_text())) if name.startswith("jaxcl.")}
    return {name.split(".")[1] for name in names} & {name for row in ROWS for name in row}


def row_of(name):
    return next(index for index, row in enumerate(ROWS) if name in row)


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_lower_rows_and_from_its_own_package(path):
    own = unit(path)
    for name in units_imported(path) - {own}:
        assert row_of(name) < row_of(own), f"{own} may not import {name}"


@pytest.mark.parametrize("path", [p for p in FILES if unit(p) in LIGHT], ids=lambda path: str(path.relative_to(ROOT)))
def test_the_loss_the_queue_and_the_augmentation_can_be_lifted_into_another_project(path):
    top = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {name.split(".")[0] for name in imported(ast.Module(top, []))}
    assert names <= {"jax", "numpy", "jaxcl", *sys.stdlib_module_names}


def test_the_parts_for_bare_gpu_machines_need_no_data_library():
    code = (
        "import sys\n"
        "for name in ('tensorflow_datasets', 'grain', 'ml_collections', 'dm_pix', 'orbax', 'PIL', 'tqdm'):\n"
        "    sys.modules[name] = None\n"
        "import jaxcl.losses, jaxcl.queue, jaxcl.augment, jaxcl.models, jaxcl.step, jaxcl.methods\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_module_is_a_drawer():
    assert [str(p.relative_to(ROOT)) for p in FILES if p.read_text().count("\n") > 400] == []
