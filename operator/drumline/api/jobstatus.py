"""The status half of a TrainingJob: written by the operator, never by users."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from drumline.api.base import ApiModel, Timestamp, keyed_by
from drumline.api.conditions import Condition, Phase

ShortText = Annotated[str, Field(max_length=32)]
ObjectName = Annotated[str, Field(max_length=253)]


class Assignment(ApiModel):
    """Which node each pod index got: `prefix + nodes[index]`."""

    gpu_pool: ObjectName
    """GpuPool of all the nodes."""
    prefix: ObjectName = ""
    """What the names of all the nodes begin with."""
    nodes: Annotated[list[ObjectName], Field(max_length=10_000)]
    """Rest of the node's name, by pod index."""

    def node_names(self) -> tuple[str, ...]:
        """Full node names, by pod index."""
        return tuple(self.prefix + rest for rest in self.nodes)


class CheckpointStatus(ApiModel):
    """The newest checkpoint the job reported as committed and verified."""

    step: int
    """Optimizer steps it holds."""
    digest: Annotated[str, Field(max_length=128)]
    """Digest of its manifest."""


class TrainingJobStatus(ApiModel):
    """What the operator last saw and decided."""

    observed_generation: int | None = None
    """metadata.generation this status is about."""
    phase: Phase | None = None
    """The conditions in one word."""
    reason: Annotated[str | None, Field(max_length=64)] = None
    """Why the job is in this phase, from a closed list."""
    message: Annotated[str | None, Field(max_length=2048)] = None
    """The reason with figures and names."""
    generation: int | None = None
    """Number of the current membership of the gang; raised before pods are replaced."""
    epoch: int | None = None
    """Number of the operator's leadership that wrote the generation."""
    assignment: Assignment | None = None
    """Nodes of the current generation."""
    image: Annotated[str | None, Field(max_length=512)] = None
    """Image the job was admitted with; replacements and resumes use it too."""
    queued_at: Timestamp | None = None
    """When the job began to wait; kept over preemption."""
    admitted_at: Timestamp | None = None
    """When it last got its GPUs."""
    generation_at: Timestamp | None = None
    """When the current generation began."""
    started_at: Timestamp | None = None
    """When all its pods first ran."""
    finished_at: Timestamp | None = None
    """When it succeeded or failed for good."""
    ready: ShortText | None = None
    """Pods ready of pods wanted, for instance 2/4."""
    restarts: int | None = None
    """Restarts counted against recovery.maxRestarts."""
    step: int | None = None
    """Finished optimizer steps, as last reported."""
    total_steps: int | None = None
    """Optimizer steps in all."""
    loss: ShortText | None = None
    """Training loss, as last reported."""
    tokens_per_second: int | None = None
    """Tokens per second over all ranks, as last reported."""
    checkpoint: CheckpointStatus | None = None
    """Newest verified checkpoint."""
    incident: Annotated[str | None, Field(max_length=8192)] = None
    """Last words of the pod that failed; outlives the pods."""
    conditions: Annotated[
        list[Condition] | None, Field(max_length=16, json_schema_extra=keyed_by("type"))
    ] = None
    """What is true of the job, with closed lists of types and reasons."""
