"""placeholder"""

from jaxcl.config import base_config, with_variant


def get_config(variant=""):
    c = base_config()
    c.steps = 900
    c.data.name = "fashion_mnist"
    c.data.image_size = 28
    c.augment.crop_scale_min = 0.3
    c.augment.blur_prob = 0.0
    c.batch.size = 512
    c.loss.temperature = 0.2
    c.loss.top_k = 256
    c.queue.size = 1024
    c.optim.base_lr = 2e-3
    return with_variant(c, variant, smoke={"steps": 25})
