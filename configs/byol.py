"""BYOL: a predictor and a momentum encoder instead of negatives, on Fashion-MNIST.

    python -m jaxcl.main --config=configs/byol.py

2 CPU cores, about 6 minutes; not yet measured against the other methods.
"""

from jaxcl.config import base_config, with_variant


def get_config(variant=""):
    """The run, or its short version `smoke`."""
    c = base_config()
    c.method = "byol"
    c.steps = 760
    c.data.name = "fashion_mnist"
    c.data.image_size = 28
    c.augment.crop_scale_min = 0.5
    c.augment.blur_prob = 0.0
    c.batch.size = 512
    c.target.decay = 0.99
    c.target.schedule = "cosine"
    c.optim.base_lr = 1e-2
    return with_variant(c, variant, smoke={"steps": 12, "optim.warmup_steps": 2, "batch.size": 128})
