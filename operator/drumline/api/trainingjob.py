"""TrainingJob: the thing an ML engineer writes.

Exactly one of `trainer` (the bundled trainer) and `template` (any image and command) is given.
Mutability: `suspend`, `priorityClassName`, deadlines, `recovery` and `ttlSecondsAfterFinished` at
any time; queue, pool, placement, size and the rest of the trainer only while suspended; the model
and the checkpoint's place never.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from drumline.api.base import ApiModel, LabelKey, LabelValue, Name, Rule
from drumline.api.conditions import Condition, Phase
from drumline.api.podtemplate import PodTemplate, ResourceList, Toleration


class TopologyRequest(ApiModel):
    """Where in the network the gang must or should sit; level names come from the GpuPool."""

    required: Name | None = None
    preferred: Name | None = None


class DataSpec(ApiModel):
    """Text to train on: a claim mounted read-only. Absent: the Python library's own sources."""

    claim_name: Name
    path: Annotated[str, Field(max_length=512)] = ""
    pattern: Annotated[str, Field(min_length=1, max_length=128)] = "**/*"


class TrainerSpec(ApiModel):
    """The bundled trainer: what a user must know is typed, everything else goes to `overrides`."""

    model: Annotated[str, Field(min_length=1, max_length=63)] = "tiny"
    steps: Annotated[int, Field(ge=1, le=1_000_000_000)] = 100
    global_batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    sequence_length: Annotated[int, Field(ge=8, le=1_048_576)] = 128
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 0
    data: DataSpec | None = None
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    overrides: Annotated[dict[str, Any] | None, Field()] = None


class CheckpointSpec(ApiModel):
    """Durable checkpoints on a shared claim. Without a claim a restart begins at step 0."""

    claim_name: Name
    path: Annotated[str, Field(max_length=512)] = ""
    every_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 50
    keep: Annotated[int, Field(ge=1, le=1000)] = 3


class RecoverySpec(ApiModel):
    """How often a job may be restarted before it fails; lost nodes and races are not charged."""

    max_restarts: Annotated[int, Field(ge=0, le=10_000)] = 3


class TrainingJobSpec(ApiModel):
    """Desired state of a TrainingJob."""

    queue: Name
    priority_class_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    nodes: Annotated[int, Field(ge=1, le=10_000)] = 1
    gpus_per_node: Annotated[int, Field(ge=1, le=64)] = 1
    gpu_pool: Name | None = None
    topology: TopologyRequest | None = None
    resources: ResourceList | None = None
    node_selector: Annotated[dict[LabelKey, LabelValue] | None, Field(max_length=32)] = None
    tolerations: Annotated[list[Toleration] | None, Field(max_length=32)] = None
    trainer: TrainerSpec | None = None
    template: PodTemplate | None = None
    checkpoint: CheckpointSpec | None = None
    recovery: RecoverySpec = RecoverySpec()
    suspend: bool = False
    start_deadline_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    active_deadline_seconds: Annotated[int, Field(ge=1, le=31_536_000)] | None = None
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    managed_by: Annotated[str, Field(min_length=1, max_length=253)] | None = None

    rules: ClassVar[tuple[Rule, ...]] = ()


class Assignment(ApiModel):
    """Which node each pod index got: `prefix + nodes[index]`."""

    gpu_pool: str
    prefix: str = ""
    nodes: Annotated[list[str], Field(max_length=10_000)]

    def node_names(self) -> tuple[str, ...]:
        """Full node names, by pod index."""
        return tuple(self.prefix + rest for rest in self.nodes)


class CheckpointStatus(ApiModel):
    """The newest checkpoint the job reported as committed and verified."""

    step: int
    digest: Annotated[str, Field(max_length=128)]


class TrainingJobStatus(ApiModel):
    """Observed state of a TrainingJob."""

    observed_generation: int | None = None
    phase: Phase | None = None
    reason: Annotated[str | None, Field(max_length=64)] = None
    message: Annotated[str | None, Field(max_length=2048)] = None
    generation: int | None = None
    epoch: int | None = None
    assignment: Assignment | None = None
    image: Annotated[str | None, Field(max_length=512)] = None
    queued_at: Annotated[str | None, Field(json_schema_extra={"format": "date-time"})] = None
    admitted_at: Annotated[str | None, Field(json_schema_extra={"format": "date-time"})] = None
    generation_at: Annotated[str | None, Field(json_schema_extra={"format": "date-time"})] = None
    started_at: Annotated[str | None, Field(json_schema_extra={"format": "date-time"})] = None
    finished_at: Annotated[str | None, Field(json_schema_extra={"format": "date-time"})] = None
    ready: Annotated[str | None, Field(max_length=32)] = None
    restarts: int | None = None
    step: int | None = None
    total_steps: int | None = None
    loss: Annotated[str | None, Field(max_length=32)] = None
    tokens_per_second: int | None = None
    checkpoint: CheckpointStatus | None = None
    incident: Annotated[str | None, Field(max_length=8192)] = None
    conditions: Annotated[list[Condition] | None, Field(max_length=16)] = None


class TrainingJob(ApiModel):
    """A gang of identical pods that trains one model."""

    KIND: ClassVar[str] = "TrainingJob"

    spec: TrainingJobSpec
    status: TrainingJobStatus | None = None
