"""Write one gang as the objects of each peer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from drumline.kube.kinds import JOBS, PODS, TRAINING_JOBS, Resource
from tools.bench.load import NAMESPACE
from tools.bench.shapes import HIGH, LOW

Json = dict[str, Any]
Made = list[tuple[Resource, Json]]

GPU: Final = "nvidia.com/gpu"
RACK_LABEL: Final = "drumline.dev/rack"
PRIORITIES: Final = {LOW: -1000, HIGH: 1000}
KUEUE_QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
KUEUE_PRIORITY_LABEL: Final = "kueue.x-k8s.io/priority-class"


def _kind(group: str, version: str, plural: str, kind: str, *, namespaced: bool = True) -> Resource:
    return Resource(group=group, version=version, plural=plural, kind=kind, namespaced=namespaced)


NATIVE_GROUPS: Final = _kind("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup")
VOLCANO_JOBS: Final = _kind("batch.volcano.sh", "v1alpha1", "jobs", "Job")
HYPER_NODES: Final = _kind(
    "topology.volcano.sh", "v1alpha1", "hypernodes", "HyperNode", namespaced=False
)
KAI_GROUPS: Final = _kind("scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup")
KAI_QUEUES: Final = _kind("scheduling.run.ai", "v2", "queues", "Queue", namespaced=False)
KAI_TOPOLOGIES: Final = _kind(
    "kai.scheduler", "v1alpha1", "topologies", "Topology", namespaced=False
)
WORKLOADS: Final = _kind("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
LOCAL_QUEUES: Final = _kind("kueue.x-k8s.io", "v1beta2", "localqueues", "LocalQueue")
CLUSTER_QUEUES: Final = _kind(
    "kueue.x-k8s.io", "v1beta2", "clusterqueues", "ClusterQueue", namespaced=False
)
FLAVORS: Final = _kind(
    "kueue.x-k8s.io", "v1beta2", "resourceflavors", "ResourceFlavor", namespaced=False
)
TOPOLOGIES: Final = _kind("kueue.x-k8s.io", "v1beta2", "topologies", "Topology", namespaced=False)
KUEUE_PRIORITIES: Final = _kind(
    "kueue.x-k8s.io",
    "v1beta2",
    "workloadpriorityclasses",
    "WorkloadPriorityClass",
    namespaced=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A job of the bench, as every peer understands it."""

    name: str
    pods: int
    gpus: int
    in_one_rack: bool
    priority: str
    """Name of a PriorityClass, or empty."""


def gang_of(job: Json) -> Gang:
    """Read a TrainingJob of the bench."""
    spec = job["spec"]
    return Gang(
        name=job["metadata"]["name"],
        pods=spec["nodes"],
        gpus=spec["gpusPerNode"],
        in_one_rack="required" in spec.get("topology", {}),
        priority=spec.get("priorityClassName", ""),
    )


def new(kind: Resource, name: str, **fields: Any) -> Json:
    """Return an object of a kind, in the bench's namespace if the kind has one."""
    metadata: Json = {"name": name}
    if kind.namespaced:
        metadata["namespace"] = NAMESPACE
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **fields}


def pod_spec(gang: Gang, **fields: Any) -> Json:
    """Return the spec of a pod that only asks for its GPUs."""
    amount = {GPU: str(gang.gpus)}
    container = {
        "name": "main",
        "image": "any:1",
        "command": ["sleep", "infinity"],
        "resources": {"limits": amount, "requests": amount},
    }
    spec = {"restartPolicy": "Never", "containers": [container], **fields}
    if gang.priority:
        spec["priorityClassName"] = gang.priority
    return spec


def drumline(job: Json) -> Made:
    """A TrainingJob."""
    return [(TRAINING_JOBS, job)]


def native(job: Json) -> Made:
    """A PodGroup and its pods, which a plain client creates; a single pod needs no group."""
    gang = gang_of(job)
    if gang.pods == 1:
        return [(PODS, new(PODS, gang.name, spec=pod_spec(gang)))]
    spec: Json = {"schedulingPolicy": {"gang": {"minCount": gang.pods}}}
    if gang.in_one_rack:
        spec["schedulingConstraints"] = {"topology": [{"key": RACK_LABEL}]}
    if gang.priority:
        spec["priorityClassName"] = gang.priority
    member = pod_spec(gang, schedulingGroup={"podGroupName": gang.name})
    pods = [(PODS, new(PODS, f"{gang.name}-{index}", spec=member)) for index in range(gang.pods)]
    return [(NATIVE_GROUPS, new(NATIVE_GROUPS, gang.name, spec=spec)), *pods]


