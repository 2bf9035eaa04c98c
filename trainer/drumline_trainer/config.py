"""The trainer's own configuration: torch-free, checked before any GPU is touched.

The operator builds a `TrainerConfig` from a TrainingJob's `spec.trainer` and its `overrides` and
reports what `TrainerConfig.from_dict` refuses as condition InvalidConfig; the pods read the same
JSON. Unknown keys are errors that name the nearest known one.
"""

from __future__ import annotations

import difflib
import types
import typing
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any, TypeVar


class ConfigError(ValueError):
    """A configuration that cannot work; the message names the field and the fix."""


class Precision(StrEnum):
    """Type of the forward and backward passes; weights and optimizer state stay fp32."""

    FP32 = "fp32"
    BF16 = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a Llama-style decoder."""

    vocab_size: int = 256
    """Bytes are the built-in vocabulary."""
    layers: int = 2
    hidden_size: int = 64
    ffn_size: int = 192
    heads: int = 4
    kv_heads: int = 2
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    tied_embeddings: bool = True
    dropout: float = 0.0
    """Share of the activations that each layer adds to the residual stream left out at random."""


MODEL_PRESETS: dict[str, ModelConfig] = {
    "tiny": ModelConfig(),
    "small": ModelConfig(layers=4, hidden_size=128, ffn_size=384, heads=4, kv_heads=2),
    "llama-125m": ModelConfig(
        layers=12, hidden_size=768, ffn_size=2048, heads=12, kv_heads=12, vocab_size=256
    ),
    "llama-1b": ModelConfig(
        layers=16,
        hidden_size=2048,
        ffn_size=8192,
        heads=32,
        kv_heads=8,
        vocab_size=128_256,
        rope_theta=500_000.0,
    ),
    "llama-8b": ModelConfig(
        layers=32,
        hidden_size=4096,
        ffn_size=14_336,
        heads=32,
        kv_heads=8,
        vocab_size=128_256,
        rope_theta=500_000.0,
        tied_embeddings=False,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Where the text comes from. The sample order depends on `seed` of the run alone."""

    source: str = "python-stdlib"
    """`python-stdlib` (this interpreter's own sources) or an absolute folder."""
    pattern: str = "**/*.py"
    """Files of the folder that are read, sorted by path."""
    sequence_length: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW with linear warm-up and cosine decay."""

    learning_rate: float = 3e-3
    min_learning_rate_ratio: float = 0.1
    warmup_steps: int = 10
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    max_gradient_norm: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """How often sharded checkpoints are committed, and how many verified ones are kept."""

    every_steps: int = 50
    keep: int = 3
    snapshot_every_steps: int | None = None
    """Snapshots in memory, for recovery without storage. None: as often as they cost at most 3 % of
    the training time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """Everything a run depends on."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    steps: int = 100
    global_batch_size: int = 16
    """Sequences per optimizer step over all ranks; split evenly."""
    micro_batch_size: int | None = None
    """Sequences a rank passes through the model at once, at most: its share of the global batch is
    done in as many parts as that takes. None: in one."""
    seed: int = 0
    precision: Precision = Precision.FP32
    log_every_steps: int = 10
    heartbeat_seconds: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what cannot work. Raises ConfigError."""
        _check(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict(to_dict(c)) == c`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> TrainerConfig:
        """Build from decoded JSON.

        Raises:
            ConfigError: unknown key, wrong type, or a value that cannot work.
        """
        return _build(cls, raw, path="")

    def check_world_size(self, world_size: int) -> None:
        """Raise ConfigError unless the global batch splits evenly over `world_size` ranks."""
        if world_size < 1:
            raise ConfigError(f"ranks: must be at least 1, not {world_size}")
        if self.global_batch_size % world_size:
            raise ConfigError(
                f"global_batch_size: {self.global_batch_size} does not split evenly over"
                f" {world_size} ranks; use a multiple of {world_size}"
            )


def merge(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`base` with `overrides` laid over it, objects merged key by key."""
    merged = dict(base)
    for key, value in overrides.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            merged[key] = merge(below, value)  # pyright: ignore[reportUnknownArgumentType]
        else:
            merged[key] = value
    return merged


def _check(config: TrainerConfig) -> None:
    _check_numbers(config)
    _check_model(config.model)
    _check_data(config.data)


def _check_numbers(config: TrainerConfig) -> None:
    model, optimizer = config.model, config.optimizer
    positive: dict[str, float] = {
        "steps": config.steps,
        "global_batch_size": config.global_batch_size,
        "log_every_steps": config.log_every_steps,
        "heartbeat_seconds": config.heartbeat_seconds,
        "model.vocab_size": model.vocab_size,
        "model.layers": model.layers,
        "model.hidden_size": model.hidden_size,
        "model.ffn_size": model.ffn_size,
        "model.heads": model.heads,
        "model.kv_heads": model.kv_heads,
        "model.rope_theta": model.rope_theta,
        "data.sequence_length": config.data.sequence_length,
        "optimizer.learning_rate": optimizer.learning_rate,
        "optimizer.max_gradient_norm": optimizer.max_gradient_norm,
        "micro_batch_size": 1 if config.micro_batch_size is None else config.micro_batch_size,
        "checkpoint.snapshot_every_steps": config.checkpoint.snapshot_every_steps or 1,
        "checkpoint.every_steps": config.checkpoint.every_steps,
        "checkpoint.keep": config.checkpoint.keep,
    }
    for name, value in positive.items():
        if not value > 0:
            raise ConfigError(f"{name}: must be greater than 0, not {value}")
    not_negative: dict[str, float] = {
        "model.norm_epsilon": model.norm_epsilon,
        "optimizer.warmup_steps": optimizer.warmup_steps,
        "optimizer.epsilon": optimizer.epsilon,
        "optimizer.weight_decay": optimizer.weight_decay,
    }
    for name, value in not_negative.items():
        if value < 0:
            raise ConfigError(f"{name}: must not be negative, but is {value}")
    for name, value in (("beta1", optimizer.beta1), ("beta2", optimizer.beta2)):
        if not 0 <= value < 1:
            raise ConfigError(f"optimizer.{name}: must be at least 0 and below 1, not {value}")
    if not 0 <= optimizer.min_learning_rate_ratio <= 1:
        raise ConfigError(
            "optimizer.min_learning_rate_ratio: must be between 0 and 1, not"
            f" {optimizer.min_learning_rate_ratio}"
        )


def _check_model(model: ModelConfig) -> None:
    if model.hidden_size % model.heads:
        raise ConfigError(
            f"model.heads: hidden_size {model.hidden_size} does not divide by {model.heads} heads"
        )
    if (model.hidden_size // model.heads) % 2:
        raise ConfigError(
            "model.heads: hidden_size / heads must be even (rotary embedding turns pairs)"
        )
    if model.heads % model.kv_heads:
        raise ConfigError(
            f"model.kv_heads: {model.heads} heads do not divide by {model.kv_heads} kv_heads"
        )
    if model.vocab_size < 256:
        raise ConfigError(
            f"model.vocab_size: must be at least 256, not {model.vocab_size}: the text is bytes"
        )
    if not 0 <= model.dropout < 1:
        raise ConfigError(f"model.dropout: must be at least 0 and below 1, not {model.dropout}")


def _check_data(data: DataConfig) -> None:
    if data.source != "python-stdlib" and not data.source.startswith("/"):
        raise ConfigError(
            f"data.source: must be python-stdlib or an absolute folder, not {data.source!r}"
        )
    if ".." in data.source.split("/"):
        raise ConfigError("data.source: must not contain '..'")
    if not data.pattern.strip("./") or data.pattern[0] == "/" or ".." in data.pattern.split("/"):
        raise ConfigError(
            "data.pattern: must be a pattern of file names within the folder, as **/*.py, not"
            f" {data.pattern!r}"
        )


T = TypeVar("T")


def _build(cls: type[T], raw: object, *, path: str) -> T:
    if not isinstance(raw, dict):
        raise ConfigError(f"{path or 'config'}: must be an object")
    values = typing.cast("dict[str, Any]", raw)
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in fields(cls)}  # pyright: ignore[reportArgumentType]
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), list(known), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
            raise ConfigError(f"{path}{key}: unknown field{hint}")
    arguments: dict[str, Any] = {}
    for name, known_field in known.items():
        if name in values:
            arguments[name] = _value(hints[name], values[name], path=f"{path}{name}")
        elif known_field.default is MISSING and known_field.default_factory is MISSING:
            raise ConfigError(f"{path}{name}: required")
    return cls(**arguments)


def _value(kind: Any, value: Any, *, path: str) -> Any:
    if is_dataclass(kind):
        return _build(typing.cast("type[Any]", kind), value, path=f"{path}.")
    if isinstance(kind, types.UnionType):
        return None if value is None else _value(kind.__args__[0], value, path=path)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        choices = [member.value for member in kind]
        if value not in choices:
            raise ConfigError(f"{path}: must be one of {', '.join(choices)}, not {value!r}")
        return kind(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ConfigError(f"{path}: must be {kind.__name__}, not {type(value).__name__}")
    if kind is float and not (-1e300 < value < 1e300):
        raise ConfigError(f"{path}: must be finite")
    return value
