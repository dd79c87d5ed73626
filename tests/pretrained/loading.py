"""Networks of ours in the shape of the tiny originals, filled from a file through the whole path of a run."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from compile_options import FAST_COMPILE
from originals import BERT_VOCAB, CLIP_VOCAB, DEPTH, HEADS, LENGTH, PATCH, PROJECTION, SIDE, WIDTH

from jaxcl import models
from jaxcl.blueprint import make_networks
from jaxcl.config import resolve
from jaxcl.methods import find
from jaxcl.methods.base import Captioned
from jaxcl.methods.parts.networks import init_chain
from jaxcl.models.resnet import BasicBlock, Bottleneck, ResNet
from jaxcl.models.vit import ViT
from jaxcl.pretrained import find_weights
from jaxcl.state import with_given

RESNETS = {
    "resnet18": partial(ResNet, BasicBlock, (2, 1, 1, 2), width=2),
    "resnet50": partial(ResNet, Bottleneck, (1, 1, 2, 1), width=2),
}
# of each original what a config says
SETTINGS = {
    "hf_vit": dict(encoder="vit_ti", flavour="hf"),
    "hf_dinov2": dict(encoder="vit_ti", flavour="dinov2"),
    "hf_clip": dict(encoder="vit_ti", flavour="clip"),
    "hf_bert": dict(encoder="vit_ti"),
    "hf_resnet_basic": dict(encoder="resnet18", stem="imagenet"),
    "hf_resnet_bottleneck": dict(encoder="resnet50", stem="imagenet"),
    "timm_vit": dict(encoder="vit_ti", flavour="plain"),
    "timm_dinov2": dict(encoder="vit_ti", flavour="dinov2"),
    "timm_clip": dict(encoder="vit_ti", flavour="clip"),
}
TEXT = dict(width=WIDTH, depth=DEPTH, heads=HEADS, length=LENGTH)


def shrink(monkeypatch):
    """The smallest networks of each kind are as tiny as the originals."""
    monkeypatch.setitem(models.VITS, "vit_ti", partial(ViT, WIDTH, HEADS, depth=DEPTH))
    for name, network in RESNETS.items():
        monkeypatch.setitem(models.RESNETS, name, network)


def a_config(name, file, side=SIDE, **changes):
    model = {**SETTINGS.get(name, {}), "patch": PATCH, "pretrained": str(file)}
    return resolve({"data": {"image_size": side}, "model": {**model, **changes}})


def shapes_of(config):
    """The encoder of a config and the shapes of its variables, below the name that methods give it."""
    module = models.make_encoder(config.model)
    views = jnp.zeros((1, config.data.image_size, config.data.image_size, 3))
    return module, jax.eval_shape(lambda key: init_chain({"encoder": module}, key, views), jax.random.key(1))


def features(config, x):
    """What the encoder of a config says of images, filled with its weights."""
    module, shapes = shapes_of(config)
    filled = with_given(shapes, find_weights(config, shapes)())
    own = {kind: tree["encoder"] for kind, tree in filled.items()}
    return np.asarray(jax.jit(partial(module.apply, train=False), compiler_options=FAST_COMPILE)(own, x))


def two_towers(model, text, side=SIDE, **changes):
    """The networks of CLIP and their variables: weights that its config names, and shapes where it names none."""
    vocab = CLIP_VOCAB if text.get("flavour") == "clip_text" else BERT_VOCAB
    given = {"patch": PATCH, "head_layers": 1, "head_dim": PROJECTION, "encoder": "vit_ti", **model}
    values = {"method": "clip", "data": {"image_size": side}, "model": given, "text": {**TEXT, **text}, **changes}
    config = resolve(values)
    networks = make_networks(config, norm_momentum=0.9, vocab=3 + vocab)
    method = find("clip")(networks=networks, config=config)
    inputs = Captioned(jnp.zeros((1, 1, side, side, 3)), jnp.zeros((1, config.text.length), jnp.int32))
    shapes = jax.eval_shape(method.init, jax.random.key(1), inputs)
    return networks, with_given(shapes, find_weights(config, shapes)())


def say(networks, variables, names, x):
    """What a chain of networks says at its end."""
    for name in names:
        own = {"params": variables["params"][name], "batch_stats": variables["batch_stats"][name]}
        x = jax.jit(networks[name].apply, compiler_options=FAST_COMPILE)(own, x)
    return np.asarray(x)
