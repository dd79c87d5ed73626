import hashlib
import json
import multiprocessing

import numpy as np
import pytest

from jaxcl.config import AugmentConfig, ConfigError, DataConfig
from jaxcl.data import make_loader, open_source

AUGMENT = AugmentConfig()


@pytest.fixture(scope="module")
def emoji():
    return open_source(DataConfig()).train


@pytest.fixture
def few(image_folder):
    """31 images: 7 batches of 4 an epoch, and 3 left over."""
    return open_source(DataConfig(name=f"folder:{image_folder({'': 38})}")).train


def loader(source, *, batch=100, seed=3, image_size=16, workers=0, **others):
    config = DataConfig(image_size=image_size, workers=workers)
    return make_loader(source, config=config, augment=AUGMENT, batch=batch, seed=seed, **others)


def take(batches, count):
    return [next(batches) for _ in range(count)]


def fingerprint(batches):
    """One hash of the bytes of every field of every batch."""
    digest = hashlib.sha256()
    for batch in batches:
        for name in sorted(batch):
            digest.update(name.encode() + batch[name].tobytes())
    return digest.hexdigest()


def test_a_batch_has_the_fields_shapes_and_types_of_the_contract(emoji):
    batches = loader(emoji)
    batch = next(batches)
    assert {name: (value.shape, value.dtype.name) for name, value in batch.items()} == {
        "views": ((100, 2, 16, 16, 3), "uint8"),
        "id": ((100,), "int32"),
        "label": ((100,), "int32"),
        "epoch": ((100,), "int32"),
        "bad": ((100,), "int32"),
    }
    assert batches.batches_per_epoch == 15
    assert (batch["bad"] == -1).all()
    assert (batch["views"][:, 0] != batch["views"][:, 1]).any((1, 2, 3)).mean() > 0.95


def test_an_epoch_shows_no_image_twice_and_the_next_one_has_another_order(few):
    batches = take(loader(few, batch=4), 15)
    assert [int(b["epoch"][0]) for b in batches] == [0] * 7 + [1] * 7 + [2]
    first, second = (np.concatenate([b["id"] for b in batches[s : s + 7]]) for s in (0, 7))
    assert len(set(first.tolist())) == len(set(second.tolist())) == 28
    assert (first == second).mean() < 0.3
    assert set(first.tolist()) != set(second.tolist())  # those left out differ too


def test_labels_belong_to_their_ids(emoji):
    batch = next(loader(emoji))
    label = {emoji[i].id: emoji[i].label for i in range(len(emoji))}
    assert [label[i] for i in batch["id"].tolist()] == batch["label"].tolist()


def test_the_seed_changes_order_and_crops(emoji):
    one, two, again = (fingerprint(take(loader(emoji, seed=s), 2)) for s in (3, 4, 3))
    assert one == again != two


def test_crops_of_an_image_do_not_depend_on_the_batch_size(emoji):
    seen = [{}, {}]
    for known, size in zip(seen, (100, 250), strict=True):
        for batch in take(loader(emoji, batch=size), 1000 // size):
            known.update(zip(batch["id"].tolist(), batch["views"], strict=True))
    both = set(seen[0]) & set(seen[1])
    assert len(both) > 600
    assert all((seen[0][i] == seen[1][i]).all() for i in both)


def test_worker_processes_give_the_same_batches_and_positions_and_end_when_closed(emoji):
    expected = take(loader(emoji), 6)
    for workers in (1, 2):
        batches = loader(emoji, workers=workers)
        assert fingerprint(take(batches, 3)) == fingerprint(expected[:3])
        position = json.loads(json.dumps(batches.position()))
        batches.close()
        assert not multiprocessing.active_children()
    in_threads = loader(emoji)
    in_threads.restore(position)
    assert fingerprint(take(in_threads, 3)) == fingerprint(expected[3:])


@pytest.mark.parametrize("count", [1, 2, 4])
def test_processes_share_each_global_batch(emoji, count):
    whole = next(loader(emoji))
    shares = [next(loader(emoji, process_index=i, process_count=count)) for i in range(count)]
    for name, value in whole.items():
        assert (np.concatenate([share[name] for share in shares]) == value).all()


@pytest.mark.parametrize("stop", [0, 1, 6, 7, 20])
def test_reading_goes_on_bit_for_bit_within_and_across_epochs(few, stop):
    expected = take(loader(few, batch=4), stop + 3)
    first = loader(few, batch=4)
    take(first, stop)
    position = json.loads(json.dumps(first.position()))
    second = loader(few, batch=4)
    next(second)
    second.restore(position)
    assert fingerprint(take(second, 3)) == fingerprint(expected[stop:])
    assert second.position()["next_batch"] == stop + 3


def test_a_position_counts_batches_given_out_not_those_read_ahead(emoji):
    batches = loader(emoji)
    take(batches, 2)
    assert batches.position()["next_batch"] == 2


@pytest.mark.parametrize(("change", "name"), [({"batch": 50}, "batch_size"), ({"seed": 4}, "seed")])
def test_a_position_of_another_order_is_refused(emoji, change, name):
    with pytest.raises(ConfigError, match=f"{name} is .*, was "):
        loader(emoji, **change).restore(loader(emoji).position())


def test_a_closed_loader_can_go_on(emoji):
    batches = loader(emoji)
    expected = fingerprint(take(loader(emoji), 2))
    first = take(batches, 1)
    batches.close()
    assert fingerprint(first + take(batches, 1)) == expected


def test_fewer_images_than_a_batch_is_an_error_with_both_numbers(emoji):
    with pytest.raises(
        ConfigError, match=r"batch.size=2000 exceeds the 1519 training images.*valid batch.size is 1519"
    ):
        loader(emoji, batch=2000)
    assert loader(emoji, batch=1519).batches_per_epoch == 1


def test_a_batch_that_processes_cannot_share_is_an_error_with_the_nearest_sizes(emoji):
    with pytest.raises(ConfigError, match=r"batch.size=100 is not divisible by 3 processes; nearest valid: 99 or 102"):
        loader(emoji, process_count=3)


def test_one_channel_images_make_one_channel_views(image_folder, monkeypatch):
    train = open_source(DataConfig(name=f"folder:{image_folder({'': 9})}")).train
    monkeypatch.setattr(train, "channels", 1)
    assert next(loader(train, batch=4))["views"].shape == (4, 2, 16, 16, 1)


def test_a_random_background_differs_between_views_and_epochs():
    test = open_source(DataConfig(background="random")).test
    batches = loader(test, batch=379)
    one, two = take(batches, 2)
    corner = one["views"][:, :, 0, 0]
    assert (corner[:, 0] != corner[:, 1]).any(-1).mean() > 0.9
    order = np.argsort(one["id"]), np.argsort(two["id"])
    assert (corner[order[0]] != two["views"][order[1]][:, :, 0, 0]).any(-1).mean() > 0.9


def test_a_renamed_image_changes_the_data_and_a_position_without_that_fact_is_accepted(image_folder):
    folder = image_folder({"cats": 9, "dogs": 9})
    position = loader(open_source(DataConfig(name=f"folder:{folder}")).train, batch=4).position()
    taken = {record.name for record in open_source(DataConfig(name=f"folder:{folder}")).train}
    (folder / min(taken)).rename(folder / "dogs" / "zebra.png")
    changed = loader(open_source(DataConfig(name=f"folder:{folder}")).train, batch=4)
    with pytest.raises(ConfigError, match=r"data.name=folder:.*images are not those of before"):
        changed.restore(position | {"images": changed.position()["images"]})
    changed.restore({name: value for name, value in changed.position().items() if name != "data"})
