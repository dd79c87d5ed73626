"""SimCLR with a ViT-B/32 on CIFAR-100 at 224 pixels: the k hardest negatives and a sampled tail, 512 dimensions.

    python -m jaxcl.main --config=configs/cifar100_vit_b32.py --config.data.root=DIR

For one GPU of 24 GB; DIR holds `cifar100` as array_record. Not run yet: no accuracy (%) and no hours are claimed, and
the paper that trains this encoder gives neither k nor temperature nor accuracy.
"""

from jaxcl.config import base_config, with_variant

IMAGES, EPOCHS = 50_000, 100


def get_config(variant=""):
    """The run, or its short version `smoke`."""
    c = base_config()
    c.data.name = "tfds:cifar100"
    c.data.image_size = 224
    c.data.workers = 8
    c.augment.blur_prob = 0.0  # of 32 pixels, blown up
    c.batch.size = 512
    c.steps = IMAGES // c.batch.size * EPOCHS
    c.model.encoder = "vit_b"
    c.model.patch = 32
    c.model.remat = "blocks"
    c.model.dtype = "bfloat16"
    c.model.head_dim = 512
    c.model.head_hidden = 2048
    c.loss.top_k = 51  # 5 % of 1,022
    c.loss.tail = "sampled"
    c.loss.tail_samples = 51
    c.loss.temperature = 0.2
    c.optim.base_lr = 3e-4
    c.optim.weight_decay = 0.05
    c.optim.warmup_steps = 10 * (IMAGES // c.batch.size)
    c.checkpoint.every = 1_000
    return with_variant(c, variant, smoke={"steps": 8, "optim.warmup_steps": 2})
