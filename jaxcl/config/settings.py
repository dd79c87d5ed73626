"""Every setting of a run: its default, its meaning and its range."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """One setting: its default, what it means (with the unit), and the values it may take.

    Args:
        default: value used where a config says nothing; None for a setting that may stay empty.
        help: one line, with the unit.
        low: smallest allowed value, included.
        high: largest allowed value, included.
        choices: the only allowed strings.

    Returns:
        A dataclass field that carries these facts as metadata.
    """
    return field(default=default, metadata=dict(help=help, low=low, high=high, choices=choices))


SCHEDULES = ("constant", "linear", "cosine")
# a learned temperature stays within [1/100, 100]: Radford et al. 2021, section 2.5, for the lower end
MAX_LOGIT_SCALE = 100.0
LORA_TARGETS = ("attention", "mlp", "conv", "patches")


@dataclass(frozen=True)
class DataConfig:
    """Which images, and how they are read."""

    name: str = setting("emoji", "emoji | fashion_mnist | folder:/path | tfds:NAME")
    root: str | None = setting(None, "folder of the prepared files (IDX files, TFDS data_dir); empty: the usual place")
    image_size: int = setting(32, "pixels a side, after the crop", low=8, high=1024)
    caption: str | None = setting(None, "tfds: the text feature that is the caption, for methods that read one")
    label: str = setting("group", "emoji: which label is probed", choices=("group", "subgroup"))
    skin_tones: bool = setting(False, "emoji: also the skin-tone variants (3,773 images instead of 1,898)")
    background: str = setting("white", "emoji: colour behind the transparent parts", choices=("white", "random"))
    holdout: float = setting(0.2, "fraction held out for evaluation where the source has no split", low=1e-6, high=0.9)
    validation: float = setting(
        0.0,
        "share of the training images held out and scored in place of the test images, to choose settings by",
        low=0.0,
        high=0.9,
    )
    workers: int = setting(0, "Grain worker processes; 0 reads in threads of this process", low=0, high=256)
    max_bad_fraction: float = setting(0.01, "share of unreadable images above which the run stops", low=0.0, high=1.0)
    max_pixels: int = setting(50_000_000, "pixels of one image above which it is not decoded", low=64)
    mean: float = setting(0.5, "subtracted from pixels in [0, 1]", low=0.0, high=1.0)
    std: float = setting(0.25, "pixels in [0, 1] are divided by it", low=1e-3, high=1e3)
    statistics: str = setting(
        "given",
        "pixels are normalised by data.mean and data.std, or channel by channel as published weights expect them",
        choices=("given", "half", "imagenet", "clip"),
    )


@dataclass(frozen=True)
class AugmentConfig:
    """How one view is made: the crop on the host, the rest on the device."""

    crop_scale_min: float = setting(0.2, "smallest share of the image's area in a crop", low=1e-4, high=1.0)
    crop_scale_max: float = setting(1.0, "largest share of the image's area in a crop", low=1e-4, high=1.0)
    crop_ratio: float = setting(4 / 3, "aspect ratio of a crop lies in [1/ratio, ratio]", low=1.0, high=10.0)
    flip_prob: float = setting(0.5, "probability of a mirror image", low=0.0, high=1.0)
    jitter_prob: float = setting(0.8, "probability of colour jitter", low=0.0, high=1.0)
    brightness: float = setting(0.4, "jitter: factor in [1 - b, 1 + b]", low=0.0, high=1.0)
    contrast: float = setting(0.4, "jitter: factor in [1 - c, 1 + c]", low=0.0, high=1.0)
    saturation: float = setting(0.4, "jitter: factor in [1 - s, 1 + s]; colour images", low=0.0, high=1.0)
    hue: float = setting(0.1, "jitter: turns of the hue circle, in [-h, h]; colour images", low=0.0, high=0.5)
    grayscale_prob: float = setting(0.2, "probability of gray; colour images", low=0.0, high=1.0)
    blur_prob: float = setting(0.5, "probability of a Gaussian blur", low=0.0, high=1.0)
    blur_sigma_min: float = setting(0.1, "blur: smallest standard deviation, pixels", low=1e-3, high=1e3)
    blur_sigma_max: float = setting(2.0, "blur: largest standard deviation, pixels", low=1e-3, high=1e3)
    solarize_prob: float = setting(0.0, "probability of solarization", low=0.0, high=1.0)
    solarize_threshold: float = setting(0.5, "pixels above it are inverted, of [0, 1]", low=0.0, high=1.0)


@dataclass(frozen=True)
class ModelConfig:
    """Encoder and projection head."""

    encoder: str = setting(
        "conv",
        "the backbone",
        choices=("conv", "resnet18", "resnet34", "resnet50", "vit_ti", "vit_s", "vit_b"),
    )
    stem: str = setting("small", "ResNet: small (images up to 64 px) or imagenet", choices=("small", "imagenet"))
    norm: str = setting("batch", "ResNet, conv: normalisation", choices=("batch", "group"))
    patch: int = setting(4, "ViT: pixels a patch side; must divide image_size", low=1, high=64)
    pool: str = setting(
        "cls",
        "ViT: features are the class token, the mean of the patches, or both side by side",
        choices=("cls", "mean", "cls_mean"),
    )
    flavour: str = setting(
        "plain",
        "ViT: ours and timm's, or that of published weights: hf (ViT of Hugging Face), clip, dinov2",
        choices=("plain", "hf", "clip", "dinov2"),
    )
    pretrained: str | None = setting(
        None, "weights that the encoder starts with: .safetensors, .npz, .onnx, or a folder with one of them"
    )
    allow_partial: bool = setting(False, "pretrained weights may fill a part of a network only; says how much")
    remat: str = setting(
        "none",
        "ViT, text tower: what the backward pass computes again; dots: attention; blocks: each layer from its tokens",
        choices=("none", "dots", "blocks"),
    )
    dtype: str = setting("float32", "compute type; parameters stay float32", choices=("float32", "bfloat16", "float16"))
    head_layers: int = setting(2, "linear layers in the projection head", low=1, high=3)
    head_hidden: int = setting(512, "width of the head's hidden layers", low=1, high=2**16)
    head_dim: int = setting(128, "dimensions of an embedding", low=2, high=2**16)
    head_norm: bool = setting(True, "batch norm after the hidden layers of head and predictor")
    head_norm_out: bool = setting(False, "batch norm after the head's last layer too (SimSiam, MoCo v3)")
    predictor_layers: int = setting(2, "methods with a predictor: its linear layers", low=1, high=3)
    predictor_hidden: int = setting(512, "methods with a predictor: width of its hidden layers", low=1, high=2**16)


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adaptation: encoder and text tower stay frozen, and only small matrices beside their kernels learn."""

    rank: int = setting(
        0, "of the matrices A and B beside each kernel; 0: all parameters are trained", low=0, high=1024
    )
    alpha: float | None = setting(None, "A B is added alpha / rank times; empty: once", low=1e-6, high=1e6)
    targets: str | None = setting(
        None,
        f"kernels, with commas: {', '.join(LORA_TARGETS)}, or patterns such as encoder/layers/q*; empty: all "
        "there are but patches",
    )

    @property
    def words(self) -> list[str]:
        """The targets one by one."""
        return [word.strip() for word in (self.targets or "").split(",")]


