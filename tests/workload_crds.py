"""CRDs of workloads that wait by a switch of their own, transcribed as far as Drumline reads them.

From the Go types: KubeRay's ray-operator/apis/ray/v1 (RayClusterSpec, HeadGroupSpec,
WorkerGroupSpec, RayJobSpec), kubeflow/training-operator's pkg/apis/kubeflow.org/v1
(PyTorchJobSpec, RunPolicy, ReplicaSpec) and kubeflow/mpi-operator's pkg/apis/kubeflow/v2beta1.
Their controllers do not run in the tests. Pod templates, which the real CRDs spell out, are open.
"""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]

INTEGER: Final[Json] = {"type": "integer", "format": "int32"}
BOOLEAN: Final[Json] = {"type": "boolean"}
TEXTS: Final[Json] = {"type": "object", "additionalProperties": {"type": "string"}}
OPEN: Final[Json] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _object(required: list[str] | None = None, **properties: Json) -> Json:
    return {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
    }


_HEAD: Final = _object(
    ["template"], rayStartParams=TEXTS, serviceType={"type": "string"}, template=OPEN
)
_WORKERS: Final = _object(
    ["groupName", "maxReplicas", "minReplicas", "template"],
    groupName={"type": "string"},
    replicas={**INTEGER, "default": 0},
    minReplicas={**INTEGER, "default": 0},
    maxReplicas={**INTEGER, "default": 2_147_483_647},
    numOfHosts={**INTEGER, "default": 1},
    suspend=BOOLEAN,
    rayStartParams=TEXTS,
    template=OPEN,
)
_RAY: Final = _object(
    ["headGroupSpec"],
    headGroupSpec=_HEAD,
    workerGroupSpecs={"type": "array", "items": _WORKERS},
    rayVersion={"type": "string"},
    enableInTreeAutoscaling=BOOLEAN,
    suspend=BOOLEAN,
)
_RAY_JOB: Final = _object(
    rayClusterSpec=_RAY,
    entrypoint={"type": "string"},
    activeDeadlineSeconds=INTEGER,
    suspend=BOOLEAN,
)
_REPLICAS: Final[Json] = {
    "type": "object",
    "additionalProperties": _object(
        replicas=INTEGER, restartPolicy={"type": "string"}, template=OPEN
    ),
}
_RUN_POLICY: Final = _object(
    suspend=BOOLEAN, activeDeadlineSeconds=INTEGER, cleanPodPolicy={"type": "string"}
)
_PYTORCH: Final = _object(
    ["pytorchReplicaSpecs"], runPolicy=_RUN_POLICY, pytorchReplicaSpecs=_REPLICAS
)
_MPI: Final = _object(
    ["mpiReplicaSpecs"], runPolicy=_RUN_POLICY, mpiReplicaSpecs=_REPLICAS, slotsPerWorker=INTEGER
)
_KINDS: Final[dict[str, tuple[str, str, Json]]] = {
    "RayCluster": ("ray.io", "v1", _RAY),
    "RayJob": ("ray.io", "v1", _RAY_JOB),
    "PyTorchJob": ("kubeflow.org", "v1", _PYTORCH),
    "MPIJob": ("kubeflow.org", "v2beta1", _MPI),
}


def crd(kind: str) -> Json:
    """The CustomResourceDefinition of a kind."""
    group, version, spec = _KINDS[kind]
    plural = f"{kind.lower()}s"
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": _object(spec=spec, status=OPEN)},
    }
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [served]},
    }


def suspended(kind: str, *, pod: Json, metadata: Json) -> Json:
    """A suspended object of a kind: two pods, and one like them without their limits."""
    group, version, _ = _KINDS[kind]
    container = {**pod["spec"]["containers"][0], "resources": {}}
    first = {**pod, "spec": {**pod["spec"], "containers": [container]}}
    group_of_two = {"groupName": "workers", "replicas": 2, "minReplicas": 0, "maxReplicas": 4}
    ray = {
        "headGroupSpec": {"rayStartParams": {}, "template": first},
        "workerGroupSpecs": [{**group_of_two, "rayStartParams": {}, "template": pod}],
    }
    names = ("Launcher", "Worker") if kind == "MPIJob" else ("Master", "Worker")
    replicas = {
        names[0]: {"replicas": 1, "template": first},
        names[1]: {"replicas": 2, "template": pod},
    }
    specs: dict[str, Json] = {
        "RayCluster": {"suspend": True, **ray},
        "RayJob": {"suspend": True, "entrypoint": "python train.py", "rayClusterSpec": ray},
        "PyTorchJob": {"runPolicy": {"suspend": True}, "pytorchReplicaSpecs": replicas},
        "MPIJob": {"runPolicy": {"suspend": True}, "mpiReplicaSpecs": replicas},
    }
    body = {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": metadata}
    return {**body, "spec": specs[kind]}
