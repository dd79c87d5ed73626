"""A run before its data: what depends on the devices and on how a batch is cut."""

import pytest

from jaxcl import blueprint
from jaxcl.blueprint import Facts, draw
from jaxcl.config import ConfigError, resolve


def nobody(config, *, channels):
    raise AssertionError("there is no teacher")


@pytest.mark.parametrize(
    ("batch", "looped"),
    [
        ({}, False),
        ({"micro": 8}, True),
        ({"micro": 8, "mode": "cached"}, True),
        ({"micro": 8, "mode": "cached", "images": "host"}, False),  # programs of their own, and a loop in Python
    ],
)
def test_an_encoder_knows_whether_a_cpu_trains_it_within_a_loop(batch, looped, monkeypatch):
    seen, make = [], blueprint.make_encoder

    def watched(config, **given):
        seen.append(given["looped"])
        return make(config, **given)

    monkeypatch.setattr(blueprint, "make_encoder", watched)
    config = resolve({"batch": {"size": 16, **batch}, "data": {"image_size": 16}, "mesh": {"shape": {"data": 1}}})
    draw(config, Facts(channels=3, labels=True, captions=False), nobody)
    assert seen == [looped]


def test_what_the_method_lacks_is_said_before_what_a_config_of_it_sets_for_colours():
    grey = {"name": "fashion_mnist", "image_size": 28}
    config = resolve({"method": "clip", "data": grey, "augment": {"saturation": 0.2}})
    with pytest.raises(ConfigError, match=r"method = 'clip' needs captions, and data.name = 'fashion_mnist' has"):
        draw(config, Facts(channels=1, labels=True, captions=False), nobody)
