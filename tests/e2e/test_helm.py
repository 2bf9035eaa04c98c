"""A release's whole life under running jobs: installed, upgraded, rolled back, uninstalled, back.

`make test-all WHAT=helm` runs it. Two trainers of two ranks train throughout, a pod of a
template holds its GPU, and a job that finds no room waits; none of them notices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.absence import DEPLOYMENT, LABELS
from tests.e2e.rehearsals import REHEARSED, Rehearsal, rehearse
from tests.e2e.site import SLEEPER, VALUES, Site
from tests.kube import Json, Kube, phase_is
from tools import install
from tools.cluster import Cluster, kubectl
from tools.install import RELEASE, SYSTEM_NAMESPACE

CHANGED: Json = {**VALUES, "replicas": 2, "preemptionSeconds": 33, "logLevel": "debug"}
PREEMPTION = "DRUMLINE_PREEMPTION_SECONDS"
KEY = "drumline-signing-key"
KEPT = {
    "customresourcedefinition.apiextensions.k8s.io/gpupools.drumline.dev",
    "customresourcedefinition.apiextensions.k8s.io/trainingjobs.drumline.dev",
    "customresourcedefinition.apiextensions.k8s.io/trainingqueues.drumline.dev",
    "validatingadmissionpolicy.admissionregistration.k8s.io/trainingjobs.drumline.dev",
    "validatingadmissionpolicybinding.admissionregistration.k8s.io/trainingjobs.drumline.dev",
}
KINDS = (
    *("deployments", "pods", "services", "configmaps", "secrets", "serviceaccounts"),
    *("roles", "rolebindings", "clusterroles", "clusterrolebindings", "networkpolicies"),
    *("poddisruptionbudgets", "priorityclasses", "flowschemas", "prioritylevelconfigurations"),
    *("customresourcedefinitions", "validatingadmissionpolicies"),
    "validatingadmissionpolicybindings",
)
"""Every kind that the chart makes objects of."""


@pytest.fixture(autouse=True)
def as_the_others_expect(cluster: Cluster, drumline: Kube) -> Iterator[None]:
    """Afterwards the chart is installed as before, wherever the test ended."""
    _ = drumline
    yield
    install.install(cluster, say=print, progress_seconds=1, values=VALUES)


def test_running_jobs_notice_nothing_of_a_releases_life(cluster: Cluster, site: Site) -> None:
    trained: Json = {**REHEARSED, "steps": 600}
    job = rehearse(site, "trains", pace_seconds=0.15, **trained)
    site.submit("holds", nodes=1, gpusPerNode=1, template=SLEEPER)
    site.wait("holds", phase_is("Running"))
    site.submit("waits", nodes=3, gpusPerNode=2, template=SLEEPER)
    site.wait("waits", phase_is("Pending"))
    job.reach(5)
    job.slow_down()
    before, key = lives(site), signing_key(site.kube)
    first = revision(cluster)

    install.install(cluster, say=print, progress_seconds=1, values=CHANGED)
    assert variables(site.kube)[PREEMPTION] == "33"
    assert_all_is_well(site, job, before, guest="after-upgrade")

    install.helm(cluster, "rollback", RELEASE, str(first), "--wait", "--timeout=180s", say=print)
    assert variables(site.kube)[PREEMPTION] == str(VALUES["preemptionSeconds"])
    assert_all_is_well(site, job, before, guest="after-rollback")

    install.helm(cluster, "uninstall", RELEASE, "--wait", "--timeout=180s", say=print)
    site.kube.wait_all("pods", SYSTEM_NAMESPACE, lambda pods: not pods, labels=LABELS)
    assert of_the_release(cluster) == KEPT
    job.goes_on()
    assert lives(site) == before
    site.submit("meanwhile", nodes=1, gpusPerNode=1, template=SLEEPER)

    install.install(cluster, say=print, progress_seconds=1, values=VALUES)
    site.wait("meanwhile", phase_is("Running"))
    remove(site, "meanwhile")
    assert_all_is_well(site, job, before, guest="after-reinstall")
    assert signing_key(site.kube) == key

    job.hurry()
    job.finish()
    steps = [step for step, _ in job.written()]
    assert steps == list(range(1, job.steps + 1)), "a step was done twice or left out"


def assert_all_is_well(site: Site, job: Rehearsal, before: Json, *, guest: str) -> None:
    """The same pods train, the operator reads from their agents, and starts another job."""
    step = job.last_step()

    def trains(seen: Json | None) -> bool:
        return seen is not None and seen["status"].get("step", 0) > step

    site.wait(job.name, trains)
    site.submit(guest, nodes=1, gpusPerNode=1, template=SLEEPER)
    site.wait(guest, phase_is("Running"))
    remove(site, guest)
    assert lives(site) == before


def remove(site: Site, name: str) -> None:
    """Delete a job, and wait until its pods are gone."""
    site.kube.delete("trainingjobs", name, site.namespace)
    labels = f"drumline.dev/job={name}"
    site.kube.wait_all("pods", site.namespace, lambda pods: not pods, labels=labels)


def lives(site: Site) -> Json:
    """What no step of a release's life may change: pods, their containers, and their jobs."""
    said = ("phase", "generation", "restarts", "assignment", "ready", "startedAt")
    pods = {
        pod["metadata"]["name"]: (pod["metadata"]["uid"], containers(pod))
        for pod in site.kube.list("pods", site.namespace)
    }
    jobs = {
        job["metadata"]["name"]: {field: job["status"].get(field) for field in said}
        for job in site.kube.list("trainingjobs", site.namespace)
    }
    return {"pods": pods, "jobs": jobs}


def containers(pod: Json) -> dict[str, Any]:
    """The containers as they run now."""
    return {each["name"]: each["containerID"] for each in pod["status"]["containerStatuses"]}


def signing_key(kube: Kube) -> tuple[str, Json]:
    """What all jobs' tokens are derived from."""
    secret = kube.get("secrets", KEY, SYSTEM_NAMESPACE)
    return secret["metadata"]["uid"], secret["data"]


def variables(kube: Kube) -> dict[str, str]:
    """The environment of the operators."""
    deployment = kube.get("deployments", DEPLOYMENT, SYSTEM_NAMESPACE)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def revision(cluster: Cluster) -> int:
    """The release's."""
    lines = install.helm(cluster, "history", RELEASE, "--max=1", say=print).splitlines()
    return int(lines[-1].split()[0])


def of_the_release(cluster: Cluster) -> set[str]:
    """Every object that carries the release's label, in all namespaces."""
    labels = f"app.kubernetes.io/instance={RELEASE}"
    command = ("get", ",".join(KINDS), "--all-namespaces", f"--selector={labels}", "--output=name")
    return set(kubectl(cluster, *command).split())
