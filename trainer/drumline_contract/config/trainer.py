"""The whole configuration of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from drumline_contract.config.bounds import Batch, Number, Steps, check_place
from drumline_contract.config.checkpoint import CheckpointConfig
from drumline_contract.config.data import DataConfig
from drumline_contract.config.decoding import decode, differing
from drumline_contract.config.dpo import DpoConfig
from drumline_contract.config.errors import ConfigError, require_positive
from drumline_contract.config.evaluation import EvaluationConfig
from drumline_contract.config.hardware import HardwareConfig
from drumline_contract.config.learning import check_patterns, learns
from drumline_contract.config.lora import LoraConfig
from drumline_contract.config.memory import MemoryConfig, Offload, Recompute
from drumline_contract.config.metrics import MetricsConfig, ProfileConfig
from drumline_contract.config.model import ModelConfig
from drumline_contract.config.optimizer import OptimizerConfig, OptimizerKind
from drumline_contract.config.parallelism import DataParallel, LayoutMode, ParallelismConfig
from drumline_contract.config.variants import Family


class Compile(StrEnum):
    """Parts of the model that torch.compile compiles."""

    NONE = "none"
    """No part: every operation runs eagerly."""
    BLOCKS = "blocks"
    """A layer: its kernels are compiled once and run for every layer."""


class Precision(StrEnum):
    """Type of the forward and backward passes; weights and optimizer state stay fp32."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    """With dynamic loss scaling."""


class Fp8Scaling(StrEnum):
    """Granularity of the scales of fp8 operands."""

    TENSORWISE = "tensorwise"
    """One scale for a matrix."""
    ROWWISE = "rowwise"
    """One for each token and each feature: more exact, and somewhat slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """Everything a run depends on."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    steps: Steps = 100
    """Optimizer steps of the whole run, those before a checkpoint included."""
    epochs: float | None = None
    """Passes over the data: they say how many steps the run has, once the documents lie in windows,
    and `steps` is not read. None: `steps` says it."""
    global_batch_size: Batch = 16
    """Sequences per optimizer step over all ranks; split evenly."""
    micro_batch_size: Batch | None = None
    """Sequences a rank passes through the model at once, at most: its share of the global batch is
    done in as many parts as that takes. None: in one, or with a pipeline in what keeps it busy."""
    seed: Number = 0
    """Decides the initial weights, the order of the data and dropout."""
    deterministic: bool = True
    """A run that was killed and resumed, or repeated, has the same bits. False: on GPUs faster
    kernels may sum in a varying order, so losses differ by rounding."""
    compile: Compile = Compile.NONE
    precision: Precision = Precision.FP32
    fp8: bool = False
    """With bf16: the layers' projections multiply in 8-bit floats."""
    fp8_scaling: Fp8Scaling = Fp8Scaling.TENSORWISE
    """With fp8: what shares a scale."""
    lora: LoraConfig | None = None
    """Train low-rank adapters alone; all other weights stay as they begin. None: train all."""
    trainable: str | None = None
    """Names of the weights that learn, as at most 32 patterns separated by commas, such as
    `output.*, layers.1?.*`; all others stay as they begin. None: all learn."""
    freeze: str | None = None
    """Patterns of frozen weights, in the form of `trainable`. All others are trained. None: no
    frozen weights."""
    dpo: DpoConfig | None = None
    """Learn which of two answers is preferred. None: learn what the samples say."""
    model_from: str | None = None
    """Folder as Hugging Face lays it out that the weights begin from: on this machine,
    `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, or a repository of the Hub,
    `hf://ORG/NAME@REVISION`. None: at random."""
    config_from: str | None = None
    """With model.family transformers: folder whose config.json says what the model is; the weights
    begin at random. Its tokenizer is used as that of model_from is."""
    evaluation: EvaluationConfig | None = None
    """Measure the loss on samples that are not trained on. None: not."""
    log_every_steps: Steps = 10
    """Steps between two progress lines, and between two rows of the metrics."""
    heartbeat_seconds: float = 1.0
    """In a job: least time between two lines by which a rank tells its agent where it stands."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        # Phase 1: bounds of single fields.
        require_positive(
            {
                "steps": self.steps,
                "epochs": 1 if self.epochs is None else self.epochs,
                "global_batch_size": self.global_batch_size,
                "log_every_steps": self.log_every_steps,
                "heartbeat_seconds": self.heartbeat_seconds,
                "micro_batch_size": 1 if self.micro_batch_size is None else self.micro_batch_size,
            }
        )

        # Phase 2: rules between sections. Each error names the field to change.
        self._check_moving_corrections()
        check_patterns(self.trainable, self.freeze)
        if self.freezes:
            self._check_frozen()
        self.memory.check_beside(self.parallelism, self.optimizer, adapters=self.lora is not None)
        if self.fp8 and self.precision is not Precision.BF16:
            raise ConfigError(f"fp8: works beside precision bf16, not {self.precision}")
        if self.fp8 and self.lora is not None:
            raise ConfigError("fp8: leaves out what adapters lie beside; use one of fp8 and lora")
        # Compiled kernels fuse products, so a policy by operation names does not see them.
        if self.compile is not Compile.NONE and self.memory.recompute is Recompute.SELECTIVE:
            raise ConfigError(
                "compile: its kernels are not the products that memory.recompute selective keeps by"
                " name, and it forgets what is cheap by itself; use recompute none or full"
            )
        if self.parallelism.independent:
            self._check_independent()
        if self.evaluation is not None and self.evaluation.average:
            self._check_measured_average()
        # Servers hold rows, and Newton-Schulz needs whole matrices.
        servers = self.parallelism.data_parallel is DataParallel.PARAMETER_SERVER
        if servers and self.optimizer.kind is OptimizerKind.MUON:
            raise ConfigError(
                "optimizer.kind: muon works on whole matrices, and parameter servers hold rows of"
                " them; use adamw or sgd"
            )
        # A setting without effect is an error: the user expects fp8.
        if self.fp8_scaling is not Fp8Scaling.TENSORWISE and not self.fp8:
            raise ConfigError("fp8_scaling: is for products in fp8; set fp8 too")
        if self.lora is not None:
            self.lora.check_targets(self.model.family)
        # Adapters without their base model would compute something else.
        if self.lora is not None and self.lora.adapters_from and self.model_from is None:
            raise ConfigError("lora.adapters_from: adapters belong on a model; set model_from too")
        if self.dpo is not None:
            self._check_preferences()
        # Phase 3: the origin of the model, since its rules depend on the others.
        self._check_origin()

    def _check_origin(self) -> None:
        """Check the source of the model and of its weights.

        Raises:
            ConfigError: a setting is not valid.
        """
        # An empty text usually is a variable that was not set.
        if self.model_from == "":
            raise ConfigError("model_from: must not be empty; leave it out, or null")
        check_place(self.model_from or "", field="model_from")
        if self.config_from is not None:
            self._check_config_from(self.config_from)
        if self.model.family is Family.TRANSFORMERS:
            check_transformers(self)

    def _check_config_from(self, folder: str) -> None:
        if self.model.family is not Family.TRANSFORMERS:
            raise ConfigError(
                "config_from: is for model.family transformers (trainer.model Transformers in a"
                " TrainingJob); leave it out, or set that family"
            )
        if self.model_from is not None:
            raise ConfigError(
                "config_from: model_from has a config.json of its own; leave one of the two out"
            )
        if not folder:
            raise ConfigError("config_from: must not be empty; leave it out, or null")
        check_place(folder, field="config_from")

    @property
    def folder(self) -> str | None:
        """Folder with the tokenizer, and the weights or the config.json, of the model."""
        return self.config_from if self.model_from is None else self.model_from

    @property
    def freezes(self) -> bool:
        """True if some of the model's own weights may be frozen."""
        return self.trainable is not None or self.freeze is not None

    def learns(self, name: str) -> bool:
        """Return whether the model's weight of this name is trained."""
        return learns(name, trainable=self.trainable, freeze=self.freeze)

    @property
    def has_base(self) -> bool:
        """True if every start loads frozen weights, of a base or a reference model."""
        return self.lora is not None or self.dpo is not None or self.freezes

    @property
    def has_frozen_copy(self) -> bool:
        """True if a second model serves as the reference of preferences."""
        return self.dpo is not None and self.lora is None

    @property
    def meets_every_steps(self) -> int:
        """Steps between synchronizations of all ranks. Checkpoints are saved only then."""
        # Copies train alone between two meetings, so only then is there one state to save.
        if self.parallelism.local_sgd is not None:
            return self.parallelism.local_sgd.every_steps
        return self.log_every_steps if self.parallelism.asynchronous else 1

    def _check_moving_corrections(self) -> None:
        servers = self.parallelism.data_parallel is DataParallel.PARAMETER_SERVER
        # The correction needs the load over all ranks in every step.
        apart = servers or self.parallelism.local_sgd is not None
        if self.model.routing.correction_rate and apart:
            raise ConfigError(
                "model.routing.correction_rate: local_sgd and parameter servers know no load of all"
                " ranks together; leave it out"
            )

    def _check_frozen(self) -> None:
        """Refuse settings that do not support frozen weights.

        A pipeline stage may have no trained weight, and some settings choose the frozen weights
        themselves.

        Raises:
            ConfigError: such a setting is used.
        """
        field = "freeze" if self.trainable is None else "trainable"
        lacking = {
            "lora, which freezes all but its adapters": self.lora is not None,
            "dpo, whose reference every start fills": self.dpo is not None,
            "memory.offload_parameters, which keeps what learns": (
                self.memory.offload_parameters is not Offload.NONE
            ),
            "local_sgd or parameter servers": (
                self.parallelism.local_sgd is not None
                or self.parallelism.data_parallel is DataParallel.PARAMETER_SERVER
            ),
        }
        named = next((name for name, used in lacking.items() if used), None)
        # One conflict is named at a time, so that the message stays short.
        if named is not None:
            raise ConfigError(f"{field}: not with {named}; leave one of the two out")

    def _check_preferences(self) -> None:
        """Refuse settings that do not support the loss of pairs, or its reference model.

        The reference is the initial model.

        Raises:
            ConfigError: such a setting is used.
        """
        if self.lora is not None and self.lora.adapters_from is not None:
            raise ConfigError(
                "dpo: the model without adapters is what it is compared with; leave out"
                " lora.adapters_from (export that model whole and name it in model_from)"
            )
        # The loss of pairs replaces the loss that these settings measure or extend.
        lacking = {
            "evaluation": self.evaluation is not None,
            "model.balance_weight": self.model.balance_weight > 0,
            "local_sgd or asynchronous servers": self.parallelism.independent,
        }
        named = next((name for name, used in lacking.items() if used), None)
        if named is not None:
            raise ConfigError(f"dpo: not with {named}; leave one of the two out")

    def _check_measured_average(self) -> None:
        if not self.optimizer.average_decay:
            raise ConfigError("evaluation.average: none is kept; set optimizer.average_decay")
        # Evaluation swaps average and weights on the device (`optimization.average`).
        if {self.memory.offload_optimizer, self.memory.offload_parameters} != {Offload.NONE}:
            raise ConfigError(
                "evaluation.average: not with memory.offload_optimizer or offload_parameters, as"
                " the average is not on the device; export --average and measure that"
            )

    def _check_independent(self) -> None:
        if self.optimizer.average_decay:
            raise ConfigError(
                "optimizer.average_decay: copies that train alone (local_sgd, asynchronous servers)"
                " have no weights in common to average after every step; leave it out"
            )
        if self.optimizer.max_skipped_steps:
            raise ConfigError(
                "optimizer.max_skipped_steps: copies that train alone (local_sgd, asynchronous"
                " servers) would not skip the same steps; leave it out"
            )
        if self.evaluation is not None:
            raise ConfigError(
                "evaluation: copies that train alone (local_sgd, asynchronous servers) have no"
                " weights in common to measure; leave it out"
            )
        if self.precision is Precision.FP16:
            raise ConfigError(
                "precision: fp16 scales the loss by what all ranks agree on in every step, and with"
                " local_sgd or asynchronous servers they do not; use bf16"
            )
        # A checkpoint between two meetings would save diverging copies.
        if self.checkpoint.every_steps % self.meets_every_steps:
            raise ConfigError(
                f"checkpoint.every_steps: {self.checkpoint.every_steps} is no multiple of the"
                f" {self.meets_every_steps} steps after which all ranks meet"
                " (local_sgd.every_steps, or log_every_steps with asynchronous servers)"
            )

    @property
    def tokens_per_sample(self) -> int:
        """Positions of a sequence; of an image its patches and its class token."""
        # `sequence_length` is a setting of text data only.
        if self.model.family is Family.VIT:
            return self.model.image_positions
        return self.data.sequence_length

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; `from_dict(to_dict(c)) == c`."""
        return asdict(self)

    def written(self) -> dict[str, Any]:
        """Return non-default settings as plain JSON values; `from_dict(written(c)) == c`.

        Pods get this form. A trainer image of an earlier version does not know newer fields, and
        rejects a configuration only if it uses them. With `model_from` the model's width is always
        included. Without it the folder would describe the model (`contract.config.from_folder`).
        """
        values = differing(self)
        # The width marks a complete model: readers of the folder would otherwise replace the
        # section.
        if self.model_from is not None:
            values["model"] = {**values.get("model", {}), "hidden_size": self.model.hidden_size}
        return values

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> TrainerConfig:
        """Build from decoded JSON.

        Raises:
            ConfigError: unknown key, wrong type, or a value that cannot work.
        """
        return decode(cls, raw, path="")


def check_transformers(config: TrainerConfig) -> None:
    """Raise ConfigError for what a module of transformers cannot be trained with."""
    degrees, memory = config.parallelism, config.memory
    # The planner needs shapes, and a module of transformers has them only in its code.
    if degrees.mode is LayoutMode.AUTO:
        raise ConfigError(
            "parallelism.mode: auto plans models whose shapes are built in, and family transformers"
            " is measured by nothing but its module; write data_parallel (fsdp shards all weights)"
        )
    lacking = {
        "fp8": config.fp8,
        "compile": config.compile is not Compile.NONE,
        "parallelism.local_sgd": degrees.local_sgd is not None,
        "parallelism.data_parallel parameter_server": (
            degrees.data_parallel is DataParallel.PARAMETER_SERVER
        ),
        "memory.offload_activations": memory.offload_activations is not Offload.NONE,
        "memory.offload_parameters": memory.offload_parameters is not Offload.NONE,
        "optimizer.kind muon": config.optimizer.kind is OptimizerKind.MUON,
        "memory.recompute blocks": memory.recompute is Recompute.BLOCKS,
    }
    named = next((name for name, used in lacking.items() if used), None)
    if named is not None:
        raise ConfigError(
            f"model.family: transformers does not work with {named}; leave it out, or take a"
            " built-in model or FromFolder, which have it"
        )
