"""Nobody is evicted for a job whose pods the API server would refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.operator.conftest import HIGH, HIGH_CLASS, Site
from tests.kube import Json, Kube, phase_is
from tests.texts import missing

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.extended(keep=1)]

TEMPLATE = {"image": "any:1", "command": ["true"], "terminationGracePeriodSeconds": 1}
CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "dta"}}
MOUNTED = {
    **TEMPLATE,
    "volumes": [CLAIM],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
}


@pytest.fixture(scope="module", autouse=True)
def high_class(api: Kube) -> None:
    api.ensure(HIGH_CLASS)


@pytest.fixture
def low(site: Site) -> Iterator[str]:
    """The namespace of a job of the same queue that holds all four nodes."""
    namespace = f"{site.namespace}-low"
    site.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    spec = {"queue": site.queue, "gpuPool": site.pool, "nodes": 4, "gpusPerNode": 8}
    site.kube.create(
        {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "low", "namespace": namespace},
            "spec": {**spec, "template": TEMPLATE},
        }
    )
    site.kube.wait("trainingjobs", "low", namespace, phase_is("Running"))
    yield namespace
    site.kube.delete("trainingjobs", "low", namespace)


def named(site: Site, kind: str, spec: Json) -> Json:
    metadata = {"name": "few", "namespace": site.namespace}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}


def preemptions(site: Site, namespace: str) -> int:
    job = site.kube.get("trainingjobs", "low", namespace)
    return len(job["status"].get("preemptedAt") or ())


def has_quota(quota: Json | None) -> bool:
    return "hard" in (quota or {}).get("status", {})


@pytest.mark.parametrize("obstacle", ["quota", "claim", "limit range", "default limits"])
def test_a_job_that_would_be_refused_evicts_nobody_and_fails_with_the_remedy(
    site: Site, low: str, obstacle: str
) -> None:
    template, word = TEMPLATE, ""
    if obstacle == "quota":
        site.kube.create(named(site, "ResourceQuota", {"hard": {"pods": "3"}}))
        site.kube.wait("resourcequotas", "few", site.namespace, has_quota)
        word = "ResourceQuota few"
    elif obstacle == "claim":
        template, word = MOUNTED, "dta"
    elif obstacle == "default limits":  # only admission adds what the quota counts
        site.kube.create(named(site, "ResourceQuota", {"hard": {"limits.cpu": "7"}}))
        site.kube.wait("resourcequotas", "few", site.namespace, has_quota)
        limits = [{"type": "Container", "default": {"cpu": "2", "memory": "2Gi"}}]
        site.kube.create(named(site, "LimitRange", {"limits": limits}))
        word = "limits.cpu needs 8"
    else:
        limits = [{"type": "Container", "max": {"memory": "64Mi"}}]
        site.kube.create(named(site, "LimitRange", {"limits": limits}))
        word = "memory"
    spec: dict[str, Any] = {"nodes": 4, "gpusPerNode": 8, "priorityClassName": HIGH}
    site.submit("high", template=template, recovery={"maxFailedStarts": 2}, **spec)
    failed = site.wait("high", phase_is("Failed"))["status"]
    assert (failed["reason"], failed["failedStarts"]) == ("StartFailed", 2)
    assert not missing(failed["message"], word, "maxFailedStarts")
    assert preemptions(site, low) == 0


def test_a_job_evicts_once_what_it_lacked_is_there(site: Site, low: str) -> None:
    spec: dict[str, Any] = {"nodes": 4, "gpusPerNode": 8, "priorityClassName": HIGH}
    site.submit("high", template=MOUNTED, **spec)
    site.wait("high", lambda job: bool((job or {}).get("status", {}).get("failedStarts")))
    assert preemptions(site, low) == 0
    request = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = named(site, "PersistentVolumeClaim", {**request, "storageClassName": ""})
    site.kube.create({**claim, "metadata": {**claim["metadata"], "name": "dta"}})
    site.wait("high", phase_is("Running"))
    assert preemptions(site, low) == 1


def test_a_job_without_resources_starts_where_a_limit_range_has_low_defaults(site: Site) -> None:
    defaults = {"default": {"memory": "512Mi", "cpu": "500m"}}
    site.kube.create(named(site, "LimitRange", {"limits": [{"type": "Container", **defaults}]}))
    site.submit("plain", nodes=1, gpusPerNode=8, template=TEMPLATE)
    site.wait("plain", phase_is("Running"))
    (pod,) = site.pods("plain")
    main = next(each for each in pod["spec"]["containers"] if each["name"] == "trainer")
    asked, most = main["resources"]["requests"], main["resources"]["limits"]
    assert (most["cpu"], most["memory"]) == (asked["cpu"], asked["memory"])


def test_a_quota_that_the_victim_fills_is_no_obstacle(site: Site) -> None:
    spec: dict[str, Any] = {"nodes": 4, "gpusPerNode": 8, "template": TEMPLATE}
    site.kube.create(named(site, "ResourceQuota", {"hard": {"pods": "4"}}))
    site.kube.wait("resourcequotas", "few", site.namespace, has_quota)
    site.submit("low", **spec)
    site.wait("low", phase_is("Running"))
    site.submit("high", priorityClassName=HIGH, **spec)
    status = site.wait("high", phase_is("Running"))["status"]
    assert "failedStarts" not in status
    assert preemptions(site, site.namespace) == 1
