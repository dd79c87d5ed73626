"""Rules over several settings: what must divide, what bounds what, and what the devices allow."""

from __future__ import annotations

import math

from jaxcl.config.errors import ConfigError, suggestion
from jaxcl.config.settings import LORA_TARGETS, BatchConfig, Config, LoraConfig, LossConfig, MeshConfig, MeshShape


def check_together(config: Config) -> None:
    """Rules over several settings that need neither data nor devices."""
    augment, batch, loss, model = config.augment, config.batch, config.loss, config.model
    for low, high in (("crop_scale_min", "crop_scale_max"), ("blur_sigma_min", "blur_sigma_max")):
        if getattr(augment, low) > getattr(augment, high):
            raise ConfigError(
                f"augment.{low} = {getattr(augment, low)} is above augment.{high} = {getattr(augment, high)}"
            )
    _check_batch(batch)
    _check_lora(config.lora, config.optim.name)
    if config.optim.warmup_steps >= config.steps:
        raise ConfigError(
            f"optim.warmup_steps = {config.optim.warmup_steps} leaves none of steps = {config.steps} at the full "
            f"learning rate; the largest valid value is {config.steps - 1}"
        )
    if loss.impl == "dense" and loss.block_size is not None:
        raise ConfigError(
            f"loss.block_size = {loss.block_size} has no meaning with loss.impl = 'dense'; leave it empty"
        )
    _check_power("optim.loss_scale", config.optim.loss_scale)
    check_divides("text.width", config.text.width, "text.heads", config.text.heads, vary="text.heads")
    _check_tail(loss)
    if loss.skip_hardest and (loss.top_k is None or loss.tail != "drop"):
        needs = "needs loss.top_k" if loss.top_k is None else "needs loss.tail = 'drop': a tail brings them back"
        raise ConfigError(f"loss.skip_hardest = {loss.skip_hardest} {needs}; otherwise the only valid value is 0")
    _check_schedules(config)
    _check_offload(config)
    if model.flavour != "plain" and not model.encoder.startswith("vit"):
        raise ConfigError(
            f"model.flavour = {model.flavour!r} is read only with a ViT, not with model.encoder = {model.encoder!r}"
        )
    for group, pretrained in (("model", model.pretrained), ("text", config.text.pretrained)):
        if pretrained is not None and not pretrained.strip():
            raise ConfigError(
                f"{group}.pretrained = {pretrained!r} is no path; leave it out, or name a file of weights"
            )
    if model.allow_partial and model.pretrained is None and config.text.pretrained is None:
        raise ConfigError("model.allow_partial = True is read only with model.pretrained or text.pretrained")
    if model.encoder.startswith("vit") and config.data.image_size % model.patch:
        check_divides("data.image_size", config.data.image_size, "model.patch", model.patch, vary="data.image_size")


def _check_batch(batch: BatchConfig) -> None:
    """Micro-batches fill the batch, and are there where they are needed."""
    size, micro = batch.size, batch.micro
    if batch.mode == "accumulate":
        if batch.images != "device":
            raise ConfigError(f"batch.images = {batch.images!r} is read only with batch.mode = 'cached'")
        if micro is not None:
            check_divides("batch.size", size, "batch.micro", micro, vary="batch.micro")
    elif micro is None:
        raise ConfigError(
            f"batch.mode = 'cached' needs batch.micro, the images encoded at once; {min(size, 64)} is a first value"
        )
    elif micro > size:
        raise ConfigError(f"batch.micro = {micro} is above batch.size; the largest valid value is {size}")
    elif size % micro == 1:
        fits = [value for value in range(2, size + 1) if size % value != 1]
        near = [*[value for value in fits if value < micro][-1:], next(value for value in fits if value > micro)]
        raise ConfigError(
            f"batch.micro = {micro} leaves one image of batch.size = {size} alone; the nearest valid values of "
            f"batch.micro are {' and '.join(map(str, near))}, of batch.size {size - 1} and {size + 1}"
        )


def _check_lora(lora: LoraConfig, optimizer: str) -> None:
    """Each target is a kind of kernel or a pattern; whether it matches one, only the networks can say."""
    if lora.rank and optimizer == "lars":
        raise ConfigError(
            f"optim.name = 'lars' moves a parameter by a share of its length, and with lora.rank = {lora.rank} half of "
            "them start at zero; 'adamw' or 'sgd'"
        )
    for word in lora.words if lora.targets is not None else []:
        if word not in LORA_TARGETS and not {"/", "*"} & set(word):
            raise ConfigError(
                f"lora.targets = {lora.targets!r}: {word!r} is unknown{suggestion(word, list(LORA_TARGETS))}; or a "
                "pattern such as encoder/layers/q*"
            )


def _check_power(name: str, value: int | None) -> None:
    """A power of two, or nothing."""
    if value is not None and value & (value - 1):
        low = 1 << (value.bit_length() - 1)
        raise ConfigError(f"{name} = {value} is no power of two; the nearest valid values are {low} and {2 * low}")


