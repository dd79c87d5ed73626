"""Distillation of a trained encoder into a ResNet-18 on Fashion-MNIST.

    python -m jaxcl.main --config=configs/fashion_mnist.py:short --workdir=runs/teacher
    python -m jaxcl.main --config=configs/distill.py

The first line trains the teacher, 2 minutes on one CPU core; any finished run will do: `--config.distill.teacher=DIR`.
Linear probe and kNN, seed 0, raw pixels 84.7 % and 84.6 %: the teacher 88.1 % and 85.0 %; the ResNet-18, after 4 to 7
CPU minutes, 85.7 % and 83.1 % (random 25.2 and 28.8; 2026-12-01); the teacher's twin, `:conv`, 87.7 % and 84.5 % after
120 steps, 3 CPU minutes with the probes (random 85.5 and 83.4; 2026-11-30).
"""

from jaxcl.config import base_config, with_variant


def get_config(variant=""):
    """The run; `conv`, into an encoder like the teacher's; or the short version `smoke`."""
    c = base_config()
    c.method = "distill"
    c.steps = 150
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
    c.distill.teacher_temperature = 0.05  # it then means some 20 of the 4,352 rows of the bank
    c.loss.temperature = 0.1
    c.queue.size = 4096
    c.optim.base_lr = 4e-3
    c.optim.warmup_steps = 15
    conv = {
        "model.encoder": "conv",
        "model.stem": "small",
        "steps": 120,
        "batch.size": 512,
        "optim.base_lr": 2e-2,
        "optim.warmup_steps": 20,
    }
    return with_variant(c, variant, conv=conv, smoke={"steps": 8, "optim.warmup_steps": 2})
