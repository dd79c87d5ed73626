"""SimCLR with a ViT-B/32 and 8,192 embeddings in one contrastive problem, on one GPU of 8 GB.

    python -m jaxcl.main --config=configs/vit_b32_stream.py --config.data.root=DIR
    python -m jaxcl.memory --config=configs/vit_b32_stream.py --target=rtx3070-8gb --embeddings=8192,65536

DIR holds `imagenet2012` as array_record; any folder of images does too: `--config.data.name=folder:/path`. Not run yet:
no accuracy (%) and no hours are claimed. `:lora` trains 0.3 M numbers beside the frozen weights of CLIP's image tower:
`--config.model.pretrained=FILE`. The second line says how much memory a step needs.
"""

from jaxcl.config import base_config, with_variant

IMAGES, EPOCHS = 1_281_167, 100


def get_config(variant=""):
    """The run; `lora`, low-rank adaptation of published weights; or the short version `smoke`, on emoji."""
    c = base_config()
    c.data.name = "tfds:imagenet2012"
    c.data.image_size = 224
    c.data.workers = 8
    c.batch.size = 4_096  # two embeddings each
    c.batch.micro = 32
    c.batch.mode = "cached"
    c.batch.images = "host"
    c.steps = IMAGES // c.batch.size * EPOCHS
    c.model.encoder = "vit_b"
    c.model.patch = 32
    c.model.remat = "blocks"
    c.model.dtype = "bfloat16"
    c.model.head_layers = 1
    c.model.head_dim = 512
    c.loss.temperature = 0.1
    c.optim.base_lr = 3e-4
    c.optim.scale_rule = "sqrt"
    c.optim.weight_decay = 0.05
    c.optim.warmup_steps = 10 * (IMAGES // c.batch.size)
    c.checkpoint.every = 1_000
    lora = {
        "lora.rank": 8,
        "model.flavour": "clip",
        "data.statistics": "clip",
        "steps": 3_000,
        "optim.warmup_steps": 100,
    }
    smoke = {
        "steps": 4,
        "optim.warmup_steps": 1,
        "data.name": "emoji",
        "data.image_size": 32,
        "data.workers": 0,
        "batch.size": 16,
        "batch.micro": 8,
    }
    return with_variant(c, variant, lora=lora, smoke=smoke)
