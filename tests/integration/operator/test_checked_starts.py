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


@pytest.mark.parametrize(
    "obstacle", ["quota", "claim", "limit range", "default limits", "limits of claims"]
)
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
    elif obstacle == "limits of claims":  # applied when the claim is made, after the pod
        limits = [{"type": "PersistentVolumeClaim", "max": {"storage": "5Gi"}}]
        site.kube.create(named(site, "LimitRange", {"limits": limits}))
        template, word = mounting(OF_EACH_POD), "LimitRange few"
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


def test_a_job_whose_pods_get_more_requests_than_a_node_offers_evicts_nobody(
    site: Site, low: str
) -> None:
    """Admission adds them, so only a dry run shows them before the first pod."""
    defaults = {"type": "Container", "defaultRequest": {"ephemeral-storage": "900Ti"}}
    site.kube.create(named(site, "LimitRange", {"limits": [defaults]}))
    spec: dict[str, Any] = {"nodes": 4, "gpusPerNode": 8, "priorityClassName": HIGH}
    site.submit("high", template=TEMPLATE, **spec)

    def says_why(job: Json | None) -> bool:
        message = (job or {}).get("status", {}).get("message") or ""
        return "ephemeral-storage" in message

    site.wait("high", says_why)
    assert preemptions(site, low) == 0


CODE = {"name": "code", "configMap": {"name": "code"}}
KEY = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "a"}}}
BUCKET = {"name": "bucket", "csi": {"driver": "gone.example.com"}}
SCRATCH: Json = {"resources": {"requests": {"storage": "10Gi"}}}
OF_EACH_POD = {"name": "tmp", "ephemeral": {"volumeClaimTemplate": {"spec": SCRATCH}}}


def mounting(volume: Json) -> Json:
    mounts = [{"name": volume["name"], "mountPath": "/data"}]
    return {**TEMPLATE, "volumes": [volume], "volumeMounts": mounts}


@pytest.mark.parametrize(
    ("template", "hard", "word"),
    [
        (mounting(CODE), {}, 'configmap "code" not found'),
        ({**TEMPLATE, "env": [KEY]}, {}, 'secret "keys" not found'),
        ({**TEMPLATE, "imagePullSecrets": ["registry"]}, {}, 'secret "registry" not found'),
        (mounting(BUCKET), {}, 'csidriver "gone.example.com" not found'),
        (mounting(OF_EACH_POD), {"persistentvolumeclaims": "3"}, "persistentvolumeclaims needs 4"),
        (mounting(OF_EACH_POD), {"requests.storage": "30Gi"}, "requests.storage needs"),
        ({**TEMPLATE, "launch": "PerPod"}, {"count/secrets": "0"}, "count/secrets"),
        (TEMPLATE, {"count/poddisruptionbudgets.policy": "0"}, "beside its pods"),
    ],
    ids=[
        "config map",
        "secret",
        "pull secret",
        "driver",
        "claims",
        "storage",
        "secrets",
        "budgets",
    ],
)
def test_everything_that_a_start_needs_is_checked(
    site: Site, low: str, template: Json, hard: dict[str, str], word: str
) -> None:
    if hard:
        site.kube.create(named(site, "ResourceQuota", {"hard": hard}))
        site.kube.wait("resourcequotas", "few", site.namespace, has_quota)
    spec: dict[str, Any] = {"nodes": 4, "gpusPerNode": 8, "priorityClassName": HIGH}
    site.submit("high", template=template, recovery={"maxFailedStarts": 1}, **spec)
    failed = site.wait("high", phase_is("Failed"))["status"]
    assert (failed["reason"], failed["failedStarts"]) == ("StartFailed", 1)
    assert not missing(failed["message"], word)
    assert preemptions(site, low) == 0


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ({"serviceAccountName": "gone"}, ("gone", "ServiceAccount")),
        ({"runtimeClassName": "gone"}, ("gone", "RuntimeClass")),
        ({"imagePullSecrets": ["gone"]}, ('secret "gone" not found',)),
    ],
    ids=["service account", "runtime class", "pull secret"],
)
def test_what_the_profile_of_a_pool_names_has_to_exist(
    site: Site, low: str, profile: Json, words: tuple[str, ...]
) -> None:
    site.kube.patch("gpupools", site.pool, {"spec": {"podProfile": profile}})
    spec: dict[str, Any] = {"nodes": 4, "gpusPerNode": 8, "priorityClassName": HIGH}
    site.submit("high", template=TEMPLATE, recovery={"maxFailedStarts": 1}, **spec)
    failed = site.wait("high", phase_is("Failed"))["status"]
    assert not missing(failed["message"], *words)
    assert preemptions(site, low) == 0


