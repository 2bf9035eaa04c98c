"""The status half of a TrainingJob: written by the operator, never by users."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from drumline_api.after import AfterSpec
from drumline_api.assignment import Assignment, Indices, ObjectName, PoolNodes
from drumline_api.base import ApiModel, Timestamp, keyed_by
from drumline_api.conditions import Condition, DisruptionKind, Phase
from drumline_api.incidents import Budgets, GpuSeconds, IncidentNumber, IncidentStatus
from drumline_contract import MAX_COMPUTE_CHARS, MAX_SERIES_CHARS

MAX_PREEMPTIONS: Final = 16
"""As many as scheduling.preemptionLimit counts at most."""
ShortText = Annotated[str, Field(max_length=32)]


class CheckpointStatus(ApiModel):
    """The newest checkpoint the job reported as committed and verified."""

    step: int
    """Optimizer steps it holds."""
    digest: Annotated[str, Field(max_length=128)]
    """Digest of its manifest."""


class DisruptionStatus(ApiModel):
    """The job, or some of its members, will have to leave; its agents are asked to save first."""

    id: ObjectName
    """Names the notice that the agents get."""
    kind: DisruptionKind
    """Kind of the disruption."""
    by: ObjectName
    """The job that needs the GPUs, as namespace/name, or the source of a node's signal."""
    by_uid: Annotated[str, Field(max_length=64)] = ""
    """Uid of that job."""
    reason: Annotated[str, Field(max_length=1024)] = ""
    """The reason, with figures and names."""
    requested_at: Timestamp
    """When it became known."""
    deadline: Timestamp | None = None
    """Until then a checkpoint is waited for; afterwards the last verified one counts. Absent where
    a node is only likely to go, as after a cordon: members stay until another node is found."""
    indices: Indices | None = None
    """Members that have to leave; absent: all."""
    movable: bool | None = None
    """The members have saved, or need not: they are moved as soon as there is another node."""