@dataclass(frozen=True)
class TextConfig:
    """The text tower of methods that read captions, and how a caption becomes tokens."""

    tokenizer: str = setting(
        "bytes", "bytes (UTF-8) | words (by hash) | path of a tokenizer.json (pip install tokenizers)"
    )
    length: int = setting(64, "tokens of a caption, start and end included; longer ones are cut", low=3, high=4096)
    width: int = setting(128, "of a token; text.heads must divide it", low=8, high=2**14)
    depth: int = setting(2, "layers", low=1, high=128)
    heads: int = setting(4, "attention heads", low=1, high=256)
    flavour: str = setting(
        "plain",
        "ours; clip_text: causal, read at the end token; bert: norms after the sums",
        choices=("plain", "clip_text", "bert"),
    )
    pretrained: str | None = setting(None, "weights that the text tower starts with, as model.pretrained")


@dataclass(frozen=True)
class LossConfig:
    """The contrastive loss."""

    impl: str = setting(
        "strip",
        "strip: streamed, exact, fast; column: as in the paper; dense: the N x N definition",
        choices=("strip", "column", "dense"),
    )
    temperature: float = setting(
        0.2, "cosines are divided by it; the first one of a schedule, or of a learned one", low=1e-5, high=1e5
    )
    temperature_end: float | None = setting(None, "temperature of the last step", low=1e-5, high=1e5)
    temperature_schedule: str = setting(
        "constant",
        "from temperature to temperature_end over the run; queue_pointer: with each turn of the queue, to compare only",
        choices=(*SCHEDULES, "queue_pointer"),
    )
    top_k: int | None = setting(None, "hardest negatives kept for each anchor; empty: all of them", low=1)
    tail: str = setting(
        "drop",
        "negatives outside the top k: dropped; or sampled, so that the loss is that of all negatives",
        choices=("drop", "sampled"),
    )
    tail_samples: int | None = setting(None, "tail = sampled: negatives drawn for each anchor", low=1)
    skip_hardest: float = setting(
        0.0,
        "with top_k: share of an anchor's negatives left out as its hardest, often of the same class",
        low=0.0,
        high=0.9,
    )
    block_size: int | None = setting(
        None, "strip: anchors a strip, column: columns a block; empty: chosen from the sizes", low=1
    )


