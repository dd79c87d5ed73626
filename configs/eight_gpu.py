"""MoCo v2 with SimCLR's augmentation on eight GPUs: batch 256 four times an update, a queue of 8,192, moving schedules.

    python -m jaxcl.main --config=configs/eight_gpu.py --config.data.root=DIR

For eight GPUs of 24 GB; DIR holds `imagenet2012` as array_record. Not run yet: no accuracy (%) and no hours are
claimed. Accumulation averages gradients of four problems of 256 images; it adds no negatives, the queue does.
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
    c.batch.size = 1024
    c.batch.micro = 256
    c.steps = IMAGES // c.batch.size * EPOCHS
    c.model.encoder = "resnet50"
    c.model.stem = "imagenet"
    c.model.dtype = "bfloat16"
    c.model.head_hidden = 2048
    c.model.head_norm = False
    c.queue.size = 8_192  # not 65,536: older keys are of another encoder
    c.queue.start = 4_096
    c.queue.schedule = "linear"
    c.target.decay = 0.99
    c.target.schedule = "cosine"
    c.target.key_splits = 8
    c.loss.temperature = 0.2
    c.loss.temperature_end = 0.1
    c.loss.temperature_schedule = "cosine"
    c.optim.name = "sgd"
    c.optim.base_lr = 0.03
    c.optim.warmup_steps = 10 * (IMAGES // c.batch.size)
    c.optim.clip_norm = 1.0
    c.checkpoint.every = 2_000
    c.log.every = 50
    return with_variant(c, variant, smoke={"steps": 8, "optim.warmup_steps": 2})
