"""MoCo v2 with a ResNet-18 on four GPUs of 8 GB: a queue of 16,384 a device, bfloat16, 64 images eight times an update.

    python -m jaxcl.main --config=configs/low_memory_4x8gb.py --config.data.root=DIR

DIR holds `imagenet2012` as array_record; any folder of images does too: `--config.data.name=folder:/path`. Not run
yet: no accuracy (%) and no hours are claimed. The queue is one, split over the devices: 65,536 keys of 128 float16
numbers, 4 MiB a device, where a copy on each would be 16. Accumulation adds no negatives.
"""

from jaxcl.config import base_config, with_variant


def get_config(variant=""):
    """The run, or its short version `smoke`."""
    c = base_config()
    c.method = "moco_v2"
    c.steps = 250_000  # 100 epochs of ImageNet-1k
    c.data.name = "tfds:imagenet2012"
    c.data.image_size = 224
    c.data.workers = 8
    c.batch.size = 512
    c.batch.micro = 64
    c.model.encoder = "resnet18"
    c.model.stem = "imagenet"
    c.model.dtype = "bfloat16"
    c.model.head_norm = False
    c.queue.size = 65_536
    c.loss.top_k = 4_096
    c.loss.tail = "sampled"
    c.loss.tail_samples = 1_024
    c.loss.temperature = 0.2
    c.target.decay = 0.999
    c.target.key_splits = 8
    c.optim.name = "sgd"
    c.optim.base_lr = 0.03
    c.optim.warmup_steps = 5_000
    c.checkpoint.every = 2_000
    c.log.every = 50
    return with_variant(c, variant, smoke={"steps": 8, "optim.warmup_steps": 2})