@dataclass(frozen=True)
class QueueConfig:
    """Negatives of earlier steps."""

    size: int = setting(0, "embeddings kept; 0: no queue", low=0)
    start: int | None = setting(None, "newest embeddings that count in the first step; empty: all", low=1)
    schedule: str = setting(
        "constant", "of those that count, from start to size over the run; all are kept", choices=SCHEDULES
    )
    adapt: bool = setting(
        False, "change the rows that count, from start on, when the score of eval.every stalls, and keep what helps"
    )
    sample: int | None = setting(None, "rows drawn at random each step, of those that count; empty: all", low=1)
    dtype: str = setting("float16", "storage type", choices=("float16", "bfloat16", "float32"))
    offload: bool = setting(
        False, "batch.images = host: embeddings wait in the host's memory too and pass by the device in blocks"
    )


@dataclass(frozen=True)
class TargetConfig:
    """The momentum encoder of methods that have one."""

    decay: float = setting(0.99, "share of its parameters that stays at each real update", low=0.0, high=1.0)
    decay_end: float | None = setting(None, "decay of the last step; empty: 1", low=0.0, high=1.0)
    schedule: str = setting(
        "constant",
        "from decay to decay_end over the run (BYOL: cosine); from_zero: from 0 to decay, to compare only",
        choices=(*SCHEDULES, "from_zero"),
    )
    key_norm: str = setting(
        "shuffled",
        "moco_v2: keys have batch statistics of parts of the batch, of shuffled images or of neighbours; or group norm",
        choices=("shuffled", "split", "group"),
    )
    key_splits: int = setting(8, "moco_v2: parts of the batch; 1: the whole batch, which gives keys away", low=1)


@dataclass(frozen=True)
class DistillConfig:
    """Learning from a trained encoder."""

    teacher: str | None = setting(None, "distill: folder of a finished run, whose newest checkpoint is the teacher")
    feature_weight: float = setting(1.0, "distill: weight of 2 - 2 cosine between features", low=0.0, high=1e6)
    similarity_weight: float = setting(
        1.0, "distill: weight of the KL divergence between similarities to batch and queue", low=0.0, high=1e6
    )
    teacher_temperature: float = setting(
        0.05, "distill: the teacher's cosines are divided by it, the student's by loss.temperature", low=1e-5, high=1e5
    )


@dataclass(frozen=True)
class BatchConfig:
    """How many images make one real update."""

    size: int = setting(512, "images a real update, over all devices", low=2)
    micro: int | None = setting(None, "images a micro-batch; empty: the whole batch at once", low=2)
    mode: str = setting(
        "accumulate",
        "of micro-batches; accumulate: averaged gradients of smaller contrastive problems (adds no negatives); cached: "
        "one problem of the whole batch, whose images are encoded twice",
        choices=("accumulate", "cached"),
    )
    images: str = setting(
        "device",
        "cached: where a batch waits; host: one micro-batch at a time travels to the device; disk: and is read when it "
        "is needed, which is twice, so that the host's memory need not hold a batch",
        choices=("device", "host", "disk"),
    )