def _check_tail(loss: LossConfig) -> None:
    """The sampled tail has all it needs, and nothing is set that nobody reads."""
    if loss.tail == "sampled" and loss.top_k is None:
        raise ConfigError("loss.tail = 'sampled' needs loss.top_k; without it every negative is used already")
    if loss.tail == "sampled" and loss.tail_samples is None:
        raise ConfigError(
            f"loss.tail = 'sampled' needs loss.tail_samples; as many as loss.top_k = {loss.top_k} is a good first value"
        )
    if loss.tail == "drop" and loss.tail_samples is not None:
        raise ConfigError(f"loss.tail_samples = {loss.tail_samples} is read only with loss.tail = 'sampled'")


def _check_schedules(config: Config) -> None:
    """Each schedule has an end to go to, and no end is set that no schedule reads."""
    loss, queue, target = config.loss, config.queue, config.target
    _check_adapt(config)
    if target.decay == 1 and target.schedule != "from_zero":
        raise ConfigError("target.decay = 1.0 leaves the momentum encoder as it was; 0.999 is a valid value")
    if queue.sample is not None and queue.sample > queue.size:
        raise ConfigError(
            f"queue.sample = {queue.sample} is above queue.size; the largest valid value is {queue.size or 'empty'}"
        )
    if queue.start is not None and queue.start > queue.size:
        raise ConfigError(f"queue.start = {queue.start} is above queue.size; the largest valid value is {queue.size}")
    if loss.temperature_schedule == "queue_pointer" and not queue.size:
        raise ConfigError("loss.temperature_schedule = 'queue_pointer' needs queue.size of at least 1, not 0")
    for shape, schedule, name, value, needed in (
        ("loss.temperature_schedule", loss.temperature_schedule, "loss.temperature_end", loss.temperature_end, True),
        ("queue.schedule", queue.schedule, "queue.start", queue.start, True),
        ("target.schedule", target.schedule, "target.decay_end", target.decay_end, False),
    ):
        if schedule in ("constant", "from_zero") and value is not None and not (name == "queue.start" and queue.adapt):
            raise ConfigError(f"{name} = {value} is read only with {shape} = 'linear' or 'cosine', not {schedule!r}")
        if schedule != "constant" and value is None and needed:
            raise ConfigError(f"{shape} = {schedule!r} needs {name}; without it the only valid value is 'constant'")


def _check_adapt(config: Config) -> None:
    """A length by validation has scores to go by, somewhere to begin, and no schedule against it."""
    queue = config.queue
    if not queue.adapt:
        return
    every, steps = config.eval.every, config.steps
    for name, value, fits, valid in (
        ("eval.every", every, 0 < every < steps, f"{max(min(100, steps // 10), 1)} is a first value"),
        (
            "data.validation",
            config.data.validation,
            config.data.validation > 0,
            "0.1 is a first value: without it the images that score the run would choose the length",
        ),
        ("queue.start", queue.start, queue.start is not None, f"{max(queue.size // 4, 1)} is a first value"),
        ("queue.schedule", queue.schedule, queue.schedule == "constant", "'constant' is the only valid value"),
    ):
        if not fits:
            raise ConfigError(f"queue.adapt = True does not work with {name} = {value!r}; {valid}")


def _check_offload(config: Config) -> None:
    """A queue on the host passes by in blocks: what needs all of it at once does not work."""
    loss, queue = config.loss, config.queue
    if not queue.offload:
        return
    if not queue.size:
        raise ConfigError("queue.offload = True, but queue.size = 0; the only valid value is False")
    for name, value, valid in (
        # read twice or held by the host: either way the loss is a program of its own
        ("batch.images", "host" if config.batch.images == "disk" else config.batch.images, "host"),
        ("loss.impl", loss.impl, "strip"),
        ("loss.tail", loss.tail, "drop"),
        ("loss.skip_hardest", loss.skip_hardest, 0.0),
        ("queue.start", queue.start, None),
        ("queue.sample", queue.sample, None),
    ):
        if value != valid:
            said = "an empty one" if valid is None else repr(valid)
            said += ", with batch.mode = 'cached'" if name == "batch.images" else ""
            raise ConfigError(
                f"queue.offload = True does not work with {name} = {value!r}; the only valid value is {said}"
            )


def micro_size(config: Config) -> int:
    """Images that go through the encoder at once: `batch.micro`, or the whole batch.

    >>> micro_size(Config())
    512
    """
    return config.batch.micro or config.batch.size


def first_loss_scale(config: Config) -> int | None:
    """The factor of the loss in the first step; None where the compute type needs none.

    >>> first_loss_scale(Config())
    """
    return (config.optim.loss_scale or 2**15) if config.model.dtype == "float16" else None


def loss_size(config: Config) -> int:
    """Images that meet in one loss: the whole batch with cached gradients, or a micro-batch.

    >>> loss_size(Config(batch=BatchConfig(micro=64))), loss_size(Config(batch=BatchConfig(micro=64, mode="cached")))
    (64, 512)
    """
    return config.batch.size if config.batch.mode == "cached" else micro_size(config)


