"""A setting that nothing in the run reads is an error that names the choice which reads it."""

import pytest

from jaxcl import methods
from jaxcl.config import Config, ConfigError, check_colour, resolve
from jaxcl.config.unread import COLOUR, READERS

FASHION = {"data": {"name": "fashion_mnist", "image_size": 28}}


def with_(*changes):
    merged = {}
    for change in changes:
        for group, values in change.items():
            merged[group] = {**merged.get(group, {}), **values} if isinstance(values, dict) else values
    return merged


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"patch": 8}}, "model.patch = 8 is read only with a ViT as model.encoder; leave it out"),
        ({"model": {"pool": "mean"}}, "model.pool = 'mean' is read only with a ViT"),
        ({"model": {"stem": "imagenet"}}, "model.stem = 'imagenet' is read only with a ResNet"),
        ({"model": {"encoder": "vit_ti", "norm": "group"}}, "model.norm = 'group' is read only with a ResNet or conv"),
        (
            {"model": {"head_layers": 1, "head_hidden": 64}},
            "model.head_hidden = 64 is read only with model.head_layers",
        ),
        (
            with_(FASHION, {"data": {"label": "subgroup"}}),
            "data.label = 'subgroup' is read only with data.name = 'emoji'",
        ),
        (
            {"data": {"statistics": "imagenet", "mean": 0.1}},
            "data.mean = 0.1 is read only with data.statistics = 'given'; leave it out",
        ),
        ({"data": {"statistics": "clip", "std": 0.9}}, "data.std = 0.9 is read only with data.statistics = 'given'"),
        (with_(FASHION, {"data": {"holdout": 0.3}}), "data.holdout = 0.3 is read only with data without a test set"),
        (
            {"data": {"root": "/nope"}},
            "data.root = '/nope' is read only with data.name = 'fashion_mnist' or 'tfds:NAME'",
        ),
        (
            {"augment": {"blur_prob": 0.0, "blur_sigma_max": 3.0}},
            "augment.blur_sigma_max = 3.0 is read only with augment.b",
        ),
        (
            {"augment": {"solarize_threshold": 0.4}},
            "augment.solarize_threshold = 0.4 is read only with augment.solarize_p",
        ),
        (
            {"optim": {"offload": True}},
            "optim.offload = True is read only with batch.images = 'host' or 'disk', whose update",
        ),
        (
            {"augment": {"jitter_prob": 0.0, "hue": 0.2}},
            "augment.hue = 0.2 is read only with augment.jitter_prob above 0",
        ),
    ],
)
def test_it_is_refused_before_anything_compiles(changes, message):
    with pytest.raises(ConfigError, match=message):
        resolve(changes)


@pytest.mark.parametrize("name", [name for reader in READERS for name in reader.names])
def test_every_name_is_a_setting(name):
    group, item = name.split(".")
    assert hasattr(getattr(Config(), group), item)


@pytest.mark.parametrize("name", COLOUR)
def test_grey_images_have_no_colours_to_change(name):
    group, item = name.split(".")
    config = resolve({group: {item: 0.05}})
    check_colour(config, 3)
    with pytest.raises(
        ConfigError,
        match=rf"{name} = 0.05 is read only with images in colour, .* 'emoji' are grey; leave it out, or at",
    ):
        check_colour(config, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"predictor_hidden": 64}}, "model.predictor_hidden = 64, but method = 'simclr' has no predictor"),
        ({"optim": {"predictor_rate": 10.0}}, "optim.predictor_rate = 10.0, but method = 'simclr' has no predictor"),
        ({"model": {"remat": "dots"}}, "model.remat = 'dots' is read only with a ViT, not with 'conv'"),
        (
            {"data": {"name": "tfds:x", "caption": "text"}},
            "data.caption = 'text', but method = 'simclr' reads no captions; leave it out",
        ),
    ],
)
def test_a_method_refuses_what_it_does_not_read(changes, message):
    with pytest.raises(ConfigError, match=message):
        methods.check(resolve(changes), has_labels=False)
