"""CLIP: emoji and their names, an image encoder and a small text transformer over bytes.

    python -m jaxcl.main --config=configs/clip_emoji.py

TODO minutes %
"""

from jaxcl.config import base_config, with_variant


def get_config(variant=""):
    """The run, or its short version `smoke`."""
    c = base_config()
    c.method = "clip"
    c.steps = 600
    c.data.name = "emoji"
    c.augment.crop_scale_min = 0.5
    c.augment.blur_prob = 0.0
    c.augment.hue = 0.02
    c.augment.grayscale_prob = 0.0
    c.model.head_layers = 1
    c.text.length = 48
    c.text.width = 64
    c.text.depth = 2
    c.text.heads = 2
    c.batch.size = 256
    c.loss.temperature = 0.07
    c.optim.base_lr = 2e-3
    c.optim.weight_decay = 0.1
    return with_variant(c, variant, smoke={"steps": 10, "optim.warmup_steps": 2})
