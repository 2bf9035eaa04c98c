"""Facts of a small cluster that is well, for tests to change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from drumline_api.gpupool import GpuPoolSpec
from drumline_api.load import parse
from drumline_api.trainingqueue import TrainingQueueSpec
from drumline_cli.doctor.checks.installation import GROUPS
from drumline_cli.doctor.facts import (
    ClaimFact,
    ClassFact,
    ClusterFacts,
    LeaseFact,
    NamespaceFact,
    NetworkProbe,
    NodeClock,
    NodeFact,
    NodeProbe,
    OperatorFact,
    PoolFact,
    PriorityFact,
    Probes,
    QueueFact,
    SchemaFact,
    ServerVersion,
)

H100 = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "H100"}
FIELDS = frozenset({"spec", "spec.nodes"})


def a_node(name: str = "gpu-0", *, labels: dict[str, str] | None = None, gpus: int = 8) -> NodeFact:
    offered = {"nvidia.com/gpu": gpus} if gpus else {}
    return NodeFact(
        name=name, labels=H100 if labels is None else labels, allocatable=offered, capacity=offered
    )


def a_pool(name: str = "h100", **spec: Any) -> PoolFact:
    raw = {"nodeSelector": {"nvidia.com/gpu.present": "true"}, **spec}
    return PoolFact(name=name, spec=parse(GpuPoolSpec, raw))


def a_queue(name: str = "research", **spec: Any) -> QueueFact:
    raw = {
        "quotas": [{"gpuPool": "h100", "nominalGpus": 8}],
        "namespaces": ["team"],
        **spec,
    }
    return QueueFact(name=name, spec=parse(TrainingQueueSpec, raw))


def an_operator() -> OperatorFact:
    return OperatorFact(
        namespace="drumline-system",
        ready_replicas=2,
        replicas=2,
        priority_class="drumline-training-pods",
        trainer_image="registry.example.com/drumline/trainer:1",
        training_user=65532,
        lease=LeaseFact(holder="drumline-0", renewed_ago_seconds=3, duration_seconds=15),
    )


def a_cluster(**changes: Any) -> ClusterFacts:
    well = ClusterFacts(
        server=ServerVersion(major=1, minor=36, text="v1.36.3"),
        groups=frozenset(GROUPS),
        schemas=(SchemaFact(kind="TrainingJob", fields=FIELDS),),
        operator=an_operator(),
        nodes=(a_node(),),
        clocks=(NodeClock(node="gpu-0", ahead_seconds=0.2),),
        slices=(),
        device_pods=(),
        pools=(a_pool(),),
        queues=(a_queue(),),
        jobs=(),
        namespaces=(NamespaceFact(name="team", labels={}),),
        claims=(
            ClaimFact(
                namespace="team",
                name="shared",
                phase="Bound",
                access_modes=frozenset({"ReadWriteMany"}),
            ),
        ),
        storage_classes=(ClassFact(name="nfs", provisioner="nfs.csi.k8s.io"),),
        priorities=(PriorityFact(name="drumline-training-pods", value=10**9, preempts=False),),
        prometheuses=(),
        monitors=(),
        probes=Probes(
            image="trainer:1",
            nodes=(NodeProbe(pool="h100", node="gpu-0", problem=""),),
            network=NetworkProbe(reached_open=True, reached_closed=False, path="gpu-0 to gpu-0"),
        ),
        expected_fields={"TrainingJob": FIELDS},
    )
    return replace(well, **changes)
