"""Room for a whole gang in the ResourceQuotas of its namespace. Pure.

A start creates pods, claims for each pod (ephemeral volumes, devices), and a token Secret. A
ResourceQuota counts each of them under several names, and its scopes select the pods that it
counts. A quota with scopes counts pods alone, or volume claims by their VolumeAttributesClass.

Example: 4 pods with an ephemeral volume of 10 GiB each, in the class `fast`. They count as 4 under
`pods`, `count/pods`, `persistentvolumeclaims` and `count/persistentvolumeclaims`, and as 40 GiB
under `requests.storage` and `fast.storageclass.storage.k8s.io/requests.storage`.
https://kubernetes.io/docs/concepts/policy/resource-quotas
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

_QUALITY: Final = ("cpu", "memory")
"""Resources whose absence makes a pod BestEffort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaScope:
    """A condition on the pods that a ResourceQuota counts."""

    name: str
    operator: str = "Exists"
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFacts:
    """A ResourceQuota of the job's namespace; CPU in thousandths."""

    name: str
    hard: Mapping[str, int]
    used: Mapping[str, int]
    scopes: tuple[QuotaScope, ...] = ()
    """Conditions that a pod must meet, all of them, to be counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPods:
    """Equal pods that a start creates, or that end before."""

    count: int
    requests: Mapping[str, int] = field(default_factory=dict[str, int])
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    priority_class: str = ""
    has_deadline: bool = False
    """True with `activeDeadlineSeconds`, which is the scope Terminating."""
    claims: Mapping[str, int] = field(default_factory=dict[str, int])
    """Amounts of the claims that are made for each pod, by names of a quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedObjects:
    """Everything that a start creates, or that is deleted before."""

    pods: tuple[PlannedPods, ...] = ()
    objects: Mapping[str, int] = field(default_factory=dict[str, int])
    """Amounts of all other objects, by names of a quota."""

    def joined(self, other: PlannedObjects) -> PlannedObjects:
        """Return what both create."""
        objects = Counter(self.objects)
        objects.update(other.objects)
        return PlannedObjects(pods=(*self.pods, *other.pods), objects=objects)

    def amounts(self, scopes: Iterable[QuotaScope] = ()) -> dict[str, int]:
        """Return the amounts that a quota with these scopes counts, by its names."""
        total, conditions = Counter[str](), tuple(scopes)
        for pods in self.pods:
            if all(_matches(scope, pods) for scope in conditions):
                total.update(_of_pods(pods))
            if all(map(_counts_claims, conditions)):
                total.update({name: pods.count * each for name, each in pods.claims.items()})
        if not conditions:
            total.update(self.objects)
        return dict(total)


NOTHING_PLANNED: Final = PlannedObjects()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaShortage:
    """A name of a ResourceQuota under which a start needs more than is left."""

    quota: str
    name: str
    needed: int
    used: int
    hard: int

    def message(self) -> str:
        """Return the sentence for users."""
        needed, used, hard = (_text(self.name, n) for n in (self.needed, self.used, self.hard))
        return (
            f"ResourceQuota {self.quota} has no room for the whole gang:"
            f" {self.name} needs {needed}, used {used} of {hard}"
        )


def shortage(
    quotas: Iterable[QuotaFacts], *, requested: PlannedObjects, freed: PlannedObjects
) -> QuotaShortage | None:
    """Return the first shortage of a start, or None if it has room.

    Args:
        quotas: the quotas of its namespace.
        requested: what the start creates.
        freed: what is deleted before.
    """
    for quota in quotas:
        needs, gives = requested.amounts(quota.scopes), freed.amounts(quota.scopes)
        for name, hard in sorted(quota.hard.items()):
            needed, used = needs.get(name, 0), quota.used.get(name, 0) - gives.get(name, 0)
            if needed and used + needed > hard:
                return QuotaShortage(
                    quota=quota.name, name=name, needed=needed, used=used, hard=hard
                )
    return None


def volume_claim_amounts(*, storage_class: str, storage_bytes: int) -> dict[str, int]:
    """Return the amounts of one PersistentVolumeClaim.

    Args:
        storage_class: its class, or '' if it has none.
        storage_bytes: its request.
    """
    amounts = {**object_amounts("persistentvolumeclaims"), "requests.storage": storage_bytes}
    if storage_class:
        of_class = f"{storage_class}.storageclass.storage.k8s.io"
        amounts[f"{of_class}/persistentvolumeclaims"] = 1
        amounts[f"{of_class}/requests.storage"] = storage_bytes
    return amounts


def device_claim_amounts(*, device_class: str, devices: int) -> dict[str, int]:
    """Return the amounts of one ResourceClaim of devices of a class."""
    return {
        "count/resourceclaims.resource.k8s.io": 1,
        f"{device_class}.deviceclass.resource.k8s.io/devices": devices,
        # A class with an extended resource counts under this name too, from Kubernetes 1.36 on.
        f"requests.deviceclass.resource.kubernetes.io/{device_class}": devices,
    }


def object_amounts(plural: str, count: int = 1) -> dict[str, int]:
    """Return the amounts of objects of a core kind that has a quota of its own."""
    return {plural: count, f"count/{plural}": count}


def _of_pods(pods: PlannedPods) -> Counter[str]:
    total = Counter(object_amounts("pods", pods.count))
    for resource, each in pods.requests.items():
        total[f"requests.{resource}"] += pods.count * each
        if "/" not in resource:  # devices are counted with their prefix only
            total[resource] += pods.count * each
    for resource, each in pods.limits.items():
        total[f"limits.{resource}"] += pods.count * each
    return total


def _counts_claims(scope: QuotaScope) -> bool:
    """Return whether a quota with this scope counts the claims, which have no attributes class."""
    # The API server allows only names of volume claims in such a quota.
    return scope.name == "VolumeAttributesClass" and scope.operator in {"NotIn", "DoesNotExist"}


def _matches(scope: QuotaScope, pods: PlannedPods) -> bool:
    # An unknown scope excludes the pods: the check must not refuse a start by mistake. So does
    # CrossNamespacePodAffinity, because no pod of a job has such an affinity.
    is_best_effort = not any(pods.requests.get(n) or pods.limits.get(n) for n in _QUALITY)
    simple = {
        "NotTerminating": not pods.has_deadline,
        "Terminating": pods.has_deadline,
        "NotBestEffort": not is_best_effort,
        "BestEffort": is_best_effort,
    }
    if scope.name != "PriorityClass":
        return simple.get(scope.name, False)
    answers = {
        "In": pods.priority_class in scope.values,
        "NotIn": pods.priority_class not in scope.values,
        "Exists": bool(pods.priority_class),
        "DoesNotExist": not pods.priority_class,
    }
    return answers.get(scope.operator, False)


def _text(resource: str, amount: int) -> str:
    return f"{amount / 1000:g}" if resource.rpartition(".")[2] == "cpu" else str(amount)