@pytest.fixture
def broken_webhook(site: Site) -> Iterator[str]:
    """Yield a webhook that answers nothing about the pods of a namespace."""
    selected = {"matchLabels": {"kubernetes.io/metadata.name": site.namespace}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
    webhook = {
        "name": "policy.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [{**rule, "resources": ["pods"]}],
        "namespaceSelector": selected,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }
    site.kube.create(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": site.namespace},
            "webhooks": [webhook],
        }
    )
    yield site.namespace
    site.kube.delete("validatingwebhookconfigurations", site.namespace)


def test_a_start_that_cannot_be_checked_evicts_nobody_and_counts_as_nothing(
    site: Site, low: str, broken_webhook: str
) -> None:
    spec: dict[str, Any] = {"nodes": 4, "gpusPerNode": 8, "priorityClassName": HIGH}
    site.submit("high", template=TEMPLATE, **spec)

    def says_why(job: Json | None) -> bool:
        message = (job or {}).get("status", {}).get("message") or ""
        return "could not be checked" in message

    assert "failedStarts" not in site.wait("high", says_why)["status"]
    assert preemptions(site, low) == 0
    site.kube.delete("validatingwebhookconfigurations", broken_webhook)
    site.wait("high", phase_is("Running"))
    assert preemptions(site, low) == 1


def test_the_pods_of_roles_are_tried_too(site: Site, low: str) -> None:
    limits = [{"type": "Container", "max": {"memory": "8Gi"}}]
    site.kube.create(named(site, "LimitRange", {"limits": limits}))
    role = {"name": "eval", "command": ["true"], "resources": {"memory": "16Gi"}}
    spec: dict[str, Any] = {"nodes": 4, "gpusPerNode": 8, "priorityClassName": HIGH}
    site.submit("high", template=TEMPLATE, roles=[role], recovery={"maxFailedStarts": 1}, **spec)
    failed = site.wait("high", phase_is("Failed"))["status"]
    assert not missing(failed["message"], "8Gi", "LimitRange")
    assert preemptions(site, low) == 0


def a_volume(site: Site, mode: str, **claim: Json) -> None:
    """Create a volume that the claim `dta` can have, and the claim."""
    common: Json = {"accessModes": [mode], "storageClassName": ""}
    name = f"{site.namespace}-dta"
    source = {"csi": {"driver": "disks.example.com", "volumeHandle": name}}
    spec = {**common, **source, "capacity": {"storage": "1Gi"}}
    volume = {"kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
    site.kube.create({"apiVersion": "v1", **volume})
    request = {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": name}
    asked = named(site, "PersistentVolumeClaim", {**common, **request, **claim})
    site.kube.create({**asked, "metadata": {**asked["metadata"], "name": "dta"}})


@pytest.fixture
def volumes(site: Site) -> Iterator[None]:
    """Volumes of a test are removed with it."""
    yield
    site.kube.delete("persistentvolumes", f"{site.namespace}-dta")


@pytest.mark.usefixtures("volumes")
def test_a_job_on_several_nodes_with_a_claim_of_one_node_evicts_nobody(
    site: Site, low: str
) -> None:
    a_volume(site, "ReadWriteOnce")
    spec: dict[str, Any] = {"nodes": 4, "gpusPerNode": 8, "priorityClassName": HIGH}
    site.submit("high", template=MOUNTED, recovery={"maxFailedStarts": 1}, **spec)
    failed = site.wait("high", phase_is("Failed"))["status"]
    assert not missing(failed["message"], "ReadWriteOnce", "4 nodes", "ReadWriteMany")
    assert preemptions(site, low) == 0


@pytest.mark.usefixtures("volumes")
def test_a_job_evicts_once_what_it_lacked_is_there(site: Site, low: str) -> None:
    spec: dict[str, Any] = {"nodes": 4, "gpusPerNode": 8, "priorityClassName": HIGH}
    site.submit("high", template=MOUNTED, **spec)
    site.wait("high", lambda job: bool((job or {}).get("status", {}).get("failedStarts")))
    assert preemptions(site, low) == 0
    a_volume(site, "ReadWriteMany")
    site.wait("high", phase_is("Running"))
    assert preemptions(site, low) == 1


def test_a_job_evicts_nobody_while_its_claim_has_no_volume(site: Site, low: str) -> None:
    request = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = named(site, "PersistentVolumeClaim", {**request, "storageClassName": ""})
    site.kube.create({**claim, "metadata": {**claim["metadata"], "name": "dta"}})
    spec: dict[str, Any] = {"nodes": 4, "gpusPerNode": 8, "priorityClassName": HIGH}
    site.submit("high", template=MOUNTED, **spec)

    def says_why(job: Json | None) -> bool:
        message = (job or {}).get("status", {}).get("message") or ""
        return "claim dta is not bound" in message

    assert "failedStarts" not in site.wait("high", says_why)["status"]
    assert preemptions(site, low) == 0


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
