"""Define TrainingJob, the object that an ML engineer writes.

A job sets exactly one of `trainer` (the bundled trainer) and `template` (any image and command).
`mutability` lists which fields may change and when. `jobstatus` defines the status.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema

from drumline_api.after import AfterSpec, SweepSpec
from drumline_api.assignment import Assignment
from drumline_api.base import (
    TOKEN_SECRET_SUFFIX,
    WRITTEN_AS_ONE,
    ApiModel,
    LabelKey,
    LabelValue,
    Name,
    Rule,
    keyed_by,
    relative_path,
    validated_by,
)
from drumline_api.capacity import Price, SpotChoice
from drumline_api.jobstatus import CheckpointStatus, TrainingJobStatus
from drumline_api.mutability import JOB_RULES, SPEC_RULES, never
from drumline_api.nodeaffinity import NodeAffinity
from drumline_api.overrides import Overrides
from drumline_api.parallelism import ParallelismSpec
from drumline_api.podtemplate import PodTemplate, ResourceList, Toleration
from drumline_api.role import MAX_ROLES, RoleSpec
from drumline_api.spec_rules import JOB_NAME, RULES_OF_THE_SPEC
from drumline_api.topology import ComputeDomainSpec, SliceRequest, TopologyRequest
from drumline_contract import BUCKET_PATTERN, KEY_PATTERN
from drumline_contract.config import MODEL_PRESETS

__all__ = [
    "AfterSpec",
    "Assignment",
    "CheckpointSpec",
    "CheckpointStatus",
    "DataSpec",
    "GroupSpec",
    "ParallelismSpec",
    "RecoverySpec",
    "RoleSpec",
    "SliceRequest",
    "SweepSpec",
    "TopologyRequest",
    "TrainerSpec",
    "TrainingJob",
    "TrainingJobSpec",
    "TrainingJobStatus",
]

# `startsWith` has a smaller estimated cost than `matches`.
NOT_A_SYSTEM_CLASS: Final = Rule(
    rule="!self.startsWith('system-')",
    message="priorityClassName: classes that start with system- are reserved for the cluster's"
    " own pods; choose another class",
)
OverridesText = Annotated[
    Overrides,
    # Kept as text in the model. The JSON schema below describes the same field to the API server.
    PlainValidator(Overrides.of),
    PlainSerializer(Overrides.decoded),
    WithJsonSchema(
        {
            "type": "object",
            # The bound also limits the cost that the API server estimates for rules over the whole
            # spec.
            "maxProperties": 32,
            # Not preserved as a whole: of such an object CEL compares only keys that both have.
            "additionalProperties": {
                "x-kubernetes-preserve-unknown-fields": True,
                # Null is allowed here, because the trainer's configuration has optional fields.
                "nullable": True,
            },
        }
    ),
]
MODEL_OF_FOLDER: Final = "FromFolder"
"""Use the model that `config.json` describes, beside the initial weights of the job."""
MODEL_OF_TRANSFORMERS: Final = "Transformers"
"""Use any causal language model, as the library transformers builds it from `config.json`."""
_KEY_PATTERN: Final = f"^({KEY_PATTERN})?$"
# No pattern for `..`: the CEL rule on the path gives a message that names the remedy.
RelativePath = Annotated[str, Field(max_length=512, pattern=r"^[^\x00-\x1f\x7f]*$")]


class DataSpec(ApiModel):
    """Training data in a claim, mounted read-only. Unset: the sources of the Python library."""

    claim_name: Name
    """PersistentVolumeClaim with the data, in the job's namespace."""
    path: RelativePath = ""
    """Folder inside the claim (relative). Default: its root."""
    pattern: Annotated[str, Field(min_length=1, max_length=128)] = "**/*"
    """Glob of the files to read in the folder. Default: all files."""

    rules: ClassVar[tuple[Rule, ...]] = (relative_path("path"), relative_path("pattern"))