@dataclass(frozen=True)
class OptimConfig:
    """Optimizer and schedule; schedules count real updates."""

    name: str = setting("adamw", "the optimizer", choices=("sgd", "lars", "adamw"))
    base_lr: float = setting(1e-3, "learning rate at batch 256; scale_rule makes that of the run", low=1e-9, high=1e3)
    scale_rule: str = setting(
        "linear",
        "linear: base_lr * batch.size / 256; sqrt: base_lr * sqrt(batch.size / 256)",
        choices=("linear", "sqrt"),
    )
    predictor_rate: float = setting(
        1.0, "methods with a predictor: its learning rate over that of all other parameters", low=1e-3, high=1e3
    )
    warmup_steps: int = setting(20, "real updates from 0 to the full learning rate", low=0)
    schedule: str = setting("cosine", "of the learning rate after the warm-up, to 0", choices=("cosine", "linear"))
    weight_decay: float = setting(1e-4, "decay of kernels; norms and biases have none", low=0.0)
    momentum: float = setting(0.9, "sgd, lars: momentum; adamw: first-moment decay", low=0.0, high=0.9999)
    loss_scale: int | None = setting(
        None,
        "model.dtype = float16: first factor of the loss, a power of two; an overflow halves it; empty: 32768",
        low=1,
        high=2**24,
    )
    loss_scale_steps: int = setting(
        2000, "model.dtype = float16: finite steps in a row after which that factor doubles", low=1
    )
    clip_norm: float | None = setting(1.0, "global gradient norm above which gradients are scaled down", low=1e-6)
    offload: bool = setting(
        False, "batch.images = host: between updates the optimizer's moments wait in the host's memory too"
    )


@dataclass(frozen=True)
class MeshShape:
    """Devices along each axis; -1 takes all that are left."""

    data: int = setting(-1, "devices that share the batch and the queue", low=-1)
    model: int = setting(1, "devices that share the parameters", low=-1)


@dataclass(frozen=True)
class MeshConfig:
    """The device mesh."""

    shape: MeshShape = field(default_factory=MeshShape)


@dataclass(frozen=True)
class EvalConfig:
    """Probes of the frozen encoder."""

    every: int = setting(0, "real updates between kNN scores during training; 0: only at the end", low=0)
    batch: int = setting(512, "images encoded at once, over all devices", low=1)
    knn_k: int = setting(20, "neighbours that vote", low=1, high=10_000)
    knn_temperature: float = setting(0.07, "a neighbour's vote weighs exp(cosine / temperature)", low=1e-5)
    linear_steps: int = setting(200, "L-BFGS iterations of the linear probe", low=1, high=10_000)


@dataclass(frozen=True)
class LogConfig:
    """What is written while training."""

    every: int = setting(10, "real updates between lines of metrics.jsonl", low=1)


@dataclass(frozen=True)
class CheckpointConfig:
    """When the state is saved."""

    every: int = setting(200, "real updates between checkpoints; the last one is always saved", low=1)
    keep: int = setting(2, "newest checkpoints kept; the best is kept besides", low=1)


@dataclass(frozen=True)
class RunConfig:
    """How a run is watched."""

    profile: bool = setting(False, "save a trace of steps 2 to 4, and which arrays the devices hold, for pprof")


@dataclass(frozen=True)
class Config:
    """A whole run."""

    seed: int = setting(0, "the only source of randomness", low=0, high=2**31 - 1)
    steps: int = setting(900, "real updates", low=1)
    max_nonfinite: int = setting(5, "non-finite steps in a row, each skipped, after which the run stops", low=1)
    method: str = setting("simclr", "the training method, a file in jaxcl/methods")
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    text: TextConfig = field(default_factory=TextConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
    target: TargetConfig = field(default_factory=TargetConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    log: LogConfig = field(default_factory=LogConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    run: RunConfig = field(default_factory=RunConfig)
