import dataclasses
import math

import numpy as np
import pytest

from jaxcl import config as settings
from jaxcl.config import Config, ConfigError, MeshShape, resolve


def leaves(section=Config, path=""):
    for item in dataclasses.fields(section):
        if dataclasses.is_dataclass(item.default_factory):
            yield from leaves(item.default_factory, f"{path}{item.name}.")
        else:
            yield f"{path}{item.name}", item


def nested(path, value):
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def test_defaults_survive_the_way_through_a_config_dict_and_json():
    assert resolve(settings.base_config()) == Config()
    assert resolve(settings.to_dict(Config())) == Config()


def test_every_setting_says_what_it_means():
    assert all(item.metadata["help"] for _, item in leaves())


def test_an_empty_setting_accepts_an_override_of_its_type():
    values = settings.base_config()
    values.loss.top_k = 7
    assert resolve(values).loss.top_k == 7


@pytest.mark.parametrize("path", [path for path, item in leaves() if isinstance(item.default, float)])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_may_be_nan_or_infinite(path, value):
    with pytest.raises(ConfigError, match=path.replace(".", r"\.")):
        resolve(nested(path, value))


@pytest.mark.parametrize(("path", "item"), [pair for pair in leaves() if pair[1].metadata["low"] is not None])
def test_a_value_below_its_range_is_named_with_the_smallest_valid_one(path, item):
    with pytest.raises(ConfigError, match=rf"{path} = .* below the smallest valid value {item.metadata['low']}"):
        resolve(nested(path, item.metadata["low"] - 1))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss": {"tempratur": 1}}, r"unknown setting 'loss.tempratur'; did you mean 'loss.temperature'"),
        ({"quue": {}}, r"unknown setting 'quue'; did you mean 'queue'"),
        ({"zzz": 1}, r"unknown setting 'zzz'; known: seed"),
        ({"loss": {"temperature": 0}}, r"loss.temperature = 0.0 is below the smallest valid value 1e-05"),
        ({"loss": {"temperature": -0.1}}, r"loss.temperature = -0.1 is below"),
        ({"batch": {"size": 7.5}}, r"batch.size = 7.5 has type float; it needs int"),
        ({"batch": {"size": True}}, r"batch.size = True has type bool"),
        ({"model": {"remat": True}}, r"model.remat = True is not one of none, dots, blocks$"),
        ({"model": {"remat": "true"}}, r"model.remat = 'true' is not one of none, dots, blocks$"),
        ({"batch": {"size": None}}, r"batch.size is empty"),
        ({"batch": 3}, r"batch = 3 is a group of settings"),
        ({"model": {"encoder": "resnet50x"}}, r"did you mean 'resnet50'"),
        ({"batch": {"size": 64, "micro": 7}}, r"valid values of batch.micro are 4 and 8"),
        ({"batch": {"size": 64, "micro": 100}}, r"valid values of batch.micro are 64$"),
        ({"batch": {"size": 64, "mode": "cached"}}, r"'cached' needs batch.micro, .*; 64 is a first value"),
        (
            {"batch": {"size": 64, "micro": 65, "mode": "cached"}},
            r"batch.micro = 65 is above batch.size; .* valid value is 64$",
        ),
        (
            {"batch": {"size": 64, "micro": 9, "mode": "cached"}},
            r"micro = 9 leaves one image of batch.size = 64 .* batch.micro are 8 and 10, of batch.size 63 and 65$",
        ),
        (
            {"batch": {"size": 256, "micro": 85, "mode": "cached"}},
            r"batch.micro = 85 leaves one image of .*; the nearest valid values of batch.micro are 84 and 86, of batch",
        ),
        ({"batch": {"images": "disk"}}, r"batch.images = 'disk' is read only with batch.mode = 'cached'"),
        ({"batch": {"images": "host"}}, r"batch.images = 'host' is read only with batch.mode = 'cached'"),
        ({"augment": {"crop_scale_min": 0.9, "crop_scale_max": 0.3}}, r"crop_scale_min = 0.9 is above"),
        ({"steps": 20}, r"optim.warmup_steps = 20 .* largest valid value is 19"),
        ({"loss": {"impl": "dense", "block_size": 3}}, r"loss.block_size = 3 has no meaning"),
        ({"loss": {"skip_hardest": 0.1}}, r"loss.skip_hardest = 0.1 needs loss.top_k; .* valid value is 0"),
        (
            {"loss": {"skip_hardest": 0.1, "top_k": 3, "tail": "sampled", "tail_samples": 3}},
            r"loss.skip_hardest = 0.1 needs loss.tail = 'drop': a tail brings them back",
        ),
        ({"loss": {"temperature_schedule": "linear"}}, r"needs loss.temperature_end; .* valid value is 'constant'"),
        (
            {"loss": {"temperature_end": 0.3}},
            r"temperature_end = 0.3 is read only with loss.temperature_schedule = 'li",
        ),
        ({"queue": {"size": 8, "schedule": "cosine"}}, r"queue.schedule = 'cosine' needs queue.start"),
        ({"queue": {"size": 8, "start": 9, "schedule": "linear"}}, r"queue.start = 9 .* largest valid value is 8"),
        ({"queue": {"size": 8, "sample": 9}}, r"queue.sample = 9 is above queue.size; the largest valid value is 8"),
        ({"queue": {"size": 8, "adapt": True, "start": 2}}, r"queue.adapt = True does not work with eval.every = 0"),
        (
            {"queue": {"size": 8, "adapt": True, "start": 2}, "eval": {"every": 900}},
            r"queue.adapt = True does not work with eval.every = 900; 90 is a first value",
        ),
        (
            {"queue": {"size": 8, "adapt": True, "start": 2}, "eval": {"every": 5}},
            r"queue.adapt = True does not work with data.validation = 0.0; 0.1 is a first value",
        ),
        ({"target": {"decay": 1.0}}, r"target.decay = 1.0 leaves the momentum encoder as it was; 0.999 is a valid"),
        (
            {"queue": {"size": 8, "adapt": True}, "eval": {"every": 5}, "data": {"validation": 0.1}},
            r"queue.adapt = True does not work with queue.start = None; 2 is a first value",
        ),
        ({"queue": {"size": 8, "start": 2}}, r"queue.start = 2 is read only with queue.schedule = 'linear'"),
        ({"target": {"decay_end": 0.999}}, r"target.decay_end = 0.999 is read only with target.schedule"),
        (
            {"loss": {"temperature_schedule": "queue_pointer", "temperature_end": 1.0}},
            r"'queue_pointer' needs queue.size of at least 1, not 0",
        ),
        ({"target": {"decay_end": 0.9, "schedule": "from_zero"}}, r"decay_end = 0.9 is read only with .*'from_zero'"),
        ({"optim": {"schedule": "linaer"}}, r"did you mean 'linear'"),
        ({"model": {"encoder": "vit_ti", "patch": 5}}, r"valid values of data.image_size are 30 and 35"),
    ],
)
def test_bad_settings_are_refused_with_their_value_and_a_valid_one(values, message):
    with pytest.raises(ConfigError, match=message):
        resolve(values)