class TrainerSpec(ApiModel):
    """The bundled trainer. Common settings have typed fields; `overrides` holds all others."""

    model: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            # An enum in the schema and a string in the model: a new preset must not need a new
            # type.
            json_schema_extra={"enum": [*MODEL_PRESETS, MODEL_OF_FOLDER, MODEL_OF_TRANSFORMERS]},
        ),
    ] = "tiny"
    """Built-in model, FromFolder or Transformers. FromFolder uses the model that config.json
    describes in the folder or bucket of overrides.model_from. The ranks read config.json when they
    start. Before that, nothing checks the model's memory or whether parallelism divides it.
    Transformers reads config.json likewise, and trains the model as the library transformers
    builds it. With overrides.config_from in place of model_from the weights begin at random.
    Default: tiny, which trains on two CPU cores. Never changes."""
    steps: Annotated[int, Field(ge=1, le=1_000_000_000)] = 100
    """Number of optimizer steps to train. Default: 100."""
    global_batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    """Sequences per step over all ranks. Must be a multiple of the data-parallel ranks: nodes x
    gpusPerNode, divided by the degrees of parallelism that share samples. Default: 16."""
    micro_batch_size: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Maximum number of sequences that a rank processes at once. Fewer sequences use less memory.
    Default: the rank's whole share, or the number that keeps a pipeline busy."""
    parallelism: ParallelismSpec | None = None
    """Parallelism of the ranks. Default: all weights are sharded over all ranks (fsdp)."""
    sequence_length: Annotated[int, Field(ge=8, le=1_048_576)] = 128
    """Tokens per sequence. Default: 128."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of the forward and backward passes. Weights stay in fp32. Default: fp32."""
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 0
    """Seed of the initial weights and the data order. Default: 0."""
    data: DataSpec | None = None
    """Text, token shards or images to train on. Default: the sources of the Python library."""
    image: (
        # No spaces or control characters. Everything else is a matter of the container runtime.
        Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x20\x7f]+$")] | None
    ) = None
    """Trainer image, preferably with a digest. Default: the image that Drumline was installed
    with."""
    overrides: OverridesText | None = None
    """Any other field of the trainer's configuration. Example for optimizer.learning_rate:
    {optimizer: {learning_rate: 0.001}}. At most 16 KiB as JSON. The operator checks it before the
    job requests GPUs. The condition InvalidConfig reports errors."""

    rules: ClassVar[tuple[Rule, ...]] = (
        # A transition rule: the server skips it on creation and compares with the stored object
        # later.
        never("model", instead="a checkpoint fits one model only, so create a new job"),
    )


class CheckpointSpec(ApiModel):
    """Durable checkpoints on a shared claim or in a bucket. Unset: a restart begins at step 0."""

    claim_name: Name | None = None
    """PersistentVolumeClaim in the job's namespace that all nodes can mount. Never changes."""
    bucket: Annotated[str, Field(max_length=512, pattern=BUCKET_PATTERN)] | None = None
    """Bucket to use instead of a claim: s3://BUCKET/PREFIX or gs://BUCKET/PREFIX. The prefix is
    optional. Never changes."""
    secret_name: Name | None = None
    """Secret in the job's namespace with the bucket's credentials. Only these keys are read:
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_DEFAULT_REGION,
    AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_S3 and GOOGLE_SERVICE_ACCOUNT_KEY. Unset: credentials come
    from the pods' ServiceAccount, their node or the chart's trainerPod.env. Changes only while
    suspended."""
    path: RelativePath = ""
    """Path inside the claim, or key prefix inside the bucket (relative). Default: a path that only
    this job uses. A job waits until no other job uses the same path. Never changes."""
    continue_from: Name | None = None
    """Job in the same namespace whose checkpoints in `path` this job continues. Default: only the
    checkpoints of a job with this job's name. Changes only while suspended."""
    every_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 50
    """Steps between two checkpoints. Default: 50."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    """Number of newest verified checkpoints to keep. Default: 3."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # `!=` of two booleans is an exclusive or, which CEL lacks as an operator.
            rule="has(self.claimName) != has(self.bucket)",
            message="exactly one of claimName and bucket is required: checkpoints are stored on"
            " a claim or in a bucket",
        ),
        Rule(
            rule="!has(self.secretName) || has(self.bucket)",
            message="secretName holds the credentials of bucket; set bucket or remove secretName",
            field_path=".secretName",
        ),
        Rule(
            # The suffix covers tokens of jobs that do not exist yet, so no lookup is needed.
            rule=f"!has(self.secretName) || !self.secretName.endsWith('{TOKEN_SECRET_SUFFIX}')",
            message=f"secretName: Secrets named ...{TOKEN_SECRET_SUFFIX} hold the tokens of jobs;"
            " choose another Secret",
            field_path=".secretName",
        ),
        Rule(
            # A pattern in CEL instead of the schema, because it applies only together with a
            # bucket.
            rule=f"!has(self.bucket) || self.path.matches('{_KEY_PATTERN}')",
            message="path: a bucket key contains letters, digits and !_.*()=- between single"
            " slashes, and no part is only a dot; for example runs/a",
            field_path=".path",
        ),
        relative_path("path"),
        # Transition rules follow the rules about single objects.
        never("claimName", instead="create a new job and copy the checkpoints"),
        never("bucket", instead="create a new job and copy the checkpoints"),
        never("path", instead="create a new job with this path"),
    )


