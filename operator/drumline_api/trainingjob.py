"""TrainingJob: the object that an ML engineer writes.

Exactly one of `trainer` (the bundled trainer) and `template` (any image and command) is given.
What may change when is the table in `mutability`; the status half is in `jobstatus`.
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

NOT_A_SYSTEM_CLASS: Final = Rule(
    rule="!self.startsWith('system-')",
    message="priorityClassName: classes of system- are for the cluster's own pods; name another",
)
OverridesText = Annotated[
    Overrides,
    PlainValidator(Overrides.of),
    PlainSerializer(Overrides.decoded),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": 32,
            # Not preserved as a whole: of such an object CEL compares only keys that both have.
            "additionalProperties": {
                "x-kubernetes-preserve-unknown-fields": True,
                "nullable": True,
            },
        }
    ),
]
MODEL_OF_FOLDER: Final = "FromFolder"
"""The model that is described beside the weights that a job begins from."""
MODEL_OF_TRANSFORMERS: Final = "Transformers"
"""Any causal language model, as the library transformers builds it from a config.json."""
_KEY_PATTERN: Final = f"^({KEY_PATTERN})?$"
RelativePath = Annotated[str, Field(max_length=512, pattern=r"^[^\x00-\x1f\x7f]*$")]


class DataSpec(ApiModel):
    """What to train on: a claim mounted read-only. Absent: the Python library's own sources."""

    claim_name: Name
    """PersistentVolumeClaim of the job's namespace that holds them."""
    path: RelativePath = ""
    """Folder inside the claim, relative. Default: its root."""
    pattern: Annotated[str, Field(min_length=1, max_length=128)] = "**/*"
    """Files of the folder that are read, as a glob. Default: all of them."""

    rules: ClassVar[tuple[Rule, ...]] = (relative_path("path"), relative_path("pattern"))


class TrainerSpec(ApiModel):
    """The bundled trainer: what a user must know is typed, everything else goes to `overrides`."""

    model: Annotated[
        str,
        Field(
            min_length=1,
            max_length=63,
            json_schema_extra={
                "enum": [*MODEL_PRESETS, MODEL_OF_FOLDER, MODEL_OF_TRANSFORMERS]
            },
        ),
    ] = "tiny"
    """Built-in model, or FromFolder: the model that config.json describes in the folder or bucket
    of overrides.model_from. That is read when the ranks start; until then neither the model's
    memory nor whether it divides by parallelism is judged. Transformers: likewise, trained as the
    library transformers builds it, for models that the trainer has no code of its own for; with
    overrides.config_from in place of model_from its weights begin at random. Default: tiny, which
    learns on two CPU cores. Never changes."""
    steps: Annotated[int, Field(ge=1, le=1_000_000_000)] = 100
    """Optimizer steps to train for. Default: 100."""
    global_batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    """Sequences per step over all ranks; a multiple of nodes x gpusPerNode, or of the part of them
    that parallelism leaves to different samples. Default: 16."""
    micro_batch_size: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Sequences a rank works on at once, at most: less takes less memory. Default: its whole share,
    or what keeps a pipeline busy."""
    parallelism: ParallelismSpec | None = None
    """How the ranks share the work. Default: all weights are sharded over all ranks (fsdp)."""
    sequence_length: Annotated[int, Field(ge=8, le=1_048_576)] = 128
    """Tokens per sequence. Default: 128."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Type of the forward and backward passes; weights stay fp32. Default: fp32."""
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 0
    """Decides initial weights and data order. Default: 0."""
    data: DataSpec | None = None
    """Text, token shards or images to train on. Default: the Python library's own sources."""
    image: (
        Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x20\x7f]+$")] | None
    ) = None
    """Image of the trainer, best with a digest. Default: the one Drumline was installed with."""
    overrides: OverridesText | None = None
    """Any other field of the trainer's own configuration, for instance optimizer.learning_rate
    written as {optimizer: {learning_rate: 0.001}}; at most 16 KiB as JSON. Checked by the operator
    before the job asks for a GPU: condition InvalidConfig names what is wrong."""

    rules: ClassVar[tuple[Rule, ...]] = (
        never("model", instead="a checkpoint fits one model only, so create a new job"),
    )


