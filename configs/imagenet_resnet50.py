"""MoCo v2 with a ResNet-50 on ImageNet-1k: two views of 224 pixels, SimCLR's augmentation, a queue of 65,536.

    python -m jaxcl.main --config=configs/imagenet_resnet50.py --config.data.root=DIR

For eight GPUs of 24 GB or more; DIR holds `imagenet2012` as array_record. Not run yet: no accuracy is claimed, and the
hours are those of the machine. The report has the linear evaluation (logistic regression on frozen features of the
50,000 validation images) and the device-days. The published aim for 200 epochs of MoCo v2 is 67.5 %.
"""

from jaxcl.config import base_config, with_variant

IMAGES, EPOCHS = 1_281_167, 200


def get_config(variant=""):
    """The run, or its short version `smoke`."""
    c = base_config()
    c.method = "moco_v2"
    c.data.name = "tfds:imagenet2012"
    c.data.image_size = 224
    c.data.workers = 16
    c.batch.size = 256
    c.steps = IMAGES // c.batch.size * EPOCHS
    c.augment.blur_sigma_max = 2.0
    c.model.encoder = "resnet50"
    c.model.stem = "imagenet"
    c.model.dtype = "bfloat16"
    c.model.head_hidden = 2048
    c.model.head_norm = False  # as in the paper: two linear layers and a ReLU
    c.queue.size = 65_536
    c.target.decay = 0.999
    c.target.key_splits = 8
    c.loss.temperature = 0.2
    c.optim.name = "sgd"
    c.optim.base_lr = 0.03
    c.optim.warmup_steps = 10 * (IMAGES // c.batch.size)
    c.optim.clip_norm = None
    c.checkpoint.every = 5_000
    c.log.every = 50
    return with_variant(c, variant, smoke={"steps": 8, "optim.warmup_steps": 2})
