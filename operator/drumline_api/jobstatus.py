"""Define the status of a TrainingJob. Only the operator writes it."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from drumline_api.after import AfterSpec
from drumline_api.assignment import Assignment, Indices, ObjectName, PoolNodes
from drumline_api.base import ApiModel, Timestamp, keyed_by
from drumline_api.conditions import Condition, DisruptionKind, Phase
from drumline_api.incidents import Budgets, GpuSeconds, IncidentNumber, IncidentStatus
from drumline_contract import MAX_COMPUTE_CHARS, MAX_SERIES_CHARS
from drumline_contract.prompt_answers import MAX_ANSWERS_CHARS

# The largest `times` of the scheduling policy.
MAX_PREEMPTIONS: Final = 16
"""Maximum number of times that scheduling.preemptionLimit counts."""
ShortText = Annotated[str, Field(max_length=32)]


class CheckpointStatus(ApiModel):
    """Newest checkpoint that the job reported as committed and verified."""

    step: int
    """Number of optimizer steps in the checkpoint."""
    digest: Annotated[str, Field(max_length=128)]
    """Digest of the checkpoint's manifest."""


class DisruptionStatus(ApiModel):
    """An upcoming disruption of the job or some of its members.

    Its agents are asked to save first.
    """

    id: ObjectName
    """ID of the notice that the agents receive."""
    kind: DisruptionKind
    """Kind of the disruption."""
    by: ObjectName
    """Job that needs the GPUs, as namespace/name, or the source of a node's signal."""
    by_uid: Annotated[str, Field(max_length=64)] = ""
    """UID of that job."""
    reason: Annotated[str, Field(max_length=1024)] = ""
    """Reason with figures and names."""
    requested_at: Timestamp
    """Time at which the disruption became known."""
    deadline: Timestamp | None = None
    """Time until which Drumline waits for a checkpoint. After it, the last verified checkpoint is
    used. Unset if a node will probably go, such as after a cordon: members stay until another node
    is available."""
    indices: Indices | None = None
    """Members that must leave. Unset: all members."""
    movable: bool | None = None
    """True if the members have saved, or do not need to. They move as soon as another node is
    available."""


class AvoidedNode(ApiModel):
    """A node on which a GPU failed under the job."""

    node: ObjectName
    """Name of the node."""
    until: Timestamp
    """Time until which no pod of the job is placed on the node."""
    cause: Annotated[str, Field(max_length=256)]
    """Failure, as the pod on that node reported it."""


