"""What a frozen encoder knows, beside its floors: the same probes of the same images for several representations."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxcl.config import EvalConfig
from jaxcl.probes import Scores, extract, majority_share, probe
from jaxcl.probes.captions import CaptionScores, caption_scores, chance_scores, colour_histogram, colour_scores
from jaxcl.probes.knn import knn_top1
from jaxcl.probes.retrieval import view_retrieval_top1

Represent = jax.tree_util.Partial
Tokenize = Callable[[Sequence[str]], np.ndarray]

SCORES = ("knn_top1", "view_retrieval_top1")  # of `quick_score`, one of them

# Larger images are averaged down first: a linear probe on 224 x 224 x 3 numbers would be larger than the encoder
PIXELS_SIDE = 32


class Readers(NamedTuple):
    """How to read the images; each call starts from the first one.

    Attributes:
        train: yields `{"images": uint8 [b, H, W, C], "label": int32 [b]}` of the training split; with captions
            also "caption".
        test: the same of the held-out split.
        views: yields [b, 2, H, W, C] in [0, 1]: two augmented views of each held-out image.
    """

    train: Callable[[], Iterable[dict[str, np.ndarray]]]
    test: Callable[[], Iterable[dict[str, np.ndarray]]]
    views: Callable[[], Iterable[np.ndarray]]


class Assessment(NamedTuple):
    """Scores by representation, and what a constant answer scores."""

    scores: dict[str, Scores]
    chance_top1: float | None
    test_images: int


class Captions(NamedTuple):
    """Retrieval by the towers (None: a vector is not finite), by a bag of colours, and by chance."""

    towers: CaptionScores | None
    colours: CaptionScores
    chance: CaptionScores


def assess(
    encoders: Mapping[str, Represent],
    readers: Readers,
    *,
    settings: EvalConfig,
    seed: int,
    mesh: Mesh,
    tell: Callable[[str], None] | None = None,
) -> Assessment:
    """Probes all representations in one pass over the images; nothing is written to them.

    Args:
        encoders: by name; each a `jax.tree_util.Partial` of a pure function with its variables, from images
            [b, H, W, C] (uint8, or float in [0, 1]) to features [b, F].
        readers: of the images.
        settings: of the probes.
        seed: draws the rows on which the linear probe chooses its penalty.
        mesh: whose `data` axis shares the encoding.
        tell: is told after each chunk of images, and before each representation, how far it is; None: nobody is.

    Returns:
        kNN, linear probe and view retrieval of each.
    """
    tell = tell or _to_nobody
    train, train_labels = _features(encoders, _counted(readers.train(), "training images", tell), settings.batch, mesh)
    test, test_labels = _features(encoders, _counted(readers.test(), "test images", tell), settings.batch, mesh)
    views = _view_features(encoders, _counted(readers.views(), "test images twice", tell), settings.batch, mesh)
    scores = {}
    for number, name in enumerate(encoders, 1):
        tell(f"probing features {number} of {len(encoders)}: {name}")
        scores[name] = probe(
            train[name],
            train_labels,
            test[name],
            test_labels,
            knn_k=settings.knn_k,
            knn_temperature=settings.knn_temperature,
            linear_steps=settings.linear_steps,
            seed=seed,
            views=(views[name][0::2], views[name][1::2]),
        )
    return Assessment(scores, majority_share(test_labels), len(test_labels))


def assess_captions(
    towers: Sequence[Represent], tokenize: Tokenize, readers: Readers, *, settings: EvalConfig, mesh: Mesh
) -> Captions:
    """Retrieval between held-out images and captions, beside its floors, in one pass over the images.

    Args:
        towers: from images, as in `assess`, and from tokens [b, L] to vectors that are compared by cosine.
        tokenize: from captions to int32 [b, L].
        readers: of images with captions; the training images are read for the colour floor.
        settings: `batch`.
        mesh: whose `data` axis shares the encoding.

    Returns:
        Scores of the towers, of a bag of colours and of chance.
    """
    colours: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    captions: dict[str, list[str]] = {"train": [], "test": []}

    def images(side: str, chunks: Iterable[dict[str, np.ndarray]]) -> Iterator[np.ndarray]:
        for chunk in chunks:
            colours[side].append(colour_histogram(chunk["images"]))
            captions[side] += chunk["caption"].tolist()
            yield chunk["images"]

    encode = functools.partial(extract, batch=settings.batch, mesh=mesh)
    pictures = encode(functools.partial(_joint, towers[:1]), images("test", readers.test()))
    texts = encode(functools.partial(_joint, towers[1:]), tokenize(captions["test"]))
    for _ in images("train", readers.train()):
        pass
    seen, held = ((np.concatenate(colours[side]), captions[side]) for side in ("train", "test"))
    towers_score = None
    if np.isfinite(pictures).all() and np.isfinite(texts).all():
        towers_score = caption_scores(pictures, texts, held[1])
    return Captions(towers_score, colour_scores(*seen, *held), chance_scores(held[1]))


def quick_score(encoder: Represent, readers: Readers, *, settings: EvalConfig, mesh: Mesh) -> dict[str, float]:
    """One number while training: kNN accuracy where there are labels, otherwise retrieval of the second view.

    Args:
        encoder: as in `assess`.
        readers: of the images.
        settings: of the probes.
        mesh: whose `data` axis shares the encoding.

    Returns:
        `{"knn_top1": …}` or `{"view_retrieval_top1": …}`.
    """
    one = {"": encoder}
    test, test_labels = _features(one, readers.test(), settings.batch, mesh)
    if (test_labels >= 0).any():
        train, train_labels = _features(one, readers.train(), settings.batch, mesh)
        kept, asked = train_labels >= 0, test_labels >= 0
        sets = (train[""][kept], train_labels[kept], test[""][asked], test_labels[asked])
        return {"knn_top1": knn_top1(*sets, k=settings.knn_k, temperature=settings.knn_temperature)}
    views = _view_features(one, readers.views(), settings.batch, mesh)[""]
    return {"view_retrieval_top1": view_retrieval_top1(views[0::2], views[1::2])}


def pixels(images: Any) -> jax.Array:
    """Raw pixels as features, the floor that a learned representation has to beat.

    Args:
        images: [b, H, W, C], uint8 or float in [0, 1].

    Returns:
        [b, F] in [0, 1]; images larger than 32 pixels a side are averaged down to 32.

    >>> pixels(jnp.full((1, 1, 2, 1), 255, jnp.uint8)).tolist()
    [[1.0, 1.0]]
    """
    unit = as_unit(images)
    if max(unit.shape[1:3]) > PIXELS_SIDE:
        unit = jax.image.resize(unit, (unit.shape[0], PIXELS_SIDE, PIXELS_SIDE, unit.shape[3]), "linear")
    return unit.reshape(unit.shape[0], -1)


def as_unit(images: Any) -> jax.Array:
    """uint8 images divided by 255; float images as they are.

    >>> as_unit(jnp.array([255], jnp.uint8)).tolist()
    [1.0]
    """
    return images.astype(jnp.float32) / 255 if images.dtype == jnp.uint8 else images


def _to_nobody(_: str) -> None:
    """What is told where nobody listens."""


def _counted(chunks: Iterable[Any], name: str, tell: Callable[[str], None]) -> Iterator[Any]:
    """The same chunks of images; says after each how many there were."""
    count = 0
    for chunk in chunks:
        yield chunk
        count += len(chunk["images"] if isinstance(chunk, dict) else chunk)
        tell(f"{count:,} {name} encoded")


def _features(
    encoders: Mapping[str, Represent], chunks: Iterable[dict[str, np.ndarray]], batch: int, mesh: Mesh
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The features of each representation and the labels, in one pass."""
    labels: list[np.ndarray] = []

    def images() -> Iterator[np.ndarray]:
        for chunk in chunks:
            labels.append(chunk["label"])
            yield chunk["images"]

    features = _all_features(encoders, images(), batch, mesh)
    return features, np.concatenate(labels)


