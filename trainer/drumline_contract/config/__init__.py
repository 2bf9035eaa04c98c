"""The trainer's configuration: torch-free, checked before any GPU is used.

The operator builds a `TrainerConfig` from a TrainingJob's `spec.trainer` and its `overrides` and
reports what `TrainerConfig.from_dict` refuses as condition InvalidConfig; the pods read the same
JSON. Unknown keys are errors that name the nearest known key. Each section validates itself; rules
over several sections and the number of ranks are in `layout` and `layout_validation`.
"""

from drumline_contract.config.bounds import check_place
from drumline_contract.config.checkpoint import CheckpointConfig
from drumline_contract.config.data import DataConfig
from drumline_contract.config.decoding import merge
from drumline_contract.config.dpo import DpoConfig
from drumline_contract.config.errors import ConfigError
from drumline_contract.config.evaluation import EvaluationConfig
from drumline_contract.config.from_folder import (
    FolderConfig,
    has_model_of_folder,
    is_of_transformers,
)
from drumline_contract.config.hardware import HardwareConfig
from drumline_contract.config.lora import LoraConfig
from drumline_contract.config.memory import MemoryConfig, Offload, Recompute
from drumline_contract.config.metrics import LogRanks, MetricsConfig, ProfileConfig
from drumline_contract.config.model import ModelConfig
from drumline_contract.config.optimizer import OptimizerConfig, OptimizerKind, RateSchedule
from drumline_contract.config.parallelism import (
    DataParallel,
    LayoutMode,
    LocalSgdConfig,
    ParallelismConfig,
    Schedule,
    ServerConfig,
    ServerMode,
    StageBalance,
)
from drumline_contract.config.presets import MODEL_PRESETS
from drumline_contract.config.trainer import Compile, Fp8Scaling, Precision, TrainerConfig
from drumline_contract.config.variants import Family

__all__ = [
    "MODEL_PRESETS",
    "CheckpointConfig",
    "Compile",
    "ConfigError",
    "DataConfig",
    "DataParallel",
    "DpoConfig",
    "EvaluationConfig",
    "Family",
    "FolderConfig",
    "Fp8Scaling",
    "HardwareConfig",
    "LayoutMode",
    "LocalSgdConfig",
    "LogRanks",
    "LoraConfig",
    "MemoryConfig",
    "MetricsConfig",
    "ModelConfig",
    "Offload",
    "OptimizerConfig",
    "OptimizerKind",
    "ParallelismConfig",
    "Precision",
    "ProfileConfig",
    "RateSchedule",
    "Recompute",
    "Schedule",
    "ServerConfig",
    "ServerMode",
    "StageBalance",
    "TrainerConfig",
    "check_place",
    "has_model_of_folder",
    "is_of_transformers",
    "merge",
]