def volcano(job: Json) -> Made:
    """A Volcano Job with one task."""
    gang = gang_of(job)
    task = {"name": "main", "replicas": gang.pods, "template": {"spec": pod_spec(gang)}}
    spec: Json = {
        "schedulerName": "volcano",
        "queue": "default",
        "minAvailable": gang.pods,
        "tasks": [task],
    }
    if gang.in_one_rack:
        spec["networkTopology"] = {"mode": "hard", "highestTierAllowed": 1}
    if gang.priority:
        spec["priorityClassName"] = gang.priority
    made = new(VOLCANO_JOBS, gang.name, spec=spec)
    if gang.priority:
        # Its preempt action evicts no other pods, whatever their priority.
        made["metadata"]["annotations"] = {"volcano.sh/preemptable": "true"}
    return [(VOLCANO_JOBS, made)]


def kai(job: Json) -> Made:
    """A PodGroup of KAI and its pods, which a plain client creates."""
    gang = gang_of(job)
    spec: Json = {"minMember": gang.pods, "queue": "bench"}
    if gang.in_one_rack:
        spec["topologyConstraint"] = {
            "topology": "bench",
            "requiredTopologyLevel": RACK_LABEL,
        }
    if gang.priority:
        spec["priorityClassName"] = gang.priority
    made: Made = [(KAI_GROUPS, new(KAI_GROUPS, gang.name, spec=spec))]
    member = pod_spec(gang, schedulerName="kai-scheduler")
    for index in range(gang.pods):
        pod = new(PODS, f"{gang.name}-{index}", spec=member)
        pod["metadata"]["annotations"] = {"pod-group-name": gang.name}
        pod["metadata"]["labels"] = {"kai.scheduler/queue": "bench"}
        made.append((PODS, pod))
    return made


def kueue(job: Json) -> Made:
    """A suspended batch Job in a LocalQueue; gangs in one rack go to the queue with racks.

    Its priority is Kueue's: with one of pods kube-scheduler would preempt by itself.
    """
    gang = gang_of(job)
    queue = "racks" if gang.in_one_rack else "bench"
    return [(JOBS, kueue_job(gang, queue=queue))]


def kueue_job(gang: Gang, *, queue: str) -> Json:
    """Return the batch Job of a gang in a LocalQueue."""
    template: Json = {"spec": pod_spec(gang)}
    template["spec"].pop("priorityClassName", None)
    if gang.in_one_rack:
        annotations = {"kueue.x-k8s.io/podset-required-topology": RACK_LABEL}
        template["metadata"] = {"annotations": annotations}
    spec = {
        "suspend": True,
        "parallelism": gang.pods,
        "completions": gang.pods,
        "completionMode": "Indexed",
        "template": template,
    }
    job = new(JOBS, gang.name, spec=spec)
    job["metadata"]["labels"] = {KUEUE_QUEUE_LABEL: queue}
    if gang.priority:
        job["metadata"]["labels"][KUEUE_PRIORITY_LABEL] = gang.priority
    return job


def kueue_priorities(values: dict[str, int]) -> Iterator[Json]:
    """Yield Kueue's priority classes, beside the PriorityClasses of the same names."""
    for name, value in values.items():
        yield new(KUEUE_PRIORITIES, name, value=value)


def kueue_queue(name: str, *, flavor: str, gpus: int, **spec: Any) -> Iterator[Json]:
    """Yield a ClusterQueue and its LocalQueue of the same name.

    Args:
        name: of both.
        flavor: nodes that it may use.
        gpus: nominal quota.
        spec: further fields; `borrowingLimit` is one of the quota.
    """
    quota: Json = {"name": GPU, "nominalQuota": gpus}
    if "borrowingLimit" in spec:
        quota["borrowingLimit"] = spec.pop("borrowingLimit")
    flavors = [{"name": flavor, "resources": [quota]}]
    whole = {
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": [GPU], "flavors": flavors}],
        "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"},
        **spec,
    }
    yield new(CLUSTER_QUEUES, name, spec=whole)
    yield new(LOCAL_QUEUES, name, spec={"clusterQueue": name})


def kueue_setting(*, gpus: int) -> list[Json]:
    """Return queues with all GPUs, one of them with racks."""
    levels = [{"nodeLabel": RACK_LABEL}, {"nodeLabel": "kubernetes.io/hostname"}]
    labels = {"type": "kwok"}
    return [
        new(TOPOLOGIES, "racks", spec={"levels": levels}),
        new(FLAVORS, "bench", spec={"nodeLabels": labels}),
        new(FLAVORS, "racks", spec={"nodeLabels": labels, "topologyName": "racks"}),
        *kueue_priorities(PRIORITIES),
        *kueue_queue("bench", flavor="bench", gpus=gpus),
        *kueue_queue("racks", flavor="racks", gpus=gpus),
    ]


def hyper_nodes(racks: Iterable[str]) -> list[Json]:
    """Return Volcano's racks."""
    return [
        new(
            HYPER_NODES,
            rack,
            spec={
                "tier": 1,
                "tierName": "rack",
                "members": [
                    {
                        "type": "Node",
                        "selector": {"labelMatch": {"matchLabels": {RACK_LABEL: rack}}},
                    }
                ],
            },
        )
        for rack in racks
    ]
