"""A teacher is found in the folder of its run, checked, and read as its own images were normalised."""

import functools
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_options import FAST_COMPILE

from jaxcl import teacher as teachers
from jaxcl.augment import normalize
from jaxcl.build import build
from jaxcl.checkpoint import Checkpoints
from jaxcl.config import ConfigError, load_config, resolve, to_dict
from jaxcl.data.fashion_mnist import DEBIAN_FOLDER
from jaxcl.main import main
from jaxcl.mesh import make_mesh, replicated
from jaxcl.methods.parts.networks import make_init
from jaxcl.models import make_encoder, make_head
from jaxcl.teacher import check_apart, find_teacher
from jaxcl.train import train
from jaxcl.workdir import write_json

ROOT = Path(__file__).parents[1]
SIDE, CHANNELS = 8, 3
EVERYWHERE = replicated(make_mesh(1))


def settings(**changes):
    values = {
        "data": {"image_size": SIDE},
        "model": {"head_hidden": 6, "head_dim": 4},
        **changes,
    }
    return resolve(values)


def a_student(folder, **distill):
    return resolve({**to_dict(settings()), "method": "distill", "distill": {"teacher": str(folder), **distill}})


def a_run(folder, config=None, channels=CHANNELS, change=lambda state: state):
    """The folder of a run whose parameters are random and which trained a predictor too."""
    config = config or settings()
    chain = {"encoder": make_encoder(config.model), "head": make_head(config.model)}
    views = jnp.zeros((1, 2, config.data.image_size, config.data.image_size, channels))
    shapes = jax.eval_shape(make_init(chain), jax.random.key(0), views)
    rng = np.random.default_rng(0)
    variables = jax.tree.map(lambda x: rng.uniform(size=x.shape).astype(x.dtype), shapes)
    variables["params"]["predictor"] = {"kernel": np.ones((2, 2), np.float32)}
    store = Checkpoints(folder / "checkpoints")
    for step in (3, 12):
        store.save(step, change({"step": np.int32(step), **variables}), position={}, config={}, score=None)
    store.close()
    write_json(folder / "config.json", to_dict(config))
    del variables["params"]["predictor"]
    return variables


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder, and what lies there."""
    folder = tmp_path_factory.mktemp("teacher")
    return folder, a_run(folder)


def load(source):
    return source.load(jax.tree.map(lambda _: EVERYWHERE, source.like))


def listing(folder):
    return sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*"))


def test_encoder_and_head_of_the_newest_checkpoint_are_read_and_nothing_is_written(run):
    folder, variables = run
    before = listing(folder)
    source = find_teacher(a_student(folder), channels=CHANNELS)
    jax.tree.map(np.testing.assert_array_equal, load(source), variables)
    assert jax.tree.map(np.shape, source.like) == jax.tree.map(np.shape, variables)
    assert source.teacher.feature_dim == 512
    assert listing(folder) == before


def test_a_teacher_that_is_asked_for_features_alone_brings_no_head_and_may_embed_otherwise(run):
    student = a_student(run[0], similarity_weight=0.0)
    student = resolve({**to_dict(student), "model": {"head_dim": 9}})
    source = find_teacher(student, channels=CHANNELS)
    assert set(load(source)["params"]) == {"encoder"}


def test_a_teacher_sees_pixels_as_its_own_run_normalised_them_and_uses_running_statistics(tmp_path):
    config = settings(data={"image_size": SIDE, "mean": 0.3, "std": 0.7})
    a_run(tmp_path, config)
    student = a_student(tmp_path)
    source = find_teacher(student, channels=CHANNELS)
    rng = np.random.default_rng(0)
    pixels = jnp.asarray(rng.uniform(size=(5, SIDE, SIDE, CHANNELS)), jnp.float32)
    variables = jax.tree.map(lambda x: rng.uniform(0.1, 1, x.shape).astype(np.float32), source.like)

    @functools.partial(jax.jit, compiler_options=FAST_COMPILE)
    def features(variables, pixels):
        as_student = normalize(pixels, student.data.mean, student.data.std)
        own = {kind: part["encoder"] for kind, part in variables.items()}
        expected = make_encoder(config.model).apply(own, normalize(pixels, 0.3, 0.7), train=False)
        return source.teacher.apply(variables, as_student)["encoder"], expected

    np.testing.assert_allclose(*features(variables, pixels), rtol=1e-4)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=rf"distill.teacher = '{tmp_path}/none' is not a folder; train a teacher"):
        find_teacher(a_student(tmp_path / "none"), channels=CHANNELS)


def test_a_home_folder_is_expanded_and_that_of_nobody_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x").symlink_to(run[0])
    assert find_teacher(a_student("~/x"), channels=CHANNELS).teacher.feature_dim == 512
    with pytest.raises(ConfigError, match=r"distill.teacher = '~nobody-here/x' is not a folder: .*determine home"):
        find_teacher(a_student("~nobody-here/x"), channels=CHANNELS)


@pytest.mark.parametrize("flags", [{}, {"overwrite": True}, {"resume": True}])
@pytest.mark.parametrize("link", ["folder", "checkpoints", None])
def test_a_student_in_the_folder_of_its_teacher_is_refused_before_anything_is_deleted(tmp_path, flags, link):
    folder, workdir = tmp_path / "teacher", tmp_path / "run"
    (folder / "checkpoints" / "3").mkdir(parents=True)
    write_json(folder / "config.json", to_dict(settings()))
    if link == "folder":
        workdir.symlink_to(folder)
    elif link:
        workdir.mkdir()
        (workdir / "checkpoints").symlink_to(folder / "checkpoints")
    workdir = workdir if link else folder / ".." / "teacher"
    before = listing(tmp_path)
    with pytest.raises(ConfigError, match=rf"distill.teacher = '{folder}' is what --workdir={workdir} would write to"):
        train(a_student(folder), workdir, **flags)
    assert listing(tmp_path) == before


def test_a_student_beside_its_teacher_is_not_in_its_folder(tmp_path):
    check_apart(a_student(tmp_path / "run" / "teacher"), tmp_path / "run")
    check_apart(settings(), tmp_path)


def test_a_folder_without_settings_or_without_a_checkpoint_is_named(tmp_path):
    with pytest.raises(ConfigError, match=rf"'{tmp_path}' cannot be a teacher: {tmp_path}/config.json cannot be read"):
        find_teacher(a_student(tmp_path), channels=CHANNELS)
    write_json(tmp_path / "config.json", to_dict(settings()))
    (tmp_path / "checkpoints" / "7.orbax-checkpoint-tmp-1").mkdir(parents=True)
    with pytest.raises(ConfigError, match=rf"distill.teacher = '{tmp_path}' has no checkpoint"):
        find_teacher(a_student(tmp_path), channels=CHANNELS)


def test_settings_that_no_longer_resolve_are_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model": {"encodr": "conv"}}))
    with pytest.raises(ConfigError, match=r"cannot be a teacher: unknown setting 'model.encodr'; did you mean"):
        find_teacher(a_student(tmp_path), channels=CHANNELS)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": {"image_size": 16}}, r"trained on images of 8 pixels, and data.image_size = 16: they must be the"),
        ({"model": {"head_dim": 5}}, r"embeddings of 4 numbers, and model.head_dim = 5: they must be the same"),
    ],
)
def test_images_and_embeddings_that_differ_are_named_with_both_values(run, values, message):
    student = resolve({**to_dict(a_student(run[0])), **values})
    with pytest.raises(ConfigError, match=message):
        find_teacher(student, channels=CHANNELS)


def test_channels_that_differ_are_named_with_both_values(run):
    with pytest.raises(ConfigError, match=r"trained on images of 3 channels, and those of data.name have 1"):
        find_teacher(a_student(run[0]), channels=1)


def test_a_tree_that_its_settings_do_not_make_is_named_leaf_by_leaf(tmp_path):
    def change(state):
        encoder = {**state["params"]["encoder"], "extra": {"kernel": np.ones(3, np.float32)}}
        encoder["conv2"] = {"kernel": np.ones((3, 3, 32, 16), np.float32)}
        del encoder["conv3"]
        return {**state, "params": {**state["params"], "encoder": encoder}}

    a_run(tmp_path, change=change)
    message = (
        r"distill.teacher = '.*': step 12 is not what its config.json makes: "
        r"params/encoder/conv2/kernel is float32\[3, 3, 32, 16\], not float32\[3, 3, 32, 32\]; "
        r"params/encoder/conv3/kernel is missing; params/encoder/extra/kernel is not expected$"
    )
    with pytest.raises(ConfigError, match=message):
        find_teacher(a_student(tmp_path), channels=CHANNELS)


def flip_a_bit(step):
    """In the largest array of a checkpoint."""
    file = max((file for file in (step / "state").rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut_the_list(step):
    """Of its arrays."""
    (step / "state" / "_METADATA").write_text('{"tree_metadata": {"a": {}}}')


@pytest.mark.parametrize(
    ("damage", "reason"),
    [(flip_a_bit, r"\(params/encoder/\S+\)"), (cut_the_list, r"\(.+\)")],
)
def test_a_damaged_teacher_is_named_and_the_checkpoint_before_is_read_without_a_change_to_its_folder(
    tmp_path, damage, reason
):
    variables = a_run(tmp_path)
    damage(tmp_path / "checkpoints" / "12")
    source, before = find_teacher(a_student(tmp_path), channels=CHANNELS), listing(tmp_path)
    said = rf"^distill.teacher = '{tmp_path}': checkpoints/12 is damaged {reason}: its step 3 is the teacher instead$"
    with pytest.warns(UserWarning, match=said):
        jax.tree.map(np.testing.assert_array_equal, load(source), variables)
    assert listing(tmp_path) == before
    damage(tmp_path / "checkpoints" / "3")
    with pytest.raises(ConfigError, match=rf"^distill.teacher = '{tmp_path}': checkpoints/12 is damaged .*no whole"):
        load(source)


def test_a_teacher_of_a_version_without_checksums_is_read(tmp_path):
    variables = a_run(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "12" / "checksums")
    jax.tree.map(np.testing.assert_array_equal, load(find_teacher(a_student(tmp_path), channels=CHANNELS)), variables)


def test_a_student_remembers_its_teacher_once_it_has_a_checkpoint(run, tmp_path):
    teachers.remember(tmp_path, settings())
    assert teachers.remembered(tmp_path) is None
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    known = teachers.remembered(tmp_path)
    assert known == settings()
    source = find_teacher(a_student(tmp_path / "gone"), channels=CHANNELS, known=known)
    assert jax.tree.map(np.shape, source.like) == jax.tree.map(np.shape, run[1])
    with pytest.raises(ConfigError, match="has no checkpoint"):
        load(source)


def test_a_mistake_with_a_teacher_is_one_line_before_anything_compiles(capsys, tmp_path):
    flags = ["--config.method=distill", f"--config.distill.teacher={tmp_path}/none", "--config.loss.top_k=none"]
    config = ROOT / "configs" / "simclr_stream.py"
    assert main([f"--config={config}", f"--workdir={tmp_path}/run", *flags]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"error: distill.teacher = '{tmp_path}/none' is not a folder")
    assert errors.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not Path(DEBIAN_FOLDER).is_dir(), reason="apt-get install dataset-fashion-mnist")
def test_the_config_of_this_method_builds_with_a_teacher_of_the_config_that_it_names(tmp_path):
    a_run(tmp_path, resolve(load_config(str(ROOT / "configs" / "fashion_mnist.py"))), channels=1)
    override = f"distill.teacher={tmp_path}"
    parts = build(resolve(load_config(f"{ROOT / 'configs' / 'distill.py'}:smoke", [override])))
    assert parts.like.target["params"]["encoder"]["conv1"]["kernel"].shape == (4, 4, 1, 32)
    assert parts.like.params["map"]["dense"]["kernel"].shape == (512, 512)
