"""From arrays of another library to one leaf of ours: which of them, and what is done to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from jaxcl.pretrained.positions import resize_positions

# of `jaxcl.data.tokens`: padding, start and end are ours, and tokens of a tokenizer.json follow
OURS = 3

Change = Callable[[list[np.ndarray], tuple[int, ...]], np.ndarray]


class Rule(NamedTuple):
    """Where one leaf comes from.

    Attributes:
        leaf: its path in our variables; below `layers` a leading axis stacks those of all layers.
        names: arrays in the file; `{}` is the number of the layer.
        change: from these arrays and the shape of the leaf (of one layer) to the leaf.
    """

    leaf: str
    names: tuple[str, ...]
    change: Change


class Family(NamedTuple):
    """How one library names the arrays of one kind of network.

    Attributes:
        title: for people.
        flavour: what `model.flavour` or `text.flavour` must be; None: it has none.
        anchor: the end of the name of an array that such a file has, and no file of a family before it.
        rules: one for each leaf.
        ignored: begins of the names of arrays that are no part of the network.
    """

    title: str
    flavour: str | None
    anchor: str
    rules: tuple[Rule, ...]
    ignored: tuple[str, ...] = ()


def dense(leaf: str, *names: str, bias: bool = True) -> Iterable[Rule]:
    """The rules of a linear layer, or of several side by side: kernels are [out, in] there."""
    yield Rule(f"{leaf}/kernel", tuple(f"{name}.weight" for name in names), side_by_side)
    if bias:
        yield Rule(f"{leaf}/bias", tuple(f"{name}.bias" for name in names), side_by_side)


def norm(leaf: str, name: str) -> Iterable[Rule]:
    """The rules of a layer norm."""
    yield Rule(f"{leaf}/scale", (f"{name}.weight",), same)
    yield Rule(f"{leaf}/bias", (f"{name}.bias",), same)


def same(arrays: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """As it is."""
    return arrays[0]


def side_by_side(arrays: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Kernels turned round, along the outputs; biases one after another."""
    return np.concatenate([array.T for array in arrays], axis=-1)


def row(arrays: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """A vector as [1, 1, d]."""
    return arrays[0].reshape(1, 1, -1)


def convolution(arrays: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """[out, in, h, w] as [h, w, in, out]."""
    return arrays[0].transpose(2, 3, 1, 0)


def patches(arrays: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """The convolution over patches as a matrix over their pixels, row by row."""
    kernel = convolution(arrays, shape)
    return kernel.reshape(-1, kernel.shape[-1])


def positions(*, antialias: bool) -> Change:
    """Position embeddings [t, d] or [1, t, d], resized to the patches of the leaf."""

    def change(arrays: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        whole = arrays[0].reshape(1, *arrays[0].shape[-2:])
        return resize_positions(whole, shape[1], antialias=antialias)

    return change


def text_positions(arrays: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """The first positions, with the embedding of the first sentence that BERT adds to all of them."""
    positions, *sentences = arrays
    return (positions[: shape[1]] + sum(sentence[0] for sentence in sentences))[None]


def tokens(pad: int, start: int, end: int) -> Change:
    """Embeddings of our padding, start and end are those of these tokens of theirs; then come all of theirs."""

    def change(arrays: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        table = arrays[0]
        return np.concatenate([table[[pad, start, end]], table])

    return change


def zeros(arrays: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """A bias that the original does not have."""
    return np.zeros(shape, np.float32)