@pytest.mark.parametrize(
    ("shape", "devices", "expected"),
    [((-1, 1), 1, (1, 1)), ((-1, 1), 8, (8, 1)), ((-1, 2), 8, (4, 2)), ((2, -1), 8, (2, 4)), ((3, 1), 8, (3, 1))],
)
def test_minus_one_takes_the_devices_that_are_left(shape, devices, expected):
    assert settings.mesh_sizes(MeshShape(*shape), devices) == expected


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((-1, -1), "both -1"),
        ((0, 1), "mesh.shape.data = 0"),
        ((16, 1), "needs 16 devices; there are 8"),
        ((-1, 3), "valid values of mesh.shape.model are 2 and 4"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(shape, message):
    with pytest.raises(ConfigError, match=message):
        settings.mesh_sizes(MeshShape(*shape), 8)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch": {"size": 30}}, "batch.size = 30 .* valid values of batch.size are 24 and 32"),
        ({"batch": {"size": 48, "micro": 12}}, "batch.micro = 12 .* valid values of batch.micro are 8 and 16"),
        (
            {"batch": {"size": 48, "micro": 20, "mode": "cached"}},
            "batch.micro = 20 .* valid values of batch.micro are 16 and 24",
        ),
        ({"queue": {"size": 1001}}, "queue.size = 1001 .* valid values of queue.size are 1000 and 1008"),
    ],
)
def test_what_does_not_divide_over_the_devices_is_refused_with_the_nearest_valid_values(values, message):
    with pytest.raises(ConfigError, match=message):
        settings.check_devices(resolve(values), 8)


@pytest.mark.parametrize("values", [{3: 4}, {"loss": {(1, 2): 0.1}}])
def test_a_key_that_is_no_name_is_refused(values):
    with pytest.raises(ConfigError, match="is no name but of type"):
        resolve(values)


@pytest.mark.parametrize(("path", "item"), [pair for pair in leaves() if isinstance(pair[1].metadata["low"], float)])
def test_the_smallest_valid_value_is_0_or_one_that_float32_keeps_and_can_divide_by(path, item):
    low = np.float32(item.metadata["low"])
    assert low == 0 or np.isfinite(1 / low**2), path


def test_a_run_on_other_devices_takes_as_many_as_can_share_its_batch():
    config = resolve({"batch": {"size": 24, "micro": 12}, "queue": {"size": 40}, "mesh": {"shape": {"data": 4}}})
    sizes = {devices: settings.mesh_that_fits(config, devices).shape.data for devices in (1, 2, 3, 4, 8)}
    assert sizes == {1: 1, 2: 2, 3: 2, 4: 4, 8: 4}
