"""SimCLR with a streaming top-k InfoNCE and a float16 queue on 1,519 emoji, on any laptop."""

from jaxcl.config import base_config, with_variant


def get_config(variant=""):
    c = base_config()
    c.steps = 450
    c.data.name = "emoji"
    c.augment.crop_scale_min = 0.3
    c.augment.blur_prob = 0.0
    c.batch.size = 256
    c.loss.temperature = 0.1
    c.loss.top_k = 256
    c.queue.size = 512
    c.optim.base_lr = 1e-2
    return with_variant(c, variant, smoke={"steps": 20, "optim.warmup_steps": 5})