class CheckpointSpec(ApiModel):
    """Durable checkpoints, on a shared claim or in a bucket. Absent: a restart begins at step 0."""

    claim_name: Name | None = None
    """PersistentVolumeClaim of the job's namespace, mountable by all nodes. Never changes."""
    bucket: Annotated[str, Field(max_length=512, pattern=BUCKET_PATTERN)] | None = None
    """Instead of a claim: a bucket, with or without a prefix, as s3://BUCKET/PREFIX or
    gs://BUCKET/PREFIX. Never changes."""
    secret_name: Name | None = None
    """Secret of the job's namespace with the credentials for the bucket. Read are its keys
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_DEFAULT_REGION,
    AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_S3 and GOOGLE_SERVICE_ACCOUNT_KEY, and no other. Absent: what
    the pods' ServiceAccount, their node or the chart's trainerPod.env gives. Changes only while
    suspended."""
    path: RelativePath = ""
    """Folder inside the claim, relative, or prefix below the bucket's. Default: one of this job
    alone; name one to continue another job's checkpoints. Never changes."""
    every_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 50
    """Steps between two checkpoints. Default: 50."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    """How many of the newest verified checkpoints stay. Default: 3."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.claimName) != has(self.bucket)",
            message="exactly one of claimName and bucket is required: checkpoints lie on a claim or"
            " in a bucket",
        ),
        Rule(
            rule="!has(self.secretName) || has(self.bucket)",
            message="secretName holds the credentials for bucket; name a bucket or remove it",
            field_path=".secretName",
        ),
        Rule(
            rule=f"!has(self.secretName) || !self.secretName.endsWith('{TOKEN_SECRET_SUFFIX}')",
            message=f"secretName: Secrets named ...{TOKEN_SECRET_SUFFIX} hold the tokens of jobs;"
            " name another one",
            field_path=".secretName",
        ),
        Rule(
            rule=f"!has(self.bucket) || self.path.matches('{_KEY_PATTERN}')",
            message="path: a key of a bucket is made of letters, digits and !_.*()=- between single"
            " slashes, and no part of it is a dot; write runs/a",
            field_path=".path",
        ),
        relative_path("path"),
        never("claimName", instead="create a new job and copy the checkpoints"),
        never("bucket", instead="create a new job and copy the checkpoints"),
        never("path", instead="create a new job with this path"),
    )


class RecoverySpec(ApiModel):
    """How often a job may recover before it fails, by what went wrong."""

    max_restarts: Annotated[int, Field(ge=0, le=10_000)] = 3
    """Recoveries within the window from errors of the training code itself, in place or with new
    pods. Default: 3."""
    max_out_of_memory_restarts: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Recoveries within the window after a rank ran out of memory. Default: 1."""
    max_hang_restarts: Annotated[int, Field(ge=0, le=10_000)] = 3
    """Recoveries within the window after a rank stood still. Default: 3."""
    max_infrastructure_restarts: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Recoveries within the window from lost pods, nodes and links; absent: no limit. Disruptions
    that were announced are never counted."""
    max_failed_starts: Annotated[int, Field(ge=1, le=10_000)] = 5
    """Starts in a row that may fail, because kubelets do not start all pods, before the job fails.
    A start holds its GPUs for at most startDeadlineSeconds, and for some 30 seconds where a kubelet
    names an error that waiting does not repair. Default: 5."""
    budget_window_seconds: Annotated[int, Field(ge=60, le=31_536_000)] = 86_400
    """The sliding window of all these limits. Default: 86400, a day."""
    hang_timeout_seconds: Annotated[int, Field(ge=10, le=86_400)] = 600
    """When all ranks stand still together and none is to blame, all restart after so many seconds;
    a single one that holds the others up is found within seconds. Default: 600."""
    lost_after_seconds: Annotated[int, Field(ge=2, le=3600)] = 5
    """A member that neither its peers nor the operator have heard for so long is replaced. Default:
    5."""
    hold_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    """With template.launch PerGpu or PerPod: where the program has failed and cannot be started
    again in its pods, these stay for so long before they end, to be looked into with drumline
    shell, and hold their GPUs. Counts for generations that begin after it is set. Absent: they end
    at once."""