def _view_features(
    encoders: Mapping[str, Represent], chunks: Iterable[np.ndarray], batch: int, mesh: Mesh
) -> dict[str, np.ndarray]:
    """The features of each representation, the two views of an image one after the other."""
    flat = (chunk.reshape(-1, *chunk.shape[2:]) for chunk in chunks)
    return _all_features(encoders, flat, batch, mesh)


def _all_features(
    encoders: Mapping[str, Represent], images: Iterable[np.ndarray], batch: int, mesh: Mesh
) -> dict[str, np.ndarray]:
    """The features of each representation, from one joint program a chunk."""
    functions = tuple(encoders.values())
    first, images = _peek(images)
    one = jax.ShapeDtypeStruct((1, *first.shape[1:]), first.dtype)
    widths = [jax.eval_shape(encode, one).shape[1] for encode in functions]
    together = extract(functools.partial(_joint, functions), images, batch=batch, mesh=mesh)
    return dict(zip(encoders, np.split(together, np.cumsum(widths)[:-1], axis=1), strict=True))


@jax.jit
def _joint(encoders: tuple[Represent, ...], images: jax.Array) -> jax.Array:
    """All features of each image, side by side; the encoders are arguments, so new parameters compile nothing."""
    return jnp.concatenate([encode(images).astype(jnp.float32) for encode in encoders], axis=1)


def _peek(chunks: Iterable[np.ndarray]) -> tuple[np.ndarray, Iterator[np.ndarray]]:
    """The first chunk, and all of them."""
    iterator = iter(chunks)
    first = next(iterator)
    return first, itertools.chain([first], iterator)
