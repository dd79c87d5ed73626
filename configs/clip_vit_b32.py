"""CLIP with a ViT-B/32 and a text transformer of 12 layers, as published in shape, on your own image-caption pairs.

    python -m jaxcl.main --config=configs/clip_vit_b32.py --config.data.name=folder:/path/to/images

For one GPU of 24 GB; the folder holds `captions.tsv` (path, tab, caption). Not run yet: no accuracy (%) and no hours
are claimed. Captions are bytes, as no vocabulary comes with this package: `--config.text.tokenizer=tokenizer.json`.
"""

from jaxcl.config import base_config, with_variant


def get_config(variant=""):
    """The run, or its short version `smoke`."""
    c = base_config()
    c.method = "clip"
    c.steps = 100_000
    c.data.name = "folder:pairs"
    c.data.image_size = 224
    c.data.workers = 8
    c.augment.crop_scale_min = 0.9  # the paper's only augmentation is a crop
    c.augment.flip_prob = 0.0  # a caption may say left or right
    c.augment.jitter_prob = 0.0
    c.augment.grayscale_prob = 0.0
    c.augment.blur_prob = 0.0
    c.model.encoder = "vit_b"
    c.model.patch = 32
    c.model.remat = "blocks"
    c.model.dtype = "bfloat16"
    c.model.head_layers = 1
    c.model.head_dim = 512
    c.text.length = 77
    c.text.width = 512
    c.text.depth = 12
    c.text.heads = 8
    c.batch.size = 512
    c.loss.temperature = 0.07  # where it starts
    c.optim.base_lr = 2.5e-4
    c.optim.weight_decay = 0.2
    c.optim.warmup_steps = 2_000
    c.checkpoint.every = 2_000
    c.log.every = 50
    return with_variant(c, variant, smoke={"steps": 8, "optim.warmup_steps": 2})