class AvoidedNode(ApiModel):
    """A node on which a GPU failed under the job."""

    node: ObjectName
    """Its name."""
    until: Timestamp
    """Until then no pod of the job is placed there."""
    cause: Annotated[str, Field(max_length=256)]
    """What failed, in the words of the pod that ran there."""


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
    """Nodes and pods of the current generation."""
    nominated: PoolNodes | None = None
    """Nodes that are held for this job until its victims have left them, or until it moves."""
    disruption: DisruptionStatus | None = None
    """What the agents were asked to save for; absent once the members are gone."""
    image: Annotated[str | None, Field(max_length=512)] = None
    """Image of its pods, with the digest that the first of them ran; replacements and resumes use
    it too, until the job names another one."""
    agent_image: Annotated[str | None, Field(max_length=512)] = None
    """Image of the agent that its pods bring into the template's image (template.launch), as it was
    when the job last got its GPUs: no replacement has another agent than its peers."""
    code_digest: Annotated[str | None, Field(max_length=71)] = None
    """Of the code that its pods unpacked when it last got its GPUs, replacements too
    (template.code). Absent: the image has the code."""
    priority: int | None = None
    """Value of its priority class when it last got its GPUs. While it holds them a lower class
    counts at once, a higher one when it is queued again."""
    signing_key: Annotated[str | None, Field(max_length=16)] = None
    """Name of the operator's signing key from which the token of its pods follows; replaced when it
    next gets GPUs. Absent for jobs whose pods share no token."""
    queued_at: Timestamp | None = None
    """When the job began to wait for GPUs; kept over preemption. Jobs of one second are told apart
    by microseconds, in the order in which they came."""
    after: Annotated[
        list[AfterSpec] | None, Field(max_length=16, json_schema_extra=keyed_by("job"))
    ] = None
    """Jobs of spec.after that ended as they should. They may be deleted: they are not looked at
    again."""
    expected_start: Timestamp | None = None
    """While it waits for other jobs to end: it starts as likely before this time as after it. A
    forecast from how long running jobs may still run and, near the head of the line, from cycles
    run ahead; corrected by how late or early starts were that were expected before."""
    expected_start_by: Timestamp | None = None
    """It is meant to start before this moment in nine of ten cases; see docs/jobs.md."""
    admitted_at: Timestamp | None = None
    """When it last got its GPUs."""
    generation_at: Timestamp | None = None
    """When the current generation began."""
    preempted_at: Annotated[list[Timestamp] | None, Field(max_length=MAX_PREEMPTIONS)] = None
    """When it gave all its GPUs up for other jobs, oldest first; of many the latest."""
    started_at: Timestamp | None = None
    """When all its pods first ran."""
    finished_at: Timestamp | None = None
    """When it succeeded or failed for good."""
    ready: ShortText | None = None
    """Pods ready of pods wanted, for instance 2/4."""
    ranks: int | None = None
    """GPUs that it trains on, or trained on last, where its pods have agents."""
    previous_ranks: int | None = None
    """Those it trained on before the current generation; its program learns of it."""
    restarts: int | None = None
    """Recoveries that count against a limit of recovery, in place or with new pods."""
    failed_starts: int | None = None
    """Starts in a row that failed, against recovery.maxFailedStarts; absent once all pods ran."""
    step: int | None = None
    """Finished optimizer steps, as last reported."""
    total_steps: int | None = None
    """Optimizer steps in all."""
    loss: ShortText | None = None
    """Training loss, as last reported."""
    expected_end: Timestamp | None = None
    """When its last step ends, at the pace of its present processes. The scheduler counts on it,
    so jobs that wait for these GPUs have an earlier or a more certain expected start. Absent while
    the number of steps or their pace is not known."""
    tokens_per_second: int | None = None
    """Tokens per second over all ranks, as last reported."""
    predicted_tokens_per_second: int | None = None
    """What the planner predicts for this layout on these GPUs; absent where it does not know
    them."""
    series: Annotated[str | None, Field(max_length=MAX_SERIES_CHARS)] = None
    """Figures of the run over its steps, as CSV with a head: at most 48 logged steps about evenly
    over the run. After loss, gradient norm, tokens and seconds come thousandths of the time of a
    step by what it was spent on. Written only along with other figures."""
    compute_by_rank: Annotated[str | None, Field(max_length=MAX_COMPUTE_CHARS)] = None
    """How long the ranks computed in a step, as CSV with a head: at most 24 steps about evenly over
    the run, with a character for each rank, of more than 64 for the slowest of as many neighbours.
    5 is the median of the ranks with the same work, every character of 0-9a-z above it 5 % more,
    z more than all, - not known. Written only along with other figures."""
    layout: Annotated[str | None, Field(max_length=256)] = None
    """Which parallelism the ranks train with, as last reported; where they chose it, with what it
    is predicted to cost."""
    checkpoint: CheckpointStatus | None = None
    """Newest verified checkpoint."""
    incident: Annotated[str | None, Field(max_length=8192)] = None
    """Final report of the pod that failed; outlives the pods."""
    last_incident: IncidentStatus | None = None
    """The newest fault and the recovery from it, in figures."""
    earlier_incidents: Annotated[list[IncidentStatus] | None, Field(max_length=7)] = None
    """Those before it, newest first."""
    avoided_nodes: Annotated[
        list[AvoidedNode] | None, Field(max_length=16, json_schema_extra=keyed_by("node"))
    ] = None
    """Nodes that the scheduler leaves out for this job, as a GPU there failed it."""
    folded_incident: IncidentNumber | None = None
    """The newest restart in place that budgets hold."""
    budgets: Budgets = None
    """Faults by class, against the limits of recovery."""
    gpu_seconds: GpuSeconds | None = None
    """What its GPUs were held for."""
    conditions: Annotated[
        list[Condition] | None, Field(max_length=16, json_schema_extra=keyed_by("type"))
    ] = None
    """What is true of the job, with closed lists of types and reasons."""
