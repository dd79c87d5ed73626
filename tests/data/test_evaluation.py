import numpy as np
import pytest

from jaxcl.config import AugmentConfig, ConfigError, DataConfig
from jaxcl.data import eval_batches, eval_images, eval_views, make_loader, open_source
from jaxcl.data.crops import centre_view

CONFIG = DataConfig(image_size=16)


@pytest.mark.parametrize("batch", [1, 7, 10, 64])
def test_every_image_comes_exactly_once_in_order_for_any_batch(image_folder, batch):
    train = open_source(DataConfig(name=f"folder:{image_folder({'a': 8, 'b': 5})}")).train
    whole = eval_images(train, config=CONFIG, batch=batch)
    assert (whole.ids == train.ids).all()
    assert whole.images.shape == (len(train), 16, 16, 3)
    assert list(whole.names) == [train[i].name for i in range(len(train))]
    assert whole.labels.tolist() == [train[i].label for i in range(len(train))]
    assert all((whole.images[i] == centre_view(train[i].image, 16)).all() for i in range(len(train)))


def test_no_batch_is_larger_than_asked_for():
    test = open_source(CONFIG).test
    sizes = [len(batch["images"]) for batch in eval_batches(test, config=CONFIG, batch=100)]
    assert sizes == [100, 100, 100, 79]


def test_reading_can_be_left_half_way():
    batches = eval_batches(open_source(CONFIG).test, config=CONFIG, batch=50)
    next(batches)
    batches.close()


def test_views_are_the_same_each_time_differ_from_each_other_and_from_training():
    test = open_source(CONFIG).test
    views = [eval_views(test, config=CONFIG, augment=AugmentConfig(), seed=1, batch=b) for b in (64, 500)]
    assert (views[0].views == views[1].views).all()
    assert views[0].views.shape == (379, 2, 16, 16, 3)
    assert (views[0].views[:, 0] != views[0].views[:, 1]).any((1, 2, 3)).mean() > 0.95
    trained = next(make_loader(test, config=CONFIG, augment=AugmentConfig(), batch=379, seed=1))
    trained = trained["views"][np.argsort(trained["id"])]
    assert (trained != views[0].views).any((1, 2, 3, 4)).mean() > 0.95
    other = eval_views(test, config=CONFIG, augment=AugmentConfig(), seed=2)
    assert (other.views != views[0].views).any((1, 2, 3, 4)).mean() > 0.95


def test_probe_images_are_on_white_and_views_on_colours_with_a_random_background():
    config = DataConfig(image_size=16, background="random")
    test = open_source(config).test
    plain = eval_images(open_source(CONFIG).test, config=CONFIG).images
    assert np.abs(eval_images(test, config=config).images.astype(int) - plain).max() <= 2
    corners = eval_views(test, config=config, augment=AugmentConfig(), seed=0).views[:, :, 0, 0]
    assert len(np.unique(corners.reshape(-1, 3), axis=0)) > 500


def test_unreadable_images_are_left_out_and_too_many_are_an_error(image_folder):
    folder = image_folder({"": 40})
    for i in range(8):
        (folder / f"{i:03}.png").write_bytes(b"broken")
    name = f"folder:{folder}"
    allowing, strict = (DataConfig(name=name, image_size=16, max_bad_fraction=f) for f in (0.5, 0.01))
    train, test = open_source(allowing)
    for batch in (1, 4, 64):
        left = [eval_images(side, config=allowing, batch=batch) for side in (train, test)]
        assert sorted([*left[0].names, *left[1].names]) == [f"{i:03}.png" for i in range(40) if i >= 8]
        assert all(len(kept.images) == len(kept.ids) == len(kept.labels) for kept in left)
    with pytest.raises(ConfigError, match="max_bad_fraction"):
        eval_images(train, config=strict)


def test_worker_processes_read_the_same():
    test = open_source(CONFIG).test
    in_worker = eval_images(test, config=DataConfig(image_size=16, workers=1), batch=100)
    here = eval_images(test, config=CONFIG)
    assert (in_worker.images == here.images).all()
    assert in_worker.names == here.names


def test_an_image_counted_by_the_loader_is_not_named_again(image_folder, caplog):
    folder = image_folder({"": 20})
    (folder / "007.png").write_bytes(b"broken")
    config = DataConfig(name=f"folder:{folder}", image_size=16)
    for side in open_source(config):
        loader = make_loader(side, config=config, augment=AugmentConfig(), batch=len(side), seed=0)
        next(loader)
        eval_images(side, config=config, bad=loader.bad)
    assert len(caplog.messages) == 1
