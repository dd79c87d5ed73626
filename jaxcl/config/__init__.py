"""Every setting of a run, and the check of all of them before anything compiles."""

from jaxcl.config.errors import ConfigError, suggestion
from jaxcl.config.files import load_config, with_variant
from jaxcl.config.resolve import base_config, describe, resolve, to_dict
from jaxcl.config.rules import check_devices, check_divides, mesh_sizes, mesh_that_fits, micro_size
from jaxcl.config.settings import (
    MAX_LOGIT_SCALE,
    AugmentConfig,
    BatchConfig,
    CheckpointConfig,
    Config,
    DataConfig,
    DistillConfig,
    EvalConfig,
    LogConfig,
    LossConfig,
    MeshConfig,
    MeshShape,
    ModelConfig,
    OptimConfig,
    QueueConfig,
    TargetConfig,
    TextConfig,
)

__all__ = [
    "MAX_LOGIT_SCALE",
    "AugmentConfig",
    "BatchConfig",
    "CheckpointConfig",
    "Config",
    "ConfigError",
    "DataConfig",
    "DistillConfig",
    "EvalConfig",
    "LogConfig",
    "LossConfig",
    "MeshConfig",
    "MeshShape",
    "ModelConfig",
    "OptimConfig",
    "QueueConfig",
    "TargetConfig",
    "TextConfig",
    "base_config",
    "check_devices",
    "check_divides",
    "describe",
    "load_config",
    "mesh_sizes",
    "mesh_that_fits",
    "micro_size",
    "resolve",
    "suggestion",
    "to_dict",
    "with_variant",
]
