"""Starts of gangs as a cluster's own rules let them be: quotas, defaults, kubelets that cannot."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.integration.operator.conftest import (
    OperatorProcess,
    Site,
    a_claim,
    ensure_waiting_class,
    release_lease,
    with_claim,
    with_pod_claim,
)
from tests.kube import Json, generation_is, phase_is, reason_is

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.extended(keep=2)]


DIGEST = "sha256:" + "1" * 64


def report(site: Site, pod: str, *containers: Json, **status: Json | str) -> None:
    """What a kubelet says of a pod."""
    plain = {"image": "any:1", "imageID": "", "restartCount": 0, "ready": False}
    body: Json = {"containerStatuses": [plain | container for container in containers], **status}
    site.kube.patch_status("pods", pod, body, site.namespace)


def is_going(pod: Json) -> bool:
    """Whether the pod's deletion was asked for: on a silent node no kubelet ends it."""
    return "deletionTimestamp" in pod["metadata"]


def warn(site: Site, pod: Json, reason: str, message: str) -> None:
    """The Event in which a kubelet says why a pod does not come up."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata = pod["metadata"]
    site.kube.create(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.1", "namespace": site.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": site.namespace,
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "reason": reason,
            "message": message,
            "type": "Warning",
            "source": {"component": "kubelet"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
    )


def create_quota(site: Site, **hard: str) -> None:
    """A ResourceQuota that is in force: the quota controller has written its status."""
    site.kube.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "limits", "namespace": site.namespace},
            "spec": {"hard": {key.replace("_", "."): amount for key, amount in hard.items()}},
        }
    )

    def in_force(quota: Json | None) -> bool:
        return "hard" in (quota or {}).get("status", {})

    site.kube.wait("resourcequotas", "limits", site.namespace, in_force)


def test_a_gang_with_a_template_starts_under_a_quota_of_limits(site: Site) -> None:
    create_quota(site, limits_cpu="4", limits_memory="8Gi")
    site.submit("bound", nodes=2, gpusPerNode=8, resources={"cpu": "2", "memory": "4Gi"})
    site.wait("bound", phase_is("Running"))
    assert {pod["status"]["qosClass"] for pod in site.pods("bound")} == {"Guaranteed"}


def test_children_that_were_deleted_are_back_in_the_next_generation(site: Site) -> None:
    site.submit("healed", nodes=2, gpusPerNode=8)
    site.wait("healed", phase_is("Running"))
    plurals = ("secrets", "networkpolicies", "poddisruptionbudgets")
    names: dict[str, str] = {}
    for plural in plurals:
        (child,) = site.kube.list(plural, site.namespace)
        names[plural] = child["metadata"]["name"]
        site.kube.delete(plural, names[plural], site.namespace)
    site.kube.delete("pods", "healed-1-g1", site.namespace, grace=0)
    site.wait("healed", lambda job: phase_is("Running")(job) and generation_is(2)(job))
    for plural in plurals:
        (child,) = site.kube.list(plural, site.namespace)
        assert child["metadata"]["name"] == names[plural]


def test_the_image_that_ran_first_is_what_replacements_run(silent_site: Site) -> None:
    site = silent_site
    site.submit("pinned", nodes=1, gpusPerNode=8, template={"image": "team/train:1"})
    site.kube.wait("pods", "pinned-0-g1", site.namespace, lambda pod: pod is not None)
    runs = {
        "name": "trainer",
        "ready": True,
        "imageID": f"hub.example.com/team/train@{DIGEST}",
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }
    report(site, "pinned-0-g1", runs, phase="Running")
    job = site.wait("pinned", phase_is("Running"))
    assert job["status"]["image"] == f"team/train:1@{DIGEST}"
    site.kube.delete("pods", "pinned-0-g1", site.namespace, grace=0)
    pod = site.kube.wait("pods", "pinned-0-g2", site.namespace, lambda pod: pod is not None)
    assert pod is not None
    assert pod["spec"]["containers"][0]["image"] == f"team/train:1@{DIGEST}"


def test_a_sidecar_that_runs_on_neither_keeps_a_job_running_nor_its_gpus(silent_site: Site) -> None:
    site = silent_site
    site.submit("meshed", nodes=1, gpusPerNode=8)
    site.kube.wait("pods", "meshed-0-g1", site.namespace, lambda pod: pod is not None)
    runs = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    mesh = {"name": "mesh", "state": runs}
    main = {"name": "trainer", "ready": True, "state": runs}
    report(site, "meshed-0-g1", mesh, main, phase="Running")
    site.wait("meshed", phase_is("Running"))
    ended = {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-01-01T01:00:00Z"}
    report(site, "meshed-0-g1", mesh, {"name": "trainer", "state": {"terminated": ended}})
    site.wait("meshed", phase_is("Succeeded"))

    site.kube.wait_all("pods", site.namespace, lambda pods: all(map(is_going, pods)))


def test_a_mount_that_fails_is_told_in_the_kubelets_words_until_the_job_fails(
    silent_site: Site,
) -> None:
    site = silent_site
    recovery = {"maxFailedStarts": 1}
    site.submit("misspelt", nodes=1, gpusPerNode=8, startDeadlineSeconds=8, recovery=recovery)
    pod = site.kube.wait("pods", "misspelt-0-g1", site.namespace, lambda pod: pod is not None)
    assert pod is not None
    sentence = 'MountVolume.SetUp failed for volume "keys" : secret "kyes" not found'
    warn(site, pod, "FailedMount", sentence)
    job = site.wait("misspelt", phase_is("Failed"))
    assert job["status"]["reason"] == "StartFailed"
    assert f"misspelt-0-g1 on {site.nodes[0][:4]}" in job["status"]["message"]
    assert f"FailedMount: {sentence}" in job["status"]["message"]
    site.kube.wait_all("pods", site.namespace, lambda pods: all(map(is_going, pods)))


def test_an_image_that_cannot_be_had_is_told_at_once_and_requeued(silent_site: Site) -> None:
    site = silent_site
    site.submit("missing", nodes=1, gpusPerNode=8, startDeadlineSeconds=8)
    site.kube.wait("pods", "missing-0-g1", site.namespace, lambda pod: pod is not None)
    waits = {"reason": "ErrImagePull", "message": "any:1: not found"}
    report(site, "missing-0-g1", {"name": "trainer", "state": {"waiting": waits}})
    job = site.wait("missing", reason_is("BackingOff"))
    assert job["status"]["failedStarts"] == 1
    assert "ErrImagePull: any:1: not found" in job["status"]["message"]
    site.kube.wait_all("pods", site.namespace, lambda pods: all(map(is_going, pods)))


def test_what_admission_adds_to_pods_is_counted_when_they_are_placed_again(
    silent_site: Site,
) -> None:
    site = silent_site
    added = {"type": "Container", "defaultRequest": {"ephemeral-storage": "900Ti"}}
    site.kube.create(
        {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": "scratch", "namespace": site.namespace},
            "spec": {"limits": [{**added, "default": {"ephemeral-storage": "900Ti"}}]},
        }
    )
    site.submit("mutated", nodes=1, gpusPerNode=8)
    pod = site.kube.wait("pods", "mutated-0-g1", site.namespace, lambda pod: pod is not None)
    assert pod is not None
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["requests"]["ephemeral-storage"] == "900Ti"
    refused = {"reason": "OutOfephemeral-storage", "message": "Pod was rejected"}
    report(site, "mutated-0-g1", phase="Failed", **refused)
    job = site.wait("mutated", reason_is("ExceedsCluster"))
    assert "ephemeral" in job["status"]["message"]
    assert job["status"]["generation"] == 1


def test_a_claim_that_does_not_exist_holds_no_gpu_and_fails_the_job(site: Site) -> None:
    recovery = {"maxFailedStarts": 1}
    site.submit("claimless", nodes=1, gpusPerNode=8, template=with_claim("dta"), recovery=recovery)
    job = site.wait("claimless", phase_is("Failed"))
    assert job["status"]["reason"] == "StartFailed"
    assert 'persistentvolumeclaim "dta" not found' in job["status"]["message"]
    assert "create the PersistentVolumeClaim dta" in job["status"]["message"]
    assert site.pods("claimless") == []


def test_a_claim_that_waits_for_its_first_consumer_gets_the_node(site: Site) -> None:
    waits = ensure_waiting_class(site.kube)
    site.kube.create(a_claim("late", namespace=site.namespace, storage_class=waits))
    site.submit("consumer", nodes=2, gpusPerNode=8, template=with_claim("late"))
    site.wait("consumer", phase_is("Running"))
    claim = site.kube.get("persistentvolumeclaims", "late", site.namespace)
    selected = claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"]
    first = site.kube.get("pods", "consumer-0-g1", site.namespace)
    assert selected == first["spec"]["nodeName"]


def is_provisioned(claim: Json | None) -> bool:
    """Whether the volume controller has asked the class's provisioner for the claim's volume."""
    annotations = (claim or {}).get("metadata", {}).get("annotations") or {}
    return annotations.get("volume.kubernetes.io/storage-provisioner") == "drumline.test/none"


def test_each_pod_has_a_claim_of_its_own_that_is_provisioned_for_its_node(site: Site) -> None:
    waits = ensure_waiting_class(site.kube)
    site.submit("scratch", nodes=2, gpusPerNode=8, template=with_pod_claim(waits))
    site.wait("scratch", phase_is("Running"))
    for pod in site.pods("scratch"):
        name = f"{pod['metadata']['name']}-data"
        claim = site.kube.wait("persistentvolumeclaims", name, site.namespace, is_provisioned)
        assert claim is not None
        metadata = claim["metadata"]
        selected = metadata["annotations"]["volume.kubernetes.io/selected-node"]
        assert selected == pod["spec"]["nodeName"]
        assert [owner["uid"] for owner in metadata["ownerReferences"]] == [pod["metadata"]["uid"]]


def test_a_class_that_does_not_exist_holds_no_gpu_and_fails_the_job(site: Site) -> None:
    recovery = {"maxFailedStarts": 1}
    template = with_pod_claim("misspelt")
    site.submit("classless", nodes=1, gpusPerNode=8, template=template, recovery=recovery)
    job = site.wait("classless", phase_is("Failed"))
    assert 'storageclass "misspelt" not found' in job["status"]["message"]
    assert "name a StorageClass with a provisioner" in job["status"]["message"]
    assert site.pods("classless") == []


def test_pods_orphaned_while_no_operator_led_are_swept(
    site: Site, operator: OperatorProcess
) -> None:
    for name in ("orphaned", "kept"):
        site.submit(name, nodes=1, gpusPerNode=8)
        site.wait(name, phase_is("Running"))
    operator.kill()
    site.kube.delete("trainingjobs", "orphaned", site.namespace, orphan=True)
    site.kube.wait("trainingjobs", "orphaned", site.namespace, lambda job: job is None)
    (pod,) = site.pods("orphaned")
    assert "ownerReferences" not in pod["metadata"]
    release_lease(site.kube)
    operator.start()
    labels = "drumline.dev/job=orphaned"
    site.kube.wait_all("pods", site.namespace, lambda pods: not pods, labels=labels)
    assert len(site.pods("kept")) == 1


def test_a_namespace_that_is_created_again_gets_its_shared_objects_at_once(site: Site) -> None:
    """The objects of the first namespace were confirmed a few seconds before."""
    kube, name = site.kube, site.namespace
    site.submit("first", nodes=2, gpusPerNode=8)
    site.wait("first", phase_is("Running"))
    kube.delete("namespaces", name)
    kube.wait("namespaces", name, None, lambda namespace: namespace is None)
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    site.submit("second", nodes=2, gpusPerNode=8)
    site.wait("second", phase_is("Running"))
    assert kube.exists("networkpolicies", "drumline-pods", name)
    assert kube.exists("poddisruptionbudgets", "drumline-pods", name)
