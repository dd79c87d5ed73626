"""Every setting has a reader, and every file in configs/ builds, in every variant."""

import ast
import dataclasses
import typing
from collections import Counter
from pathlib import Path

import pytest

from jaxcl import methods
from jaxcl.config import Config, ConfigError, load_config, resolve, to_dict
from jaxcl.config.files import with_variant

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "configs").glob("*.py"))


def leaves(section=Config, path=()):
    hints = typing.get_type_hints(section)
    for item in dataclasses.fields(section):
        if dataclasses.is_dataclass(hints[item.name]):
            yield from leaves(hints[item.name], (*path, item.name))
        else:
            yield section.__name__, (*path, item.name)


def reads_of(tree):
    """What code reads: `….section.field` as (section, field), and `x.field` of an annotated x as (its type, field)."""
    for scope in ast.walk(tree):
        typed = {}
        if isinstance(scope, ast.FunctionDef):
            arguments = [*scope.args.args, *scope.args.kwonlyargs]
            typed = {a.arg: ast.unparse(a.annotation).split(" | ")[0] for a in arguments if a.annotation}
        for node in ast.walk(scope):
            if isinstance(node, ast.Attribute):
                owner = node.value
                if isinstance(owner, ast.Attribute):
                    yield owner.attr, node.attr
                elif isinstance(owner, ast.Name):
                    yield typed.get(owner.id, owner.id), node.attr


def is_check(node):
    """Comparing a setting with another one is not yet using it."""
    return isinstance(node, ast.FunctionDef) and node.name.startswith("check_")


SOURCES = [path for path in (ROOT / "jaxcl").rglob("*.py") if path.name not in ("settings.py", "resolve.py")]
TREES = [ast.Module([n for n in ast.parse(path.read_text()).body if not is_check(n)], []) for path in SOURCES]
READS = {read for tree in TREES for read in reads_of(tree)}
NAMES = Counter(path[-1] for _, path in leaves())


@pytest.mark.parametrize(
    ("section", "path"), list(leaves()), ids=lambda value: ".".join(value) if isinstance(value, tuple) else ""
)
def test_every_setting_has_a_reader(section, path):
    field = path[-1]
    owners = {section, path[-2] if len(path) > 1 else "config"}
    if NAMES[field] == 1 and field not in ("name", "root", "shape"):
        owners |= {owner for owner, name in READS if name == field}
    assert any((owner, field) in READS for owner in owners), f"nothing reads {'.'.join(path)}"


@pytest.mark.parametrize("variant", ["", ":smoke"])
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_resolves_and_survives_json(path, variant):
    config = resolve(load_config(f"{path}{variant}"))
    methods.check(config, has_labels=True, has_captions=True)
    assert resolve(to_dict(config)) == config


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_says_the_command_the_hardware_the_time_and_the_result(path):
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert f"--config=configs/{path.name}" in text
    assert "%" in text
    assert "minutes" in text or "seconds" in text or "Not run yet" in text.replace("\n", " ")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_smoke_variant_only_makes_a_run_shorter(path):
    full, smoke = (to_dict(resolve(load_config(f"{path}{variant}"))) for variant in ("", ":smoke"))
    assert smoke["steps"] < full["steps"]
    assert smoke["method"] == full["method"]
    assert smoke["model"]["encoder"] == full["model"]["encoder"]


def write(tmp_path, body):
    path = tmp_path / "mine.py"
    path.write_text(f"from jaxcl.config import base_config\ndef get_config(variant=''):\n    c = base_config()\n{body}")
    return str(path)


def test_overrides_change_one_setting_each(tmp_path):
    path = write(tmp_path, "    return c\n")
    overrides = [
        "loss.top_k=7",
        "loss.temperature=1",
        "data.max_bad_fraction=0.5",
        "mesh.shape.data=2",
        "data.name=folder:/a=b",
    ]
    config = resolve(load_config(path, overrides))
    assert (config.loss.top_k, config.loss.temperature, config.data.max_bad_fraction) == (7, 1.0, 0.5)
    assert (config.mesh.shape.data, config.data.name) == (2, "folder:/a=b")