class RecoverySpec(ApiModel):
    """Limits on recoveries, by cause. A job that exceeds one fails."""

    max_restarts: Annotated[int, Field(ge=0, le=10_000)] = 3
    """Maximum number of recoveries within the window from errors of the training code, in place or
    with new pods. Default: 3."""
    max_out_of_memory_restarts: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Maximum number of recoveries within the window after a rank ran out of memory. Default: 1."""
    max_hang_restarts: Annotated[int, Field(ge=0, le=10_000)] = 3
    """Maximum number of recoveries within the window after a rank hung. Default: 3."""
    max_infrastructure_restarts: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Maximum number of recoveries within the window from lost pods, nodes and links. Unset: no
    limit. Announced disruptions do not count."""
    max_failed_starts: Annotated[int, Field(ge=1, le=10_000)] = 5
    """Maximum number of consecutive starts that may fail. Then the job fails. A start fails if
    kubelets do not start all pods, or if the API server refuses them. It holds its GPUs for at most
    startDeadlineSeconds. It holds them for about 30 seconds if a kubelet reports an error that
    waiting does not fix. Default: 5."""
    budget_window_seconds: Annotated[int, Field(ge=60, le=31_536_000)] = 86_400
    """Length of the sliding window of all these limits. Default: 86400 (one day)."""
    hang_timeout_seconds: Annotated[int, Field(ge=10, le=86_400)] = 600
    """Seconds without progress after which all ranks restart, if all of them are stuck and none is
    the cause. In the bundled trainer, a single rank that blocks the others is detected within
    seconds. Scripts with the client wait this long in both cases. Default: 600."""
    lost_after_seconds: Annotated[int, Field(ge=2, le=3600)] = 5
    """Seconds after which a member is replaced if neither its peers nor the operator hear from it.
    Default: 5."""
    hold_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    """Seconds that pods stay up, and hold their GPUs, after a program failed that cannot be
    restarted in them. You can inspect them with drumline shell. Only with template.launch PerGpu or
    PerPod. A change applies to generations that start after it. Unset: the pods end immediately."""


class GroupSpec(ApiModel):
    """Jobs of one namespace that start together or not at all, such as actors and a learner.

    The group shares only the first start. A job that loses its nodes later is placed again on its
    own.
    """

    name: Name
    """Name that all jobs of the group share. Do not reuse it while one of them exists."""
    jobs: Annotated[int, Field(ge=2, le=256)]
    """Number of jobs in the group. No job starts before all of them are pending and fit
    together."""