class TrainingJobStatus(ApiModel):
    """Observed state of a TrainingJob."""

    observed_generation: int | None = None
    """metadata.generation that this status describes."""
    phase: Phase | None = None
    """Summary of the conditions in one word."""
    reason: Annotated[str | None, Field(max_length=64)] = None
    """Reason for the phase, from a closed list."""
    message: Annotated[str | None, Field(max_length=2048)] = None
    """Reason with figures and names."""
    generation: int | None = None
    """Number of the gang's current membership. It increases before pods are replaced."""
    epoch: int | None = None
    """Leadership epoch of the operator that wrote the generation."""
    assignment: Assignment | None = None
    """Nodes and pods of the current generation."""
    nominated: PoolNodes | None = None
    """Nodes reserved for this job until its victims have left, or until the job moves."""
    disruption: DisruptionStatus | None = None
    """Disruption that the agents save for. Unset after the members are gone."""
    image: Annotated[str | None, Field(max_length=512)] = None
    """Image of the pods, with the digest that the first pods ran. Replacements and resumes use the
    same digest, until the job names another image."""
    agent_image: Annotated[str | None, Field(max_length=512)] = None
    """Agent image for template.launch, recorded when the job last got its GPUs. All replacements
    use the agent of their peers."""
    code_digest: Annotated[str | None, Field(max_length=71)] = None
    """Digest of the code (template.code) that the pods unpack, recorded when the job last got its
    GPUs. Replacements use the same code. Unset: the code is in the image."""
    priority: int | None = None
    """Value of the priority class when the job last got its GPUs. While the job holds GPUs, a lower
    class applies immediately. A higher class applies when the job is queued again."""
    signing_key: Annotated[str | None, Field(max_length=16)] = None
    """Name of the operator's signing key, from which the token of the pods is derived. Replaced
    when the job next gets GPUs. Unset for jobs whose pods share no token."""
    queued_at: Timestamp | None = None
    """Time at which the job began to wait for GPUs. Preemption does not change it. Microseconds
    order jobs that were created in the same second."""
    after: Annotated[
        list[AfterSpec] | None, Field(max_length=16, json_schema_extra=keyed_by("job"))
    ] = None
    """Jobs of spec.after that ended as required. They can be deleted: they are not checked
    again."""
    expected_start: Timestamp | None = None
    """Median of the forecast start times while the job is pending. The forecast uses the remaining
    run time of running jobs. Near the head of the queue it also simulates scheduling cycles. It is
    corrected by the errors of earlier forecasts."""
    expected_start_by: Timestamp | None = None
    """90th percentile of the forecast start times. See docs/jobs.md."""
    admitted_at: Timestamp | None = None
    """Time at which the job last got its GPUs."""
    generation_at: Timestamp | None = None
    """Start time of the current generation."""
    # Bounded lists: a status that grows with the age of a job would exceed etcd's limit.
    preempted_at: Annotated[list[Timestamp] | None, Field(max_length=MAX_PREEMPTIONS)] = None
    """Times at which the job released all its GPUs for other jobs, oldest first. Only the latest
    are kept."""
    started_at: Timestamp | None = None
    """Time at which all pods first ran."""
    finished_at: Timestamp | None = None
    """Time at which the job succeeded or failed permanently."""
    ready: ShortText | None = None
    """Ready pods and desired pods, such as 2/4."""
    ranks: int | None = None
    """Number of GPUs that the job trains on, or trained on last. Set if its pods have agents."""
    previous_ranks: int | None = None
    """Number of GPUs before the current generation. The job's program can read it."""
    restarts: int | None = None
    """Number of recoveries from faults, in place or with new pods, whether or not a limit of
    recovery applies. Announced disruptions and preemptions do not count."""
    failed_starts: int | None = None
    """Number of consecutive starts that failed or were refused. recovery.maxFailedStarts limits it.
    Unset after all pods ran, and when the spec has changed."""
    step: int | None = None
    """Number of completed optimizer steps, as last reported."""
    total_steps: int | None = None
    """Total number of optimizer steps."""
    loss: ShortText | None = None
    """Training loss, as last reported."""
    expected_end: Timestamp | None = None
    """Expected time of the last step, at the current pace. The scheduler uses it, so jobs that wait
    for these GPUs get an earlier or more certain expected start. Unset while the number of steps or
    the pace is unknown."""
    tokens_per_second: int | None = None
    """Tokens per second over all ranks, as last reported."""
    predicted_tokens_per_second: int | None = None
    """Tokens per second that the planner predicts for this layout on these GPUs. Unset if the
    planner does not know the GPUs."""
    # CSV in one field: rows as objects would repeat the names of the columns.
    series: Annotated[str | None, Field(max_length=MAX_SERIES_CHARS)] = None
    """Figures of the run by step, as CSV with a header: at most 48 logged steps, spread about
    evenly over the run. The columns are loss, gradient norm, tokens, seconds, and the parts of the
    step time in thousandths. Written only together with other figures."""
    compute_by_rank: Annotated[str | None, Field(max_length=MAX_COMPUTE_CHARS)] = None
    """Compute time of the ranks by step, as CSV with a header: at most 24 steps, spread about
    evenly over the run. Each rank has one character. With more than 64 ranks, a character shows the
    slowest of a group of neighbors. 5 is the median of the ranks with the same work. Each character
    of 0-9a-z above 5 means 5 % more time. z includes all higher values, and - means unknown.
    Written only together with other figures."""
    prompt_answers: Annotated[str | None, Field(max_length=MAX_ANSWERS_CHARS)] = None
    """Continued prompts (evaluation.prompts) of the newest evaluation, as JSON: the step, then
    pairs of a prompt and its continuation. Long texts are cut. Written only together with other
    figures."""
    layout: Annotated[str | None, Field(max_length=256)] = None
    """Parallelism that the ranks use, as last reported. If the ranks chose it, the predicted cost
    is included."""
    checkpoint: CheckpointStatus | None = None
    """Newest verified checkpoint."""
    incident: Annotated[str | None, Field(max_length=8192)] = None
    """Final report of the pod that failed. It is kept after the pods are deleted."""
    last_incident: IncidentStatus | None = None
    """Newest fault and the recovery from it, with figures."""
    # With the newest one, a status has eight incidents.
    earlier_incidents: Annotated[list[IncidentStatus] | None, Field(max_length=7)] = None
    """Earlier faults, newest first."""
    avoided_nodes: Annotated[
        # Keyed by node, so that a second failure on a node updates its entry.
        list[AvoidedNode] | None, Field(max_length=16, json_schema_extra=keyed_by("node"))
    ] = None
    """Nodes that the scheduler avoids for this job, because a GPU failed there."""
    folded_incident: IncidentNumber | None = None
    """Newest restart in place that budgets include."""
    budgets: Budgets = None
    """Number of faults by class, compared with the limits of recovery."""
    gpu_seconds: GpuSeconds | None = None
    """GPU-seconds of the job, by what they were used for."""
    conditions: Annotated[
        list[Condition] | None, Field(max_length=16, json_schema_extra=keyed_by("type"))
    ] = None
    """Conditions of the job. Types and reasons are closed lists."""
