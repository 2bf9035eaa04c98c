"""How gangs fail to start and how jobs end: refusals, deadlines, the time to live, namesakes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.operator.conftest import Site
from tests.kube import Json, phase_is, reason_is

pytestmark = [
    pytest.mark.usefixtures("operator"),
    pytest.mark.extended(keep=5, of="corners of a cluster"),
]


def status_of(job: Json | None) -> Json:
    return (job or {}).get("status", {})


def refuse(site: Site, pod: str) -> None:
    """What a kubelet reports that lost a race for its GPUs to another scheduler."""
    body = {
        "phase": "Failed",
        "reason": "OutOfnvidia.com/gpu",
        "message": "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu",
    }
    site.kube.patch_status("pods", pod, body, site.namespace)


def test_a_kubelets_refusal_places_the_gang_elsewhere_and_that_node_is_left_alone(
    silent_site: Site,
) -> None:
    site = silent_site
    site.submit("racer", nodes=2, gpusPerNode=8)
    site.kube.wait_all("pods", site.namespace, lambda pods: len(pods) == 2)
    loser = site.kube.get("pods", "racer-1-g1", site.namespace)["spec"]["nodeName"]
    refuse(site, "racer-1-g1")
    job = site.wait("racer", lambda job: status_of(job).get("generation") == 2)
    assert job["status"]["restarts"] == 0
    assert "OutOfnvidia.com/gpu" in job["status"]["incident"]
    for name in ("racer-0-g2", "racer-1-g2"):
        site.kube.wait("pods", name, site.namespace, lambda pod: pod is not None)
    site.kube.delete("pods", "racer-0-g1", site.namespace, grace=0)  # its kubelet would
    site.kube.wait("pods", "racer-0-g1", site.namespace, lambda pod: pod is None)
    assert loser not in {pod["spec"]["nodeName"] for pod in site.pods("racer")}

    site.submit("second", nodes=2, gpusPerNode=8)
    site.wait("second", lambda job: status_of(job).get("phase") == "Pending")
    assert site.pods("second") == []
    site.kube.patch("nodes", loser, {"metadata": {"labels": {"drumline.test/mended": "yes"}}})
    site.kube.wait_all(
        "pods", site.namespace, lambda pods: len(pods) == 2, labels="drumline.dev/job=second"
    )
    assert loser in {pod["spec"]["nodeName"] for pod in site.pods("second")}


def test_a_refused_gang_leaves_its_neighbour_alone(site: Site) -> None:
    for name in ("left", "right"):
        site.submit(name, nodes=2, gpusPerNode=8)
    for name in ("left", "right"):
        site.wait(name, phase_is("Running"))
    before = {pod["metadata"]["uid"] for pod in site.pods("right")}
    refuse(site, "left-0-g1")
    # Its node is distrusted, so three are left for it and its neighbour: it waits.
    job = site.wait("left", reason_is("InsufficientGpus"))
    assert job["status"]["restarts"] == 0
    site.kube.wait_all(
        "pods", site.namespace, lambda pods: not pods, labels="drumline.dev/job=left"
    )
    assert {pod["metadata"]["uid"] for pod in site.pods("right")} == before


def test_past_the_start_deadline_a_gang_gives_its_places_back(silent_site: Site) -> None:
    site = silent_site
    site.submit("stuck", nodes=2, gpusPerNode=8, startDeadlineSeconds=2)
    job = site.wait("stuck", lambda job: (status_of(job).get("generation") or 0) >= 2)
    assert "not all pods started within 2 s" in job["status"]["incident"]
    assert job["status"]["restarts"] == 0


def test_the_active_deadline_fails_the_job_and_frees_its_nodes(site: Site) -> None:
    site.submit("long", nodes=4, gpusPerNode=8, activeDeadlineSeconds=1)
    job = site.wait("long", phase_is("Failed"))
    assert job["status"]["reason"] == "ActiveDeadlineExceeded"
    site.submit("next", nodes=4, gpusPerNode=8)
    site.wait("next", phase_is("Running"))


@pytest.mark.parametrize("exit_code", [0, 3])
def test_after_its_time_to_live_a_job_and_all_it_had_is_gone(site: Site, exit_code: int) -> None:
    once: Json = {"recovery": {"maxRestarts": 0}, "ttlSecondsAfterFinished": 1}
    site.submit("brief", nodes=2, gpusPerNode=8, **once)
    site.wait("brief", phase_is("Running"))
    site.end_pods("brief", exit_code=exit_code)
    site.kube.wait("trainingjobs", "brief", site.namespace, lambda job: job is None)
    for plural in ("pods", "secrets"):
        site.kube.wait_all(
            plural, site.namespace, lambda pods: not pods, labels="drumline.dev/job=brief"
        )


def test_a_restart_is_charged_until_the_budget_is_used(site: Site) -> None:
    site.submit("flaky", nodes=2, gpusPerNode=8, recovery={"maxRestarts": 1})
    site.wait("flaky", phase_is("Running"))
    site.end_pods("flaky", exit_code=3)
    again = site.wait(
        "flaky", lambda job: phase_is("Running")(job) and status_of(job)["generation"] == 2
    )
    assert again["status"]["restarts"] == 1
    site.end_pods("flaky", exit_code=3)
    job = site.wait("flaky", phase_is("Failed"))
    assert job["status"]["reason"] == "RestartsExhausted"
    conditions = {each["type"]: each["status"] for each in job["status"]["conditions"]}
    assert (conditions["Failed"], conditions["Running"], conditions["Recovering"]) == (
        "True",
        "False",
        "False",
    )


def test_a_namesake_made_at_once_gets_pods_of_its_own(silent_site: Site) -> None:
    """The test is the kubelet: KWOK deletes by name, late, and so the pods of the namesake, too."""
    site = silent_site

    def are_pods_of(job: Json) -> Callable[[list[Json]], bool]:
        owners = [job["metadata"]["uid"]] * 2
        return lambda pods: [pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods] == owners

    site.submit("twin", nodes=2, gpusPerNode=8)
    first = site.kube.wait_all("pods", site.namespace, are_pods_of(site.job("twin")))
    site.kube.delete("trainingjobs", "twin", site.namespace)
    site.submit("twin", nodes=2, gpusPerNode=8)
    site.kube.wait_all(
        "pods",
        site.namespace,
        lambda pods: all("deletionTimestamp" in pod["metadata"] for pod in pods),
    )
    for pod in first:
        site.kube.delete("pods", pod["metadata"]["name"], site.namespace, grace=0)
    second = site.job("twin")
    site.kube.wait_all("pods", site.namespace, are_pods_of(second))
    assert site.job("twin")["status"]["generation"] == 1
