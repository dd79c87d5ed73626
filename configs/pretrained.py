"""SimCLR on your images from the weights of a DINOv2 ViT-S/14, which you have downloaded; nothing is downloaded here.

    python -m jaxcl.main --config=configs/pretrained.py --config.model.pretrained=/path/to/model.safetensors

For one GPU of 8 GB. Not run yet: no accuracy (%) and no time are claimed. Other weights: the table in the README.
"""

from jaxcl.config import base_config, with_variant


def get_config(variant=""):
    """The run; `short`, two steps of it; or `smoke`, which needs no file and begins with random weights."""
    c = base_config()
    c.method = "simclr"
    c.steps = 1_000
    c.data.name = "emoji"
    c.data.image_size = 98  # 7 x 7 patches; position embeddings are resized
    c.data.statistics = "imagenet"
    c.model.encoder = "vit_s"
    c.model.patch = 14
    c.model.flavour = "dinov2"
    c.model.remat = "blocks"
    c.batch.size = 128
    c.optim.base_lr = 1e-4  # a tenth of that of random weights
    c.optim.warmup_steps = 100
    short = {"steps": 2, "optim.warmup_steps": 1, "data.image_size": 28, "batch.size": 8, "eval.linear_steps": 10}
    return with_variant(c, variant, short=short, smoke={**short, "model.flavour": "plain"})
