"""Everything that a start creates counts in the ResourceQuotas of its namespace."""

from __future__ import annotations

import pytest

from drumline.lifecycle.plan.quota_headroom import (
    NOTHING_PLANNED,
    PlannedObjects,
    PlannedPods,
    QuotaFacts,
    QuotaScope,
    device_claim_amounts,
    object_amounts,
    shortage,
    volume_claim_amounts,
)
from tests.texts import missing

PODS = PlannedPods(count=3, requests={"cpu": 2000, "memory": 5}, priority_class="training")
SCRATCH = volume_claim_amounts(storage_class="fast", storage_bytes=10)
WITH_SCRATCH = PlannedObjects(pods=(PlannedPods(count=4, claims=SCRATCH),))
OF_FAST = "fast.storageclass.storage.k8s.io"


def test_a_quota_counts_the_whole_gang_under_each_of_its_names() -> None:
    ranks = PlannedPods(count=3, requests={"cpu": 2000, "nvidia.com/gpu": 8}, limits={"cpu": 4000})
    launcher = PlannedPods(count=1, requests={"cpu": 500, "hugepages-2Mi": 7})
    assert PlannedObjects(pods=(ranks, launcher)).amounts() == {
        "pods": 4,
        "count/pods": 4,
        "cpu": 6500,
        "requests.cpu": 6500,
        "requests.nvidia.com/gpu": 24,
        "limits.cpu": 12_000,
        "hugepages-2Mi": 7,
        "requests.hugepages-2Mi": 7,
    }


def test_each_pod_brings_its_claims() -> None:
    devices = device_claim_amounts(device_class="gpu.nvidia.com", devices=8)
    pods = PlannedPods(count=2, claims=devices)
    assert (WITH_SCRATCH.amounts() | PlannedObjects(pods=(pods,)).amounts()).items() >= {
        "persistentvolumeclaims": 4,
        "count/persistentvolumeclaims": 4,
        "requests.storage": 40,
        f"{OF_FAST}/persistentvolumeclaims": 4,
        f"{OF_FAST}/requests.storage": 40,
        "count/resourceclaims.resource.k8s.io": 2,
        "gpu.nvidia.com.deviceclass.resource.k8s.io/devices": 16,
        "requests.deviceclass.resource.kubernetes.io/gpu.nvidia.com": 16,
    }.items()
    assert "storageclass" not in "".join(volume_claim_amounts(storage_class="", storage_bytes=1))


@pytest.mark.parametrize(
    "name",
    [
        "pods",
        "count/pods",
        "persistentvolumeclaims",
        "count/persistentvolumeclaims",
        f"{OF_FAST}/persistentvolumeclaims",
    ],
)
@pytest.mark.parametrize(("hard", "used", "short"), [(4, 0, False), (3, 0, True), (7, 4, True)])
def test_a_quota_must_have_room_for_all_of_it(name: str, hard: int, used: int, short: bool) -> None:
    quota = QuotaFacts(name="few", hard={name: hard}, used={name: used})
    short_of = shortage([quota], requested=WITH_SCRATCH, freed=NOTHING_PLANNED)
    assert (short_of is not None) == short
    if short_of is not None:
        assert not missing(short_of.message(), "few", name, "needs 4", f"{used} of {hard}")


def test_the_storage_of_all_claims_counts_and_that_of_leaving_pods_is_free() -> None:
    for name in ("requests.storage", f"{OF_FAST}/requests.storage"):
        full = QuotaFacts(name="few", hard={name: 40}, used={name: 10})
        assert shortage([full], requested=WITH_SCRATCH, freed=NOTHING_PLANNED) is not None
        leaving = PlannedObjects(pods=(PlannedPods(count=1, claims=SCRATCH),))
        assert shortage([full], requested=WITH_SCRATCH, freed=leaving) is None


@pytest.mark.parametrize("name", ["secrets", "count/secrets"])
def test_objects_beside_the_pods_count(name: str) -> None:
    quota = QuotaFacts(name="few", hard={name: 1}, used={})
    both = PlannedObjects(objects=object_amounts("secrets", 2))
    assert shortage([quota], requested=both, freed=NOTHING_PLANNED) is not None
    alone = PlannedObjects(objects=object_amounts("secrets", 1))
    assert shortage([quota], requested=alone, freed=NOTHING_PLANNED) is None


@pytest.mark.parametrize(
    ("scopes", "counts"),
    [
        ((), True),
        ((QuotaScope(name="PriorityClass", operator="In", values=("training",)),), True),
        ((QuotaScope(name="PriorityClass", operator="In", values=("other",)),), False),
        ((QuotaScope(name="PriorityClass", operator="NotIn", values=("training",)),), False),
        ((QuotaScope(name="PriorityClass", operator="NotIn", values=("other",)),), True),
        ((QuotaScope(name="PriorityClass"),), True),
        ((QuotaScope(name="PriorityClass", operator="DoesNotExist"),), False),
        ((QuotaScope(name="NotTerminating"),), True),
        ((QuotaScope(name="Terminating"),), False),
        ((QuotaScope(name="NotBestEffort"),), True),
        ((QuotaScope(name="BestEffort"),), False),
        ((QuotaScope(name="NotBestEffort"), QuotaScope(name="Terminating")), False),
        ((QuotaScope(name="CrossNamespacePodAffinity"),), False),
        ((QuotaScope(name="Invented"),), False),
    ],
)
def test_a_quota_counts_the_pods_of_its_scopes(
    scopes: tuple[QuotaScope, ...], counts: bool
) -> None:
    assert (PlannedObjects(pods=(PODS,)).amounts(scopes).get("pods", 0) == 3) == counts


def test_other_pods_have_the_other_scopes() -> None:
    devices_alone = PlannedPods(count=2, requests={"nvidia.com/gpu": 8}, has_deadline=True)
    planned = PlannedObjects(pods=(PODS, devices_alone), objects=object_amounts("secrets"))
    for name in ("BestEffort", "Terminating"):
        assert planned.amounts([QuotaScope(name=name)])["pods"] == 2
    assert planned.amounts([QuotaScope(name="NotBestEffort")])["pods"] == 3
    assert "secrets" not in planned.amounts([QuotaScope(name="NotBestEffort")])


def test_a_quota_with_scopes_counts_no_claims() -> None:
    amounts = WITH_SCRATCH.amounts([QuotaScope(name="NotTerminating")])
    assert (amounts["pods"], "persistentvolumeclaims" in amounts) == (4, False)


@pytest.mark.parametrize(
    ("operator", "counts"),
    [("DoesNotExist", True), ("NotIn", True), ("In", False), ("Exists", False)],
)
def test_a_quota_of_volume_attributes_counts_claims_without_a_class(
    operator: str, counts: bool
) -> None:
    scope = QuotaScope(name="VolumeAttributesClass", operator=operator, values=("gold",))
    amounts = WITH_SCRATCH.amounts([scope])
    assert (amounts.get("requests.storage"), "pods" in amounts) == (40 if counts else None, False)
    assert "requests.storage" not in WITH_SCRATCH.amounts([scope, QuotaScope(name="BestEffort")])
