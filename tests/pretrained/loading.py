"""Networks of ours in the shape of the tiny originals, filled from a file through the whole path of a run."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from originals import BERT_VOCAB, CLIP_VOCAB, DEPTH, HEADS, LENGTH, PATCH, PROJECTION, SIDE, WIDTH

from jaxcl import models
from jaxcl.build import make_networks
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


def an_encoder(config):
    """The encoder of a config and its random variables, below the name that methods give it."""
    module = models.make_encoder(config.model)
    views = jnp.zeros((1, config.data.image_size, config.data.image_size, 3))
    return module, jax.jit(lambda key: init_chain({"encoder": module}, key, views))(jax.random.key(1))


def features(config, x, **options):
    """What the encoder of a config says of images, filled with its weights."""
    module, variables = an_encoder(config)
    filled = with_given(variables, find_weights(config, variables, **options)())
    own = {kind: tree["encoder"] for kind, tree in filled.items()}
    return np.asarray(jax.jit(partial(module.apply, train=False))(own, x))


def two_towers(model, text, side=SIDE, **changes):
    """A CLIP method and its variables, filled with the weights that its config names."""
    vocab = CLIP_VOCAB if text.get("flavour") == "clip_text" else BERT_VOCAB
    given = {"patch": PATCH, "head_layers": 1, "head_dim": PROJECTION, "encoder": "vit_ti", **model}
    values = {"method": "clip", "data": {"image_size": side}, "model": given, "text": {**TEXT, **text}, **changes}
    config = resolve(values)
    networks = make_networks(config, norm_momentum=0.9, vocab=3 + vocab)
    method = find("clip")(networks=networks, config=config)
    inputs = Captioned(jnp.zeros((1, 1, side, side, 3)), jnp.zeros((1, LENGTH), jnp.int32))
    variables = jax.jit(method.init)(jax.random.key(1), inputs)
    load = find_weights(config, variables)
    return method, with_given(variables, load() if load else {})