class GroupSpec(ApiModel):
    """Jobs of one namespace that start together or not at all, such as actors and a learner.

    Only the first start is shared: a job that loses its nodes later is placed again alone.
    """

    name: Name
    """What the jobs of the group have in common; not used again while one of them exists."""
    jobs: Annotated[int, Field(ge=2, le=256)]
    """How many jobs the group has: none starts before all of them wait and fit."""


class TrainingJobSpec(ApiModel):
    """What is to be trained, with which GPUs, where and for whom."""

    queue: Name
    """TrainingQueue whose quota the job uses. Changes only while suspended."""
    priority_class_name: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=253,
                pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
                json_schema_extra=validated_by(NOT_A_SYSTEM_CLASS),
            ),
        ]
        | None
    ) = None
    """PriorityClass that orders the job in its queue; its pods carry Drumline's own class. Those of
    the cluster's own pods (system-...) are refused. While the job holds its GPUs a lower class
    counts at once, a higher one when it is queued again. Absent: the cluster's default class, else
    0."""
    nodes: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Pods of the gang, one on each node or share of a node. Default: 1. Changes only while
    suspended."""
    min_nodes: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Makes the gang elastic: it starts and goes on with as few pods as this when there is no room
    for nodes, and grows back to them; the global batch stays the same. Sizes that do not divide
    trainer.globalBatchSize, or that cut a slice of topology, are left out. Needs trainer and
    checkpoint, or a template with launch, whose program starts again with other numbers of ranks.
    Absent: always nodes. Changes only while suspended."""
    gpus_per_node: Annotated[int, Field(ge=1, le=64)] = 1
    """GPUs of each pod; one rank runs on each. Default: 1. Changes only while suspended."""
    gpu_partition: LabelKey | None = None
    """Resource of a part of a GPU that gpuPool offers (GpuPool spec.partitions), such as
    nvidia.com/mig-1g.10gb: a pod gets one of these instead of a whole GPU. Absent: whole GPUs.
    Changes only while suspended."""
    gpu_pool: Name | None = None
    """GpuPool the gang must run in; absent: any pool the queue has quota in. Changes only while
    suspended."""
    gpu_pools: Annotated[list[Name] | None, Field(min_length=1, max_length=16)] = None
    """GpuPools the gang may run in, in order of preference: it starts in the first that has room.
    Instead of gpuPool. Changes only while suspended."""
    spot: SpotChoice | None = None
    """Whether it uses pools with capacity.type Spot, within what its queue allows: Prefer, Avoid
    (before or after all others, where it names no pools), Only or Never. Surplus: its smallest size
    (minNodes) runs in a pool of another type, and what it has above that in a spot pool with the
    same GPUs; needs minNodes, and neither gpuPool nor topology.required. Absent: as its queue says.
    Counts when it starts or grows."""
    max_price_per_gpu_hour: Price | None = None
    """The most that a GPU may cost it for an hour, such as '1.20'; its queue's limit counts, too.
    Absent: that alone. Counts when it starts or grows."""
    topology: TopologyRequest | None = None
    """Where in the network the gang must or should sit, and which pods belong together. Changes
    only while suspended."""
    compute_domain: ComputeDomainSpec | None = None
    """{}: a ComputeDomain of NVIDIA's DRA driver for the job, and one of its channels for each pod
    with GPUs, so that NVLink reaches from node to node (GB200, GB300). Needs the chart's
    dynamicResources.enabled. Absent: NVLink ends at the node. Changes only while suspended."""
    group: GroupSpec | None = None
    """Other jobs with which this one starts together or not at all. Changes only while
    suspended."""
    after: Annotated[
        list[AfterSpec] | None,
        Field(min_length=1, max_length=16, json_schema_extra=keyed_by("job")),
    ] = None
    """Jobs that have to end before this one asks for GPUs. Until then it holds nothing, and its
    place in the queue counts from the end of the last of them. Changes only while suspended."""
    sweep: SweepSpec | None = None
    """Jobs of which only so many run at a time, this one among them."""
    user: (
        Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[^\x00-\x20\x7f]+$")] | None
    ) = None
    """Who the job is for, where its queue limits what each user may hold (userLimitGpus). Believed
    as written: Kubernetes does not keep who created an object, so the chart's userPolicy can have
    the API server insist on it. Absent: all such jobs share one limit. Changes only while
    suspended."""
    resources: ResourceList | None = None
    """What each pod requests and is limited to besides its GPUs, for instance {cpu: 8, memory:
    64Gi, rdma/hca: 1}. CPU or memory that is left out: 100m, 128Mi a GPU are requested, without a
    limit. Changes only while suspended."""
    node_selector: Annotated[dict[LabelKey, LabelValue] | None, Field(max_length=32)] = None
    """Labels the nodes must have, besides those of the pool. Changes only while suspended."""
    node_affinity: NodeAffinity | None = None
    """Conditions on labels of the nodes besides nodeSelector, such as a node to keep away from.
    Changes only while suspended."""
    tolerations: Annotated[list[Toleration] | None, Field(max_length=32)] = None
    """Taints the pods accept; that of GPU nodes is accepted already. Changes only while
    suspended."""
    trainer: TrainerSpec | None = None
    """The bundled trainer; {} trains the tiny model. Exactly one of trainer and template. Changes
    only while suspended, its model never."""
    template: PodTemplate | None = None
    """Any image and command, gang-scheduled the same way. Exactly one of trainer and
    template. Changes only while suspended."""
    roles: Annotated[
        list[RoleSpec] | None,
        Field(min_length=1, max_length=MAX_ROLES, json_schema_extra=keyed_by("name")),
    ] = None
    """Pods beside the ranks of template, such as a launcher, parameter servers or an evaluator:
    placed and started with them as one gang, and restarted with them. Changes only while
    suspended."""
    checkpoint: CheckpointSpec | None = None
    """Where the bundled trainer keeps durable checkpoints; absent: a restart begins at step 0.
    Changes only while suspended, its place never."""
    recovery: RecoverySpec = RecoverySpec()
    """When a job is restarted and when it fails."""
    suspend: bool = False
    """Releases all GPUs while true; the job resumes from its newest checkpoint. Default: false."""
    when_idle: Literal["Keep"] | None = None
    """Keep: the job is never suspended for idle GPUs, whatever its queue says of that; it is warned
    of and notified about as ever. Absent: as the queue says (idle)."""
    start_deadline_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600
    """Seconds from admission until all pods run, not counting image pulls; then the gang gives its
    GPUs back and queues again. Default: 600."""
    active_deadline_seconds: Annotated[int, Field(ge=1, le=31_536_000)] | None = None
    """Seconds the job may run before it fails, since its last start: suspension and waiting do
    not count, and after them it starts again from zero, as in a batch/v1 Job. Also when the
    scheduler expects its GPUs to be free again: while the job holds them it may only become
    shorter. Absent: no limit."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    """Seconds after its end until the job is deleted; absent: it stays."""
    managed_by: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=253,
                pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
            ),
        ]
        | None
    ) = None
    """Another controller that runs this job, as domain/name; Drumline then leaves it alone. Never
    changes."""

    rules: ClassVar[tuple[Rule, ...]] = (*RULES_OF_THE_SPEC, *SPEC_RULES)


class TrainingJob(ApiModel):
    """A gang of identical pods that trains one model: all of them run, or none."""

    KIND: ClassVar[str] = "TrainingJob"

    spec: TrainingJobSpec
    """What is wanted."""
    status: Annotated[TrainingJobStatus | None, Field(json_schema_extra=WRITTEN_AS_ONE)] = None
    """What is; written by the operator."""

    rules: ClassVar[tuple[Rule, ...]] = (JOB_NAME, *JOB_RULES)
