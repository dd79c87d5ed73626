"""MoCo v2: queries against a queue of 4,096 keys of a momentum encoder, on Fashion-MNIST.

    python -m jaxcl.main --config=configs/moco_v2.py

One CPU core, 3 CPU minutes with the probes. 2026-11-30, seed 0, 200 steps: linear probe 86.9 % (raw pixels 84.7, random
encoder 85.5), kNN 85.0 % (84.6, 83.4), view retrieval 5.3 % (3.7, 2.9). Its settings are first guesses, not tuned. The
loss begins at 0, with an empty queue, and falls only once that is full.
"""

from jaxcl.config import base_config, with_variant


def get_config(variant=""):
    """The run, or its short version `smoke`."""
    c = base_config()
    c.method = "moco_v2"
    c.steps = 200
    c.data.name = "fashion_mnist"
    c.data.image_size = 28
    c.augment.crop_scale_min = 0.5
    c.augment.blur_prob = 0.0
    c.batch.size = 512
    c.queue.size = 4096  # keys of the eight batches before
    c.target.decay = 0.99
    c.target.key_splits = 8  # of 64 images, each with batch statistics of its own
    c.model.head_norm = False  # as in the paper: two linear layers and a ReLU
    c.loss.temperature = 0.2
    c.optim.base_lr = 4e-3
    return with_variant(c, variant, smoke={"steps": 12, "optim.warmup_steps": 2, "batch.size": 128, "queue.size": 512})
