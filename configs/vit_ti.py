"""ViT-Ti on emoji of 32 pixels in patches of 8."""

from jaxcl.config import base_config, with_variant


def get_config(variant=""):
    c = base_config()
    c.steps = 400
    c.data.name = "emoji"
    c.augment.crop_scale_min = 0.3
    c.augment.blur_prob = 0.0
    c.model.encoder = "vit_ti"
    c.model.patch = 16
    c.batch.size = 128
    c.loss.temperature = 0.1
    c.loss.top_k = None  # all negatives
    c.queue.size = 0
    c.optim.base_lr = 1e-3
    c.optim.weight_decay = 0.05
    return with_variant(c, variant, smoke={"steps": 6, "optim.warmup_steps": 2})
