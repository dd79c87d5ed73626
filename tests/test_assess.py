import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from jaxcl.assess import Readers, as_unit, assess, pixels, quick_score
from jaxcl.config import EvalConfig
from jaxcl.mesh import make_mesh

SETTINGS = EvalConfig(batch=16, knn_k=3, linear_steps=20)


def images_of(count, classes, seed):
    """Images of one bright channel, which tells their class, with noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count).astype(np.int32)
    noise = rng.integers(0, 30, (count, 4, 4, 3))
    return (np.eye(3)[labels % 3][:, None, None, :] * 200 + noise).astype(np.uint8), labels


def readers(train=37, test=19, classes=3, labelled=True):
    def chunks(count, seed):
        images, labels = images_of(count, classes, seed)
        labels = labels if labelled else np.full_like(labels, -1)
        return [{"images": images[i : i + 7], "label": labels[i : i + 7]} for i in range(0, count, 7)]

    def views():
        rng = np.random.default_rng(2)
        scenes = rng.uniform(size=(test, 1, 4, 4, 3)).astype(np.float32)
        yield from np.array_split(np.clip(scenes + rng.normal(0, 0.01, (test, 2, 4, 4, 3)), 0, 1).astype(np.float32), 3)

    return Readers(lambda: chunks(train, 0), lambda: chunks(test, 1), views)


def brightness(scale, images):
    return scale * as_unit(images).mean(axis=(1, 2))


@pytest.mark.parametrize("devices", [1, 8])
def test_every_representation_is_scored_on_the_same_images(devices):
    encoders = {
        "colour": Partial(brightness, jnp.float32(2.0)),
        "nothing": Partial(lambda x: jnp.zeros((x.shape[0], 2))),
        "pixels": Partial(pixels),
    }
    result = assess(encoders, readers(), settings=SETTINGS, seed=0, mesh=make_mesh(devices))
    assert result.test_images == 19
    assert result.scores["colour"].linear_top1 == result.scores["pixels"].linear_top1 == 1.0
    assert result.scores["pixels"].view_retrieval_top1 == 1.0
    assert result.scores["nothing"].view_retrieval_top1 == 0.0
    assert result.scores["nothing"].linear_top1 <= result.chance_top1 + 0.2


def test_without_labels_only_retrieval_is_scored():
    encoders = {"pixels": Partial(pixels)}
    result = assess(encoders, readers(labelled=False), settings=SETTINGS, seed=0, mesh=make_mesh(1))
    assert result.scores["pixels"].knn_top1 is result.scores["pixels"].linear_top1 is result.chance_top1 is None
    assert result.scores["pixels"].view_retrieval_top1 == 1.0


@pytest.mark.parametrize(("labelled", "name"), [(True, "knn_top1"), (False, "view_retrieval_top1")])
def test_the_score_while_training_is_knn_where_there_are_labels(labelled, name):
    score = quick_score(Partial(pixels), readers(labelled=labelled), settings=SETTINGS, mesh=make_mesh(1))
    assert score == {name: 1.0}


def test_new_parameters_compile_nothing():
    traces = []

    def encode(scale, images):
        traces.append(images.shape)
        return brightness(scale, images)

    mesh, data = make_mesh(1), readers()
    quick_score(Partial(encode, jnp.float32(1.0)), data, settings=SETTINGS, mesh=mesh)
    with_shapes = len(traces)
    quick_score(Partial(encode, jnp.float32(2.0)), data, settings=SETTINGS, mesh=mesh)
    compiled = [shape for shape in traces[with_shapes:] if shape[0] != 1]
    assert compiled == []


def test_pixels_of_large_images_are_averaged_down():
    image = np.zeros((1, 64, 64, 3), np.uint8)
    image[:, :, 32:] = 255
    small = np.asarray(pixels(jnp.asarray(image))).reshape(32, 32, 3)
    assert small[:, :15].max() == 0
    assert small[:, 17:].min() == 1


def test_bytes_become_numbers_up_to_one_and_floats_stay():
    assert as_unit(jnp.array([0, 255], jnp.uint8)).tolist() == [0.0, 1.0]
    assert as_unit(jnp.array([0.25], jnp.float32)).tolist() == [0.25]


def test_evaluation_does_not_change_what_it_evaluates():
    scale = jnp.float32(3.0)
    before = np.asarray(scale).copy()
    assess({"x": Partial(brightness, scale)}, readers(), settings=SETTINGS, seed=0, mesh=make_mesh(1))
    np.testing.assert_array_equal(jax.device_get(scale), before)


def test_whoever_waits_is_told_how_many_images_are_done_and_what_is_probed():
    heard, encoders = [], {"bright": Partial(brightness, jnp.ones(())), "pixels": Partial(pixels)}
    assess(encoders, readers(), settings=SETTINGS, seed=0, mesh=make_mesh(1), tell=heard.append)
    assert heard[-2:] == ["probing features 1 of 2: bright", "probing features 2 of 2: pixels"]
    assert [line for line in heard if "training" in line][-1] == "37 training images encoded"
