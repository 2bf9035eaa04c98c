"""What queues pay for: pods that run on, and priorities that rise while a job runs."""

from __future__ import annotations

import pytest

from tests.integration.operator.conftest import HIGH, HIGH_CLASS, Site
from tests.kube import Json, phase_is, reason_is

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.extended(keep=1)]


def limit_queue(site: Site, gpus: int) -> None:
    spec = {"quotas": [{"gpuPool": site.pool, "nominalGpus": gpus}]}
    site.kube.patch("trainingqueues", site.queue, {"spec": spec})


def overlaps(pool: Json | None) -> bool:
    conditions = (pool or {}).get("status", {}).get("conditions", [])
    return any(each["type"] == "Overlapping" and each["status"] == "True" for each in conditions)


def used(queue: Json | None) -> tuple[int, int] | None:
    """GPUs in use, and those of them that foreign pods hold."""
    usage = (queue or {}).get("status", {}).get("usage", [])
    return (usage[0]["usedGpus"], usage[0].get("foreignGpus", 0)) if usage else None


def status_nodes(pool: Json | None) -> int | None:
    return (pool or {}).get("status", {}).get("nodes")


def test_no_job_starts_on_quota_whose_pods_still_run(silent_site: Site) -> None:
    site = silent_site
    limit_queue(site, 8)
    site.submit("first", gpusPerNode=8)
    site.kube.wait("pods", "first-0-g1", site.namespace, lambda pod: pod is not None)
    site.kube.patch("trainingjobs", "first", {"spec": {"suspend": True}}, site.namespace)
    site.kube.wait(
        "pods",
        "first-0-g1",
        site.namespace,
        lambda pod: pod is not None and "deletionTimestamp" in pod["metadata"],
    )
    site.submit("second", gpusPerNode=8)
    job = site.wait("second", reason_is("QuotaExhausted"))
    assert f"held by {site.namespace}/first (8)" in job["status"]["message"]
    site.kube.delete("pods", "first-0-g1", site.namespace, grace=0)  # its kubelet would
    site.kube.wait("pods", "second-0-g1", site.namespace, lambda pod: pod is not None)


def test_a_queue_pays_for_a_foreign_pod_that_names_it(site: Site) -> None:
    """It runs on a node of the pool; the job needs quota that it takes, not its GPUs."""
    limit_queue(site, 8)
    container = {
        "name": "notebook",
        "image": "any:1",
        "resources": {"limits": {"nvidia.com/gpu": "2"}},
    }
    site.kube.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "notebook",
                "namespace": site.namespace,
                "labels": {"drumline.dev/queue": site.queue},
            },
            "spec": {"nodeName": site.nodes[0], "containers": [container]},
        }
    )
    site.kube.wait("trainingqueues", site.queue, None, lambda queue: used(queue) == (2, 2))
    site.submit("next", gpusPerNode=8)
    job = site.wait("next", reason_is("QuotaExhausted"))
    assert f"held by {site.namespace}/pods/notebook (2)" in job["status"]["message"]
    site.kube.delete("pods", "notebook", site.namespace, grace=0)
    site.kube.wait("pods", "next-0-g1", site.namespace, lambda pod: pod is not None)
    site.kube.wait("trainingqueues", site.queue, None, lambda queue: used(queue) == (8, 0))


def test_a_class_that_a_running_job_names_later_does_not_keep_it_from_giving_way(
    site: Site,
) -> None:
    site.kube.ensure(HIGH_CLASS)
    limit_queue(site, 8)
    site.submit("proud", gpusPerNode=8)
    running = site.wait("proud", phase_is("Running"))
    assert running["status"]["priority"] == 0
    change = {"spec": {"priorityClassName": HIGH}}
    site.kube.patch("trainingjobs", "proud", change, site.namespace)
    site.submit("urgent", gpusPerNode=8, priorityClassName=HIGH)
    urgent = site.wait("urgent", phase_is("Running"))
    assert urgent["status"]["priority"] == 1000


def test_pools_that_select_the_same_nodes_say_so_and_the_older_one_keeps_them(site: Site) -> None:
    selector = {"drumline.test/site": site.namespace}
    newer = f"z-{site.pool}"
    body = {
        "apiVersion": "drumline.dev/v1alpha1",
        "kind": "GpuPool",
        "metadata": {"name": newer},
        "spec": {"nodeSelector": selector},
    }
    site.kube.wait("gpupools", site.pool, None, lambda pool: status_nodes(pool) == 4)
    site.kube.create(body)
    try:
        for name, other in ((newer, site.pool), (site.pool, newer)):
            nodes = 4 if name == site.pool else 0
            pool = site.kube.wait(
                "gpupools",
                name,
                None,
                lambda pool, nodes=nodes: overlaps(pool) and status_nodes(pool) == nodes,
            )
            assert pool is not None
            conditions = {each["type"]: each for each in pool["status"]["conditions"]}
            condition = conditions["Overlapping"]
            assert f"GpuPool {other} selects {site.nodes[0]}" in condition["message"]
            assert f"{site.pool} has them, because it is the older pool" in condition["message"]
    finally:
        site.kube.delete("gpupools", newer)
    site.kube.wait("gpupools", site.pool, None, lambda pool: not overlaps(pool))