def num_micro(config: Config) -> int:
    """Micro-batches of a real update, a short last one among them.

    >>> num_micro(Config(batch=BatchConfig(size=10, micro=4, mode="cached")))
    3
    """
    return -(-config.batch.size // micro_size(config))


def batch_line(config: Config) -> str:
    """What a real update is, in one sentence for the log.

    >>> batch_line(Config())
    'batch: 512 images at once, one contrastive problem'
    >>> batch_line(Config(batch=BatchConfig(micro=64)))
    'batch: 512 images, gradients of 8 contrastive problems of 64 images averaged (batch.mode = accumulate)'
    """
    batch, count = config.batch, num_micro(config)
    if batch.mode == "cached":
        where = dict(device="", host=", from the host", disk=", from the disk")[batch.images]
        return (
            f"batch: {batch.size} images in one contrastive problem, encoded {batch.micro} at a time{where}, twice "
            "(batch.mode = cached)"
        )
    if count == 1:
        return f"batch: {batch.size} images at once, one contrastive problem"
    return (
        f"batch: {batch.size} images, gradients of {count} contrastive problems of {batch.micro} images averaged "
        "(batch.mode = accumulate)"
    )


def check_divides(whole: str, size: int, part: str, count: int, *, vary: str) -> None:
    """Raises unless `count` divides `size`, with the nearest valid values of the setting to vary.

    Args:
        whole: name of the setting that is divided.
        size: its value.
        part: name of what divides it.
        count: its value, ≥ 1.
        vary: `whole` or `part`: for which of them valid values are offered.

    Raises:
        ConfigError: `count` does not divide `size`.

    >>> check_divides("batch.size", 32, "mesh.shape.data", 8, vary="batch.size")
    """
    if size % count == 0:
        return
    if vary == whole:
        near = [value for value in (size // count * count, -(-size // count) * count) if value > 0]
    else:
        divisors = [value for value in range(1, size + 1) if size % value == 0]
        near = sorted(
            {max(v for v in divisors if v < count), min(v for v in divisors if v > count)} if count < size else {size}
        )
    raise ConfigError(
        f"{whole} = {size} is not divisible by {part} = {count}; the nearest valid values of {vary} are "
        f"{' and '.join(map(str, near))}"
    )


def check_devices(config: Config, devices: int) -> None:
    """Raises where the mesh does not fit the devices, or batch and queue do not divide over it.

    Args:
        config: the run.
        devices: how many there are, over all processes.

    Raises:
        ConfigError: names the setting, its value and the nearest valid ones.

    >>> check_devices(Config(), 8)
    """
    data, _ = mesh_sizes(config.mesh.shape, devices)
    for name, size in _shared(config).items():
        check_divides(name, size, "mesh.shape.data", data, vary=name)


def _shared(config: Config) -> dict[str, int]:
    """What the devices along `data` share equally."""
    sizes = {"batch.size": config.batch.size, "batch.micro": micro_size(config)}
    queue = {"queue.size": config.queue.size, "queue.sample": config.queue.sample or 0}
    return sizes | {name: size for name, size in queue.items() if size}


def mesh_that_fits(config: Config, devices: int) -> MeshConfig:
    """The mesh of a run, or on other devices than it was made for one of as many of them as can share its batch.

    Args:
        config: the run.
        devices: how many there are here.

    Returns:
        What `check_devices` accepts; parameters are whole on every device where the mesh is another one.

    >>> mesh_that_fits(Config(mesh=MeshConfig(MeshShape(data=8))), 3)
    MeshConfig(shape=MeshShape(data=2, model=1))
    """
    try:
        check_devices(config, devices)
    except ConfigError:
        sizes = _shared(config).values()
        most = max(count for count in range(1, devices + 1) if not any(size % count for size in sizes))
        return MeshConfig(MeshShape(data=most))
    return config.mesh


def mesh_sizes(shape: MeshShape, devices: int) -> tuple[int, int]:
    """The sizes of the two mesh axes, with −1 filled in.

    Args:
        shape: `mesh.shape`.
        devices: how many there are.

    Returns:
        Devices along `data` and along `model`; their product is at most `devices`.

    Raises:
        ConfigError: both are −1, one is 0, or the devices do not suffice or divide.

    >>> mesh_sizes(MeshShape(data=-1, model=2), 8)
    (4, 2)
    """
    named = {"data": shape.data, "model": shape.model}
    for axis, size in named.items():
        if size == 0:
            raise ConfigError(f"mesh.shape.{axis} = 0; it needs at least 1 device, or -1 for all that are left")
    if shape.data == shape.model == -1:
        raise ConfigError("mesh.shape.data and mesh.shape.model are both -1; only one can take what is left")
    fixed = math.prod(size for size in named.values() if size > 0)
    if fixed > devices:
        raise ConfigError(
            f"mesh.shape = {{data: {shape.data}, model: {shape.model}}} needs {fixed} devices; there are {devices}"
        )
    if -1 not in named.values():
        return shape.data, shape.model
    free = "data" if shape.data == -1 else "model"
    held = "model" if free == "data" else "data"
    check_divides("devices", devices, f"mesh.shape.{held}", fixed, vary=f"mesh.shape.{held}")
    rest = devices // fixed
    return (rest, shape.model) if free == "data" else (shape.data, rest)
