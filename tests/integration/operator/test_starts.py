"""Starts of gangs as a cluster's own rules let them be: quotas, defaults, kubelets that cannot."""

from __future__ import annotations

import pytest

from tests.integration.operator.conftest import Site
from tests.kube import Json, generation_is, phase_is

pytestmark = pytest.mark.usefixtures("operator")


DIGEST = "sha256:" + "1" * 64


def report(site: Site, pod: str, *containers: Json, **status: Json | str) -> None:
    """What a kubelet says of a pod."""
    plain = {"image": "any:1", "imageID": "", "restartCount": 0, "ready": False}
    body: Json = {"containerStatuses": [plain | container for container in containers], **status}
    site.kube.patch_status("pods", pod, body, site.namespace)


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
    labels = "drumline.dev/job=healed"
    names: dict[str, str] = {}
    for plural in plurals:
        (child,) = site.kube.list(plural, site.namespace, labels=labels)
        names[plural] = child["metadata"]["name"]
        site.kube.delete(plural, names[plural], site.namespace)
    site.kube.delete("pods", "healed-1-g1", site.namespace, grace=0)
    site.wait("healed", lambda job: phase_is("Running")(job) and generation_is(2)(job))
    for plural in plurals:
        (child,) = site.kube.list(plural, site.namespace, labels=labels)
        assert child["metadata"]["name"] == names[plural]


def test_the_image_that_ran_first_is_what_replacements_run(silent_site: Site) -> None:
    site = silent_site
    site.submit("pinned", nodes=1, gpusPerNode=8, template={"image": "team/train:1"})
    site.kube.wait("pods", "pinned-0-g1", site.namespace, lambda pod: pod is not None)
    runs = {
        "name": "trainer",
        "ready": True,
        "imageID": f"docker.io/team/train@{DIGEST}",
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

    def going(pod: Json | None) -> bool:
        return pod is None or "deletionTimestamp" in pod["metadata"]

    site.kube.wait("pods", "meshed-0-g1", site.namespace, going)