class TrainingJobSpec(ApiModel):
    """Desired state of a TrainingJob."""

    queue: Name
    """TrainingQueue whose quota the job uses. Changes only while suspended."""
    priority_class_name: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=253,
                pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
                # The rule is on the field itself, so ratcheting lets old objects with such a class
                # change.
                json_schema_extra=validated_by(NOT_A_SYSTEM_CLASS),
            ),
        ]
        | None
    ) = None
    """PriorityClass that orders the job in its queue. The job's pods use Drumline's own class.
    Classes of the cluster's own pods (system-...) are rejected. While the job holds GPUs, a lower
    class applies immediately. A higher class applies when the job is queued again. Unset: the
    cluster's default class, or priority 0."""
    nodes: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Number of pods in the gang, one per node or share of a node. Default: 1. Changes only while
    suspended."""
    min_nodes: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Minimum number of pods of an elastic gang. The gang starts or continues with this many pods
    if nodes pods do not fit, and grows back later. The global batch size stays the same. Sizes that
    do not divide trainer.globalBatchSize, or that split a slice of topology, are skipped. Needs
    trainer and checkpoint, or a template with launch whose program can restart with another number
    of ranks. Unset: the gang always has nodes pods. Changes only while suspended."""
    gpus_per_node: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of GPUs per pod. One rank runs on each GPU. Default: 1. Changes only while
    suspended."""
    gpu_partition: LabelKey | None = None
    """Resource name of a GPU partition that gpuPool offers (GpuPool spec.partitions), such as
    nvidia.com/mig-1g.10gb. Each pod gets one partition instead of a whole GPU. Unset: whole GPUs.
    Changes only while suspended."""
    gpu_pool: Name | None = None
    """GpuPool that the gang must run in. Unset: any pool that the queue has quota in. Changes only
    while suspended."""
    # `min_length=1`: an empty list would forbid every pool, which no user means.
    gpu_pools: Annotated[list[Name] | None, Field(min_length=1, max_length=16)] = None
    """GpuPools that the gang may run in, in order of preference. The gang starts in the first pool
    that has enough free GPUs. Excludes gpuPool. Changes only while suspended."""
    spot: SpotChoice | None = None
    """Use of pools with capacity.type Spot, within the limits of the queue. Prefer: before all
    other pools. Avoid: after all other pools. Only: no other pools. Never: only other pools. Prefer
    and Avoid have no effect if the job names its pools. Surplus: minNodes pods run in a pool of
    another type, and the pods above minNodes run in a spot pool with the same GPUs. Surplus needs
    minNodes and excludes gpuPool and topology.required. Unset: the queue's setting. Applies when
    the job starts or grows."""
    max_price_per_gpu_hour: Price | None = None
    """Maximum price per GPU-hour, such as '1.20'. The queue's limit also applies. Unset: only the
    queue's limit applies. Applies when the job starts or grows."""
    topology: TopologyRequest | None = None
    """Network location of the gang: which levels it must or should share, and which pods belong
    together. Changes only while suspended."""
    compute_domain: ComputeDomainSpec | None = None
    """Set to {} to create a ComputeDomain of NVIDIA's DRA driver for the job. Each pod with GPUs
    gets one of its channels, so that NVLink connects the nodes (GB200, GB300). Needs the chart's
    dynamicResources.enabled. Unset: NVLink connects only the GPUs of one node. Changes only while
    suspended."""
    group: GroupSpec | None = None
    """Jobs that start together with this job or not at all. Changes only while suspended."""
    after: Annotated[
        list[AfterSpec] | None,
        # A list map: server-side apply merges entries by their key instead of replacing the list.
        Field(min_length=1, max_length=16, json_schema_extra=keyed_by("job")),
    ] = None
    """Jobs that must end before this job requests GPUs. Until then this job holds no GPUs. Its
    position in the queue counts from the end of the last of these jobs. Changes only while
    suspended."""
    sweep: SweepSpec | None = None
    """Sweep that the job belongs to. Limits how many jobs of the sweep run at once."""
    user: (
        Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[^\x00-\x20\x7f]+$")] | None
    ) = None
    """User that the job counts for, if its queue limits each user (userLimitGpus). Drumline does
    not verify the value, because Kubernetes does not record who created an object. The chart's
    userPolicy makes the API server enforce it. Unset: all jobs without a user share one limit.
    Changes only while suspended."""
    resources: ResourceList | None = None
    """Resource requests and limits of each pod besides its GPUs, such as {cpu: 8, memory: 64Gi,
    rdma/hca: 1}. CPU and memory default to requests of 100m and 128Mi per GPU, without a limit.
    Changes only while suspended."""
    node_selector: Annotated[dict[LabelKey, LabelValue] | None, Field(max_length=32)] = None
    """Labels that the nodes must have, in addition to those of the pool. Changes only while
    suspended."""
    node_affinity: NodeAffinity | None = None
    """Conditions on node labels in addition to nodeSelector, such as a node to avoid. Changes only
    while suspended."""
    tolerations: Annotated[list[Toleration] | None, Field(max_length=32)] = None
    """Taints that the pods tolerate. The taint of GPU nodes is always tolerated. Changes only while
    suspended."""
    trainer: TrainerSpec | None = None
    """Bundled trainer. {} trains the tiny model. Set exactly one of trainer and template. Changes
    only while suspended. Its model never changes."""
    template: PodTemplate | None = None
    """Any image and command, gang-scheduled like the bundled trainer. Set exactly one of trainer
    and template. Changes only while suspended."""
    roles: Annotated[
        list[RoleSpec] | None,
        Field(min_length=1, max_length=MAX_ROLES, json_schema_extra=keyed_by("name")),
    ] = None
    """Additional pods beside the ranks of template, such as a launcher, parameter servers or an
    evaluator. They are placed, started and restarted with the ranks as one gang. Changes only while
    suspended."""
    checkpoint: CheckpointSpec | None = None
    """Storage for the bundled trainer's durable checkpoints. Unset: a restart begins at step 0.
    Changes only while suspended. The location never changes."""
    recovery: RecoverySpec = RecoverySpec()
    """Limits on restarts. A job that exceeds one fails."""
    # A default model gives `default: {}`, so the server fills in each field of the part.
    suspend: bool = False
    """If true, the job is suspended: it releases all its GPUs. It later resumes from its newest
    checkpoint. Default: false."""
    when_idle: Literal["Keep"] | None = None
    """Keep: the job is never suspended because of idle GPUs, even if its queue suspends idle jobs.
    Warnings and notifications are still sent. Unset: the queue's setting (idle)."""
    start_deadline_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600
    """Seconds from admission until all pods must run, without image pulls. After this time the gang
    releases its GPUs and is queued again. Default: 600."""
    active_deadline_seconds: Annotated[int, Field(ge=1, le=31_536_000)] | None = None
    """Seconds that the job may run before it fails, since its last start. Time suspended or pending
    does not count, and a new start resets the count, as in a batch/v1 Job. The scheduler also
    expects the job's GPUs to be free at this deadline. While the job holds GPUs, the value can only
    decrease. Unset: no limit."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    """Seconds after which a finished job is deleted. Unset: the job is kept."""
    managed_by: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=253,
                # `domain/name`, as for `managedBy` of a batch/v1 Job.
                pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
            ),
        ]
        | None
    ) = None
    """Another controller that runs this job, as domain/name. Drumline ignores such a job. Never
    changes."""

    rules: ClassVar[tuple[Rule, ...]] = (*RULES_OF_THE_SPEC, *SPEC_RULES)


class TrainingJob(ApiModel):
    """A gang of identical pods that trains one model. Either all of its pods run, or none."""

    KIND: ClassVar[str] = "TrainingJob"

    spec: TrainingJobSpec
    """Desired state of the job."""
    # Atomic: one entry in managedFields for the whole status, and a smaller object.
    status: Annotated[TrainingJobStatus | None, Field(json_schema_extra=WRITTEN_AS_ONE)] = None
    """Observed state. Set by the operator."""

    # Rules that read both spec and status, or the name, must be at the root of the object.
    rules: ClassVar[tuple[Rule, ...]] = (JOB_NAME, *JOB_RULES)
