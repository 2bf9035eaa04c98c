"""Kinds of objects that Drumline reads or writes, and their paths below the API server's root.

A `Resource` is a name, not a schema. `views` define the fields that are read, and the packages that
write an object define the written ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

DRUMLINE_GROUP: Final = "drumline.dev"
DRUMLINE_VERSION: Final = "v1alpha1"

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One kind of object, as the API server names it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """The `apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(
        self,
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
    ) -> str:
        """Return the path of a collection, an object, or a subresource.

        Args:
            namespace: namespace of the object. None: the collection in all namespaces.
            name: name of the object. None: the collection.
            subresource: for example `status`.

        Raises:
            ValueError: a namespace for a cluster-scoped kind, a namespaced object without a
                namespace, or a name that would leave its segment of the path.
        """
        if namespace is not None and not self.namespaced:
            raise ValueError(f"{self.plural} are cluster-scoped, but got namespace {namespace!r}")
        if name is not None and namespace is None and self.namespaced:
            raise ValueError(f"{self.plural} are namespaced, but {name!r} came without a namespace")
        # The core group has no name and lives below /api, every other group below /apis.
        segments = [f"/apis/{self.group}" if self.group else "/api", self.version]
        if namespace is not None:
            segments += ["namespaces", _segment(namespace)]
        segments.append(self.plural)
        if name is not None:
            segments.append(_segment(name))
        if subresource is not None:
            segments.append(subresource)
        return "/".join(segments)


def is_label(text: str) -> bool:
    """Return whether a text is a label of RFC 1123, as the names of namespaces are."""
    return len(text) <= 63 and _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Return whether a text is a subdomain of RFC 1123, as the names of most objects are."""
    return len(text) <= 253 and all(map(_LABEL.fullmatch, text.split(".")))


def _segment(text: str) -> str:
    # `..` would leave the namespace.
    if not text or text in {".", ".."}:
        raise ValueError(f"{text!r} is not a valid object name")
    return quote(text, safe="")


def _core(plural: str, kind: str, *, namespaced: bool = True) -> Resource:
    return Resource(group="", version="v1", plural=plural, kind=kind, namespaced=namespaced)


def _grouped(group: str, plural: str, kind: str, *, namespaced: bool = True) -> Resource:
    return Resource(group=group, version="v1", plural=plural, kind=kind, namespaced=namespaced)


def _drumline(plural: str, kind: str, *, namespaced: bool) -> Resource:
    return Resource(
        group=DRUMLINE_GROUP,
        version=DRUMLINE_VERSION,
        plural=plural,
        kind=kind,
        namespaced=namespaced,
    )


PODS: Final = _core("pods", "Pod")
POD_TEMPLATES: Final = _core("podtemplates", "PodTemplate")
NODES: Final = _core("nodes", "Node", namespaced=False)
NAMESPACES: Final = _core("namespaces", "Namespace", namespaced=False)
SECRETS: Final = _core("secrets", "Secret")
CONFIG_MAPS: Final = _core("configmaps", "ConfigMap")
PRIORITY_CLASSES: Final = _grouped(
    "scheduling.k8s.io", "priorityclasses", "PriorityClass", namespaced=False
)
LIMIT_RANGES: Final = _core("limitranges", "LimitRange")
RESOURCE_QUOTAS: Final = _core("resourcequotas", "ResourceQuota")
PERSISTENT_VOLUME_CLAIMS: Final = _core("persistentvolumeclaims", "PersistentVolumeClaim")
PERSISTENT_VOLUMES: Final = _core("persistentvolumes", "PersistentVolume", namespaced=False)
STORAGE_CLASSES: Final = _grouped(
    "storage.k8s.io", "storageclasses", "StorageClass", namespaced=False
)
CSI_NODES: Final = _grouped("storage.k8s.io", "csinodes", "CSINode", namespaced=False)
CSI_DRIVERS: Final = _grouped("storage.k8s.io", "csidrivers", "CSIDriver", namespaced=False)
RUNTIME_CLASSES: Final = _grouped("node.k8s.io", "runtimeclasses", "RuntimeClass", namespaced=False)
NODE_CLAIMS: Final = Resource(
    group="karpenter.sh", version="v1", plural="nodeclaims", kind="NodeClaim", namespaced=False
)
NODE_POOLS: Final = Resource(
    group="karpenter.sh", version="v1", plural="nodepools", kind="NodePool", namespaced=False
)
EVENTS: Final = _grouped("events.k8s.io", "events", "Event")
POD_DISRUPTION_BUDGETS: Final = _grouped("policy", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICIES: Final = _grouped("networking.k8s.io", "networkpolicies", "NetworkPolicy")
SELF_SUBJECT_REVIEWS: Final = Resource(
    group="authentication.k8s.io",
    version="v1",
    plural="selfsubjectreviews",
    kind="SelfSubjectReview",
    namespaced=False,
)
LEASES: Final = _grouped("coordination.k8s.io", "leases", "Lease")

# resource.k8s.io/v1 is served since Kubernetes 1.34.
RESOURCE_SLICES: Final = _grouped(
    "resource.k8s.io", "resourceslices", "ResourceSlice", namespaced=False
)
RESOURCE_CLAIMS: Final = _grouped("resource.k8s.io", "resourceclaims", "ResourceClaim")
DEVICE_TAINT_RULES: Final = tuple(
    Resource(
        group="resource.k8s.io",
        version=version,
        plural="devicetaintrules",
        kind="DeviceTaintRule",
        namespaced=False,
    )
    for version in ("v1", "v1beta2")
)
"""In versions with the same fields: Kubernetes 1.37 serves the first, 1.36 the other if told to."""
COMPUTE_DOMAINS: Final = Resource(
    group="resource.nvidia.com",
    version="v1beta1",
    plural="computedomains",
    kind="ComputeDomain",
    namespaced=True,
)
JOBS: Final = _grouped("batch", "jobs", "Job")
JOB_SETS: Final = Resource(
    group="jobset.x-k8s.io", version="v1alpha2", plural="jobsets", kind="JobSet", namespaced=True
)

RAY_CLUSTERS: Final = _grouped("ray.io", "rayclusters", "RayCluster")
RAY_JOBS: Final = _grouped("ray.io", "rayjobs", "RayJob")
PYTORCH_JOBS: Final = _grouped("kubeflow.org", "pytorchjobs", "PyTorchJob")
MPI_JOBS: Final = Resource(
    group="kubeflow.org", version="v2beta1", plural="mpijobs", kind="MPIJob", namespaced=True
)

TRAINING_JOBS: Final = _drumline("trainingjobs", "TrainingJob", namespaced=True)
TRAINING_QUEUES: Final = _drumline("trainingqueues", "TrainingQueue", namespaced=False)
GPU_POOLS: Final = _drumline("gpupools", "GpuPool", namespaced=False)

PROVISIONING_REQUESTS: Final = Resource(
    group="autoscaling.x-k8s.io",
    version="v1",
    plural="provisioningrequests",
    kind="ProvisioningRequest",
    namespaced=True,
)
CAPACITY_BUFFERS: Final = Resource(
    group="autoscaling.x-k8s.io",
    version="v1beta1",
    plural="capacitybuffers",
    kind="CapacityBuffer",
    namespaced=True,
)
