import pytest

from jaxcl.config import ConfigError, DataConfig
from jaxcl.data import Source, open_source


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("emojis", "emoji"),
        ("fashion-mnist", "fashion_mnist"),
        ("FashionMNIST", "fashion_mnist"),
        ("folders:/data", "folder:/path"),
        ("folder", "folder:/path"),
        ("folder:", "folder:/path"),
        ("tdfs:cifar10", "tfds:NAME"),
        ("emoji:x", "emoji"),
    ],
)
def test_an_unknown_name_is_an_error_that_names_the_nearest(name, meant):
    with pytest.raises(ConfigError, match=f"data.name='{name}' is not one of .*did you mean {meant}"):
        open_source(DataConfig(name=name))


def test_a_name_like_none_of_them_lists_all_of_them():
    with pytest.raises(ConfigError, match=r"is not one of emoji, fashion_mnist, folder:/path, tfds:NAME$"):
        open_source(DataConfig(name="zzz"))


def test_names_lead_to_their_sources(image_folder):
    for name in ("emoji", f"folder:{image_folder({'a': 3, 'b': 3})}"):
        for side in open_source(DataConfig(name=name)):
            assert isinstance(side, Source)
            assert side.name == name
            assert [side[i].id for i in range(3) if i < len(side)] == side.ids[:3].tolist()
