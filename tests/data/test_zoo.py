"""The image zoo: 64 files of which some are broken and the rest are odd; a run over it completes."""

import io
import itertools
import logging

import numpy as np
import pytest
from PIL import Image

from jaxcl.config import AugmentConfig, ConfigError, DataConfig
from jaxcl.data import eval_images, make_loader, open_source

BAD = {"truncated.jpg", "empty.jpg", "text.png", "bomb.png"}


def _encoded(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.fixture
def zoo(tmp_path):
    """A folder with every odd file, and plain ones up to 64."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    rgb = Image.fromarray(pixels)
    sideways = rgb.getexif()
    sideways[0x0112] = 6
    files = {
        "truncated.jpg": _encoded(rgb, "JPEG")[:700],
        "empty.jpg": b"",
        "text.png": b"this is a text",
        "bomb.png": _encoded(Image.new("1", (2000, 2000)), "PNG"),
        "cmyk.jpg": _encoded(rgb.convert("CMYK"), "JPEG"),
        "gray.jpg": _encoded(rgb.convert("L"), "JPEG"),
        "la.png": _encoded(rgb.convert("LA"), "PNG"),
        "palette.png": _encoded(rgb.quantize(16), "PNG"),
        "gif.jpg": _encoded(rgb, "GIF"),
        "bmp.jpg": _encoded(rgb, "BMP"),
        "extra.jpg": _encoded(rgb, "JPEG") + bytes(200),
        "exif.jpg": _encoded(rgb, "JPEG", exif=sideways),
        "one.png": _encoded(Image.new("RGB", (1, 1), "red"), "PNG"),
        "strip.png": _encoded(Image.new("RGB", (3, 500), "blue"), "PNG"),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    for i in range(64 - len(files)):
        Image.fromarray(np.roll(pixels, i, 1)).save(folder / f"plain{i:02}.png")
    return folder


def _config(zoo, **others):
    return DataConfig(name=f"folder:{zoo}", image_size=16, max_pixels=1_000_000, **{"max_bad_fraction": 0.1, **others})


def test_a_run_completes_and_names_each_bad_file_once_with_its_reason(zoo, caplog):
    config = _config(zoo)
    train, test = open_source(config)
    loader = make_loader(train, config=config, augment=AugmentConfig(), batch=16, seed=0)
    with caplog.at_level(logging.WARNING):
        batches = [next(loader) for _ in range(12)]  # four epochs
        left = eval_images(test, config=config)
    assert all(len(batch["views"]) == 16 for batch in batches)
    warned = [message for message in caplog.messages if str(zoo) in message]
    assert {name for name in BAD for message in warned if f"/{name}: " in message} == BAD
    assert len(warned) == len(BAD)
    assert len(loader.bad) + len(test) - len(left.ids) == len(BAD)
    good = set(train.ids.tolist()) - loader.bad.ids
    for batch in batches:
        assert set(batch["id"].tolist()) <= good
        assert set(batch["bad"].tolist()) - {-1} <= loader.bad.ids


def test_replacements_are_the_same_in_every_run_and_by_any_number_of_processes(zoo):
    config = _config(zoo)
    train = open_source(config).train

    def ids(**others):
        loader = make_loader(train, config=config, augment=AugmentConfig(), batch=16, seed=0, **others)
        return np.concatenate([next(loader)["id"] for _ in range(6)])

    assert (ids() == ids()).all()
    halves = [ids(process_index=i, process_count=2).reshape(6, 8) for i in range(2)]
    assert (np.concatenate(halves, 1).ravel() == ids()).all()


def test_more_bad_files_than_allowed_end_the_run(zoo):
    config = _config(zoo, max_bad_fraction=0.01)
    train = open_source(config).train
    loader = make_loader(train, config=config, augment=AugmentConfig(), batch=32, seed=0)
    with pytest.raises(ConfigError, match=r"max_bad_fraction=0.01 allows \(1\); the last one was /.*: "):
        list(itertools.islice(loader, 4))


def test_bad_ids_survive_a_resume_and_are_not_named_again(zoo, caplog):
    config = _config(zoo)
    train = open_source(config).train
    first, second = (make_loader(train, config=config, augment=AugmentConfig(), batch=16, seed=0) for _ in range(2))
    for _ in range(9):
        next(first)
    second.restore(first.position())
    caplog.clear()
    for _ in range(3):
        next(second)
    assert second.bad.ids == first.bad.ids
    assert not caplog.messages


def test_a_folder_without_one_readable_image_is_an_error(tmp_path):
    for i in range(8):
        (tmp_path / f"{i}.jpg").write_text("no image")
    config = DataConfig(name=f"folder:{tmp_path}", max_bad_fraction=1.0)
    loader = make_loader(open_source(config).train, config=config, augment=AugmentConfig(), batch=2, seed=0)
    with pytest.raises(ConfigError, match=r"none of 7 images could be read; the last one was .*not an image"):
        next(loader)
