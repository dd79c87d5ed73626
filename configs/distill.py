"""Distillation of a trained encoder into a ResNet-18 on Fashion-MNIST.

    python -m jaxcl.main --config=configs/fashion_mnist.py:short --workdir=runs/teacher
    python -m jaxcl.main --config=configs/distill.py

The first command trains the teacher, any finished run will do: `--config.distill.teacher=DIR`. One CPU core, MINUTES
minutes of training. 2026-11-30, seed 0: %
"""

from jaxcl.config import base_config, with_variant


def get_config(variant=""):
    """The run, or its short version `smoke`."""
    c = base_config()
    c.method = "distill"
    c.steps = 300
    c.data.name = "fashion_mnist"
    c.data.image_size = 28
    c.augment.crop_scale_min = 0.5  # as the teacher's
    c.augment.brightness = 0.2
    c.augment.contrast = 0.2
    c.augment.blur_prob = 0.0
    c.model.encoder = "resnet18"
    c.model.stem = "imagenet"  # at 28 pixels a sixteenth of the small stem's cost
    c.batch.size = 128
    c.distill.teacher = "runs/teacher"
    c.loss.temperature = 0.1
    c.queue.size = 4096
    c.optim.base_lr = 4e-3
    return with_variant(c, variant, smoke={"steps": 8, "optim.warmup_steps": 2})
