"""The network of the PyTorch baseline is ours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcl.models import ProjectionHead, ViT
from jaxcl.planner.torch_tower import Shape, embed, make_tower

SHAPE = Shape(image_size=16, patch=8, width=24, depth=2, heads=3, mlp=96, head_dim=6, head_hidden=(10,))


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="needs the extra torch")


def copied(torch, linear, layer):
    """A layer of Flax written into one of PyTorch."""
    kernel, bias = np.asarray(layer["kernel"]), layer.get("bias")
    linear.weight.data = torch.tensor(kernel.T.copy())
    if bias is not None:
        linear.bias.data = torch.tensor(np.asarray(bias))


def tower_of(torch, encoder, head, shape):
    """The tower with the parameters of our encoder and head."""
    tower = make_tower(shape)
    copied(torch, tower["patches"], encoder["patches"])
    for name in ("cls", "position") if shape.pool != "mean" else ("position",):
        getattr(tower, name).data = torch.tensor(np.asarray(encoder[name]))
    norms = [(tower["norm"], encoder["norm"])]
    for number, layer in enumerate(tower["layers"]):
        own = jax.tree.map(lambda x, number=number: x[number], encoder["layers"])
        for name in ("qkv", "project", "mlp1", "mlp2"):
            copied(torch, layer[name], own[name])
        norms += [(layer[name], own[name]) for name in ("norm1", "norm2")]
    copied(torch, tower["head"][0], head["dense1"])
    norms.append((tower["head"][1], head["norm1"]["batch"]))
    copied(torch, tower["head"][2], head["dense2"])
    for norm, own in norms:
        norm.weight.data, norm.bias.data = (torch.tensor(np.asarray(own[name])) for name in ("scale", "bias"))
    return tower


@pytest.mark.parametrize("pool", ["cls", "mean", "cls_mean"])
def test_the_tower_computes_what_ours_does(torch, pool):
    shape = SHAPE._replace(pool=pool)
    encoder = ViT(shape.width, shape.heads, shape.depth, shape.patch, pool)
    head = ProjectionHead(hidden=shape.head_hidden[0], dim=shape.head_dim)
    images = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), np.uint8)
    pixels = (jnp.asarray(images) / 255 - 0.5) / 0.25
    keys = jax.random.split(jax.random.key(1))
    variables = encoder.init(keys[0], pixels)
    variables = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(keys[1], x.shape), variables)
    features = encoder.apply(variables, pixels)
    of_head = head.init(keys[1], features)
    expected, _ = head.apply(of_head, features, train=True, mutable=["batch_stats"])
    tower = tower_of(torch, variables["params"], of_head["params"], shape)
    ours = embed(tower, torch.tensor(images.transpose(0, 3, 1, 2).copy()), shape)
    np.testing.assert_allclose(ours.detach().numpy(), expected, rtol=1e-3, atol=1e-4)