def test_a_config_of_a_few_settings_keeps_the_defaults_of_all_others(tmp_path):
    path = tmp_path / "few.py"
    path.write_text(
        "from ml_collections import ConfigDict\ndef get_config(variant=''):\n    return ConfigDict({'steps': 50})\n"
    )
    config = resolve(load_config(str(path), ["loss.top_k=5", "batch.size=2e2"]))
    assert (config.steps, config.loss.top_k, config.batch.size, config.seed) == (50, 5, 200, 0)


def test_an_optional_setting_can_be_emptied_again(tmp_path):
    path = write(tmp_path, "    c.loss.top_k = 3\n    return c\n")
    assert resolve(load_config(path, ["loss.top_k=none"])).loss.top_k is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loss.tempratur=1", "unknown setting 'loss.tempratur'; did you mean 'loss.temperature'"),
        ("los.temperature=1", "unknown setting 'los.temperature'; did you mean 'loss.temperature'"),
        ("lr=0.1", "unknown setting 'lr'; did you mean 'optim.base_lr'"),
        ("loss.size=3", "unknown setting 'loss.size'; did you mean 'queue.size' or 'batch.size'"),
        ("loss.top_k=all", "'all' is not a value of type int, and --config.loss.top_k= leaves it empty"),
        ("seed.x=1", "seed has no parts"),
        ("batch=3", "batch is a group of settings"),
        ("batch.size=0.5", "batch.size = '0.5' is not a value of type int"),
        ("data.skin_tones=tru", "data.skin_tones = 'tru' is not true or false; did you mean true"),
        ("loss.top_k", "needs a value"),
        ("steps=99999999999", "steps = 99999999999 is above the largest valid value 2147483647"),
        ("loss.temperature=nan", "loss.temperature = nan is not a finite number; the default is 0.2"),
    ],
)
def test_an_override_that_cannot_work_is_named(tmp_path, override, message):
    with pytest.raises(ConfigError, match=message):
        resolve(load_config(write(tmp_path, "    return c\n"), [override]))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    c.loss.tempratur = 1\n    return c\n", "unknown setting 'loss.tempratur'"),
        ("    c.loss.top_k = 'many'\n    return c\n", r"mine.py fails: TypeError"),
        ("    return 1 / 0\n", "mine.py fails: ZeroDivisionError: division by zero"),
        ("    raise SystemExit(3)\n", "mine.py fails: SystemExit: 3"),
        ("    return None\n", "mine.py: get_config returned NoneType, not a ConfigDict"),
        ("    return c c\n", "mine.py fails: SyntaxError"),
    ],
)
def test_a_config_file_that_fails_is_named_with_the_reason(tmp_path, body, message):
    with pytest.raises(ConfigError, match=message):
        resolve(load_config(write(tmp_path, body)))


def test_a_file_that_is_not_there_is_named_with_the_nearest_that_is():
    with pytest.raises(ConfigError, match=r"simclr_strem.py is not a file; did you mean '.*simclr_stream.py'"):
        load_config(str(ROOT / "configs" / "simclr_strem.py"))


def test_an_unknown_variant_is_named_with_the_known_ones():
    with pytest.raises(ConfigError, match="variant 'smok' is unknown; did you mean 'smoke'"):
        load_config(str(CONFIGS[0]) + ":smok")


def test_a_variant_is_a_handful_of_differences():
    values = with_variant(settings_dict(), "tiny", tiny={"batch.size": 8, "steps": 25})
    assert (values.batch.size, values.steps) == (8, 25)


def settings_dict():
    from jaxcl.config import base_config

    return base_config()


def test_the_readers_of_the_test_above_are_found_in_code_not_in_comments():
    tree = ast.parse("def f(config: DataConfig):\n    # config.root\n    return config.workers")
    assert ("DataConfig", "workers") in set(reads_of(tree))
    assert ("DataConfig", "root") not in set(reads_of(tree))
