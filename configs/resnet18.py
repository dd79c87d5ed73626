"""SimCLR with a ResNet-18 on emoji: a large encoder for two cores, a starting point for a GPU.

    python -m jaxcl.main --config=configs/resnet18.py

2 CPU cores, about 10 minutes. Not yet shown to beat its floors in that time: raw pixels 64.4 %, random encoder 51.2 %.
"""

from jaxcl.config import base_config, with_variant


def get_config(variant=""):
    """The run, or its short version `smoke`."""
    c = base_config()
    c.steps = 200
    c.data.name = "emoji"
    c.augment.crop_scale_min = 0.3
    c.augment.blur_prob = 0.0
    c.model.encoder = "resnet18"
    c.model.stem = "imagenet"  # at 32 pixels a sixteenth of the small stem's cost
    c.batch.size = 64
    c.loss.temperature = 0.2  # all negatives: with the 128 hardest of 638 at 0.1 it collapsed
    c.optim.base_lr = 4e-3
    return with_variant(c, variant, smoke={"steps": 8, "optim.warmup_steps": 2})
