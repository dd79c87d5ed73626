"""ResNet-18 on emoji of 32 pixels with the ImageNet stem, which makes it 16 times cheaper than the small one."""

from jaxcl.config import base_config, with_variant


def get_config(variant=""):
    c = base_config()
    c.steps = 200
    c.data.name = "emoji"
    c.augment.crop_scale_min = 0.3
    c.augment.blur_prob = 0.0
    c.model.encoder = "resnet18"
    c.model.stem = "imagenet"
    c.batch.size = 64
    c.loss.temperature = 0.2
    c.loss.top_k = None  # all negatives
    c.queue.size = 0
    c.optim.base_lr = 4e-3
    return with_variant(c, variant, smoke={"steps": 8, "optim.warmup_steps": 2})
