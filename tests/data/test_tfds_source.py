import io
import pickle

import numpy as np
import pytest
from PIL import Image

from jaxcl.config import AugmentConfig, ConfigError, DataConfig
from jaxcl.data import Tokenizer, caption_line, eval_images, make_loader, open_source
from jaxcl.data.record import BadImage, caption_fingerprint

tfds = pytest.importorskip("tensorflow_datasets")

COUNTS = {"train": 20, "validation": 6, "test": 8}


class JaxclTiny(tfds.core.GeneratorBasedBuilder):
    """Small gradients of ten shades, in three splits; the test split may have no labels, as ImageNet's."""

    VERSION = tfds.core.Version("1.2.0")
    channels = 3
    splits = tuple(COUNTS)
    test_labels = True

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(None, None, self.channels)),
            "label": tfds.features.ClassLabel(names=[f"shade{i}" for i in range(10)]),
            "caption": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in self.splits}

    def _generate_examples(self, split):
        for i in range(COUNTS[split]):
            file = io.BytesIO()
            pixels = np.full((9, 12, self.channels), 20 * (i % 10), np.uint8)
            pixels[:, 6:] += 10
            Image.fromarray(pixels if self.channels == 3 else pixels[..., 0]).save(file, "PNG")
            file.seek(0)
            label = i % 10 if split != "test" or self.test_labels else -1
            yield i, {"image": file, "label": label, "caption": f"shade {i % 10} of é"}


@pytest.fixture
def prepare(tmp_path):
    """Prepares the tiny set, as told: `prepare(channels=1)` → data_dir."""

    def make(**attributes):
        # All variants are prepared as the set `jaxcl_tiny`.
        builder_class = type("JaxclTinyVariant", (JaxclTiny,), {**attributes, "name": "jaxcl_tiny"})
        builder = builder_class(data_dir=str(tmp_path / "tfds"), file_format="array_record")
        builder.download_and_prepare()
        return str(tmp_path / "tfds")

    with tfds.core.registered.skip_registration():
        yield make


def config(root, name="jaxcl_tiny", **others):
    return DataConfig(name=f"tfds:{name}", root=root, image_size=8, **others)


def test_a_prepared_set_is_read_with_labels_ids_and_its_own_split(prepare):
    train, test = open_source(config(prepare()))
    assert (len(train), len(test)) == (20, 8)
    assert train.classes == tuple(f"shade{i}" for i in range(10))
    assert train.channels == 3
    assert train.ids.tolist() + test.ids.tolist() == list(range(28))
    for side in (train, test):
        for i in range(len(side)):
            record = side[i]
            assert record.image.shape == (9, 12, 3)
            assert record.image[0, 0, 0] == 20 * record.label
            assert record.id == side.ids[i]
    assert "jaxcl_tiny/1.2.0" in test.protocol
    assert "train and test" in test.protocol


def test_the_version_can_be_named_and_a_wrong_one_is_not_there(prepare):
    root = prepare()
    assert len(open_source(config(root, "jaxcl_tiny:1.2.0")).train) == 20
    with pytest.raises(ConfigError, match="not prepared"):
        open_source(config(root, "jaxcl_tiny:9.9.9"))


def test_a_test_split_without_labels_gives_way_to_validation(prepare):
    test = open_source(config(prepare(test_labels=False))).test
    assert len(test) == 6
    assert sorted(test[i].label for i in range(6)) == list(range(6))


def test_a_set_with_train_alone_is_held_out_by_position(prepare):
    train, test = open_source(config(prepare(splits=("train",))))
    assert (len(train), len(test)) == (16, 4)
    assert sorted(train.ids.tolist() + test.ids.tolist()) == list(range(20))
    assert "held out" in train.protocol


def test_gray_images_keep_one_channel(prepare):
    train = open_source(config(prepare(channels=1))).train
    assert train.channels == 1
    assert train[0].image.shape == (9, 12, 1)


def test_batches_and_evaluation_work_from_a_pickled_source(prepare):
    settings = config(prepare())
    train, test = pickle.loads(pickle.dumps(open_source(settings)))
    batch = next(make_loader(train, config=settings, augment=AugmentConfig(), batch=10, seed=0))
    assert batch["views"].shape == (10, 2, 8, 8, 3)
    whole = eval_images(test, config=settings)
    assert sorted(whole.labels.tolist()) == list(range(8))
    assert whole.names[2] == "test/2"


def test_a_text_feature_is_the_caption_where_it_is_asked_for(prepare):
    root = prepare()
    train = open_source(config(root, caption="caption"), captions=True).train
    assert train.has_captions
    assert [train[i].caption for i in range(20)] == [f"shade {train[i].label} of é" for i in range(20)]
    assert [train.caption_of(i) for i in range(20)] == [train[i].caption for i in range(20)]
    assert caption_line(train, Tokenizer(40)).startswith("captions: 20 with 10 different texts")
    assert caption_fingerprint(train) is None
    for silent in (open_source(config(root), captions=True), open_source(config(root, caption="caption"))):
        assert not silent.train.has_captions
        assert silent.train[0].caption == ""


def test_a_text_feature_that_is_not_there_is_an_error_with_those_that_are(prepare):
    with pytest.raises(ConfigError, match=r"data.caption = 'text': tfds:jaxcl_tiny has no such .* only caption"):
        open_source(config(prepare(), caption="text"), captions=True)


def test_the_pixel_limit_holds_here_too(prepare):
    train = open_source(config(prepare(), max_pixels=100)).train
    with pytest.raises(BadImage, match=r"tfds:jaxcl_tiny train/0: 12 x 9 = 108 pixels exceed"):
        train[0]


def test_what_is_not_prepared_is_an_error_with_the_nearest_name_and_the_line_to_type(prepare, tmp_path):
    root = prepare()
    with pytest.raises(ConfigError, match=r"not prepared in .*did you mean tfds:jaxcl_tiny\?.*tfds build jaxcl_tinny"):
        open_source(config(root, "jaxcl_tinny"))
    with pytest.raises(ConfigError, match=rf"tfds build cifar10 --file_format=array_record --data_dir={tmp_path}/no"):
        open_source(config(str(tmp_path / "no"), "cifar10"))


def test_fashion_mnist_is_read_from_tfds_where_there_are_no_idx_files(tmp_path):
    with tfds.core.registered.skip_registration():
        attributes = {"channels": 1, "splits": ("train", "test"), "name": "fashion_mnist"}
        builder = type("Variant", (JaxclTiny,), attributes)(data_dir=str(tmp_path), file_format="array_record")
        builder.download_and_prepare()
    train, test = open_source(DataConfig(name="fashion_mnist", root=str(tmp_path)))
    assert (len(train), len(test), train.channels) == (20, 8, 1)
