import dataclasses
import math

import numpy as np
import pytest

from jaxcl.probes.captions import caption_scores, chance_scores, colour_histogram, colour_scores


def by_loops(images, texts, captions, k):
    """Top-k of both directions, in the words of the docstring."""
    different = sorted(set(captions))
    text = {c: texts[list(captions).index(c)] for c in different}

    def cosine(a, b):
        return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))

    there = []
    for image, caption in zip(images, captions, strict=True):
        own = cosine(image, text[caption])
        there.append(sum(cosine(image, text[c]) >= own for c in different if c != caption) < k)
    back = []
    for caption in different:
        best = max(cosine(image, text[caption]) for image, c in zip(images, captions, strict=True) if c == caption)
        wrong = [image for image, c in zip(images, captions, strict=True) if c != caption]
        back.append(sum(cosine(image, text[caption]) >= best for image in wrong) < k)
    return np.mean(there), np.mean(back)


def test_scores_are_those_of_loops_where_captions_are_shared():
    rng = np.random.default_rng(0)
    captions = [f"caption {i}" for i in rng.integers(0, 17, 31)]
    said = {caption: rng.normal(size=4) for caption in captions}
    texts = np.stack([said[caption] for caption in captions])
    images = texts + rng.normal(scale=0.8, size=texts.shape)
    found = caption_scores(images.astype(np.float32), texts.astype(np.float32), captions)
    for k in (1, 5):
        there, back = by_loops(images, texts, captions, k)
        assert getattr(found, f"image_to_text_top{k}") == pytest.approx(there)
        assert getattr(found, f"text_to_image_top{k}") == pytest.approx(back)
    assert found.image_to_text_top1 < found.image_to_text_top5


def test_every_image_of_a_shared_caption_is_right():
    images = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], np.float32)
    texts = np.array([[1.0, 0.05], [1.0, 0.05], [0.0, 1.0]], np.float32)
    assert caption_scores(images, texts, ["a", "a", "b"]).image_to_text_top1 == 1
    assert caption_scores(images, texts, ["a", "a", "b"]).text_to_image_top1 == 1


def test_vectors_that_are_all_one_score_nothing():
    same = np.ones((9, 3), np.float32)
    assert set(dataclasses.astuple(caption_scores(same, same, "abcdefghi"))) == {0.0}
    assert set(dataclasses.astuple(caption_scores(0 * same, 0 * same, "abcdefghi"))) == {0.0}


def test_chance_is_what_random_vectors_score():
    captions = [f"{i // 2 if i < 8 else i}" for i in range(40)]  # four captions twice
    rng = np.random.default_rng(0)
    runs = []
    for _ in range(300):
        images, texts = rng.normal(size=(2, 40, 6))
        first = {c: texts[i] for i, c in reversed(list(enumerate(captions)))}
        runs.append(dataclasses.astuple(caption_scores(images, np.stack([first[c] for c in captions]), captions)))
    expected = dataclasses.astuple(chance_scores(captions))
    assert expected[0] == pytest.approx(1 / 36)
    np.testing.assert_allclose(np.mean(runs, axis=0), expected, atol=4 * math.sqrt(0.12 / (300 * 36)))


def test_chance_among_fewer_than_five_is_certainty():
    assert chance_scores("abc").image_to_text_top5 == chance_scores("abc").text_to_image_top5 == 1


@pytest.mark.parametrize("channels", [1, 3])
def test_a_histogram_counts_the_colours_of_an_image_wherever_they_are(channels):
    images = np.random.default_rng(0).integers(0, 256, (3, 5, 4, channels), dtype=np.uint8)
    found = colour_histogram(images)
    assert found.shape == (3, 4**channels)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
    for image, row in zip(images, found, strict=True):
        counts = np.zeros(4**channels)
        for pixel in image.reshape(-1, channels):
            counts[sum(int(value) // 64 * 4**c for c, value in enumerate(pixel))] += 1
        np.testing.assert_allclose(row * 20, counts, rtol=1e-6)
    np.testing.assert_array_equal(colour_histogram(images[:, ::-1]), found)


def test_colours_that_are_named_lead_to_the_captions_that_name_them():
    rng = np.random.default_rng(0)
    words = np.array(["red", "green", "blue", "black", "white"])
    mixes = rng.dirichlet(np.ones(5), 200).astype(np.float32)
    captions = [" ".join(words[np.argsort(-mix)[:2]]) for mix in mixes]
    kept = sorted({c: i for i, c in enumerate(captions[120:], 120)}.values())  # each caption once
    named = colour_scores(mixes[:120], captions[:120], mixes[kept], [captions[i] for i in kept])
    chance = chance_scores([captions[i] for i in kept])
    assert named.image_to_text_top5 > 2 * chance.image_to_text_top5
    shuffled = colour_scores(
        mixes[:120], rng.permutation(captions[:120]).tolist(), mixes[kept], [captions[i] for i in kept]
    )
    assert shuffled.image_to_text_top5 < named.image_to_text_top5


def test_one_training_pair_is_enough_for_a_floor():
    one = np.array([[1.0, 0.0]], np.float32)
    two = np.eye(2, dtype=np.float32)
    assert colour_scores(one, ["a"], two, ["a", "b"]).image_to_text_top1 <= 1
