"""What is no TrainingJob waits until its queue has room, with the chart's rights.

Pods at our gate, Jobs on the real controller manager, JobSets by the schema of their real CRD, and
Ray's and Kubeflow's workloads by CRDs transcribed from theirs; these controllers do not run here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from drumline.kube.workload_kinds import OTHER_KINDS, at, parts_of
from tests import workload_crds
from tests.integration.operator.chart_rights import operator_policy, token_of
from tests.integration.operator.conftest import LOG_LINES, Site, a_site
from tests.integration.operator.proxy import Proxy
from tests.kube import Json, Kube, phase_is, reason_is
from tests.operator_process import OperatorProcess, is_established
from tools.cluster.binaries import MODULES
from tools.cluster.go_modules import module_source

pytestmark = pytest.mark.extended(keep=1)

GATE = {"name": "drumline.dev/queue"}
KINDS = ("RayCluster", "RayJob", "PyTorchJob", "MPIJob")
VALUES = (
    "foreignPods.enabled=true",
    "foreignPods.admission.enabled=true",
    f"foreignPods.admission.kinds={{{','.join(KINDS)}}}",
)


@pytest.fixture(scope="module")
def admitting(
    api: Kube,
    session_operator: OperatorProcess,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Proxy]:
    """An operator that opens gates, with the chart's rights, behind a proxy; JobSets are there."""
    crds = module_source(*MODULES["jobset"]) / "config/components/crd/bases"
    api.ensure(yaml.safe_load((crds / "jobset.x-k8s.io_jobsets.yaml").read_text()))
    api.wait("customresourcedefinitions", "jobsets.jobset.x-k8s.io", None, is_established)
    for kind in KINDS:
        made = workload_crds.crd(kind)
        api.ensure(made)
        name = made["metadata"]["name"]
        api.wait("customresourcedefinitions", name, None, is_established)
    if session_operator.process is not None:
        session_operator.stop()
    folder = tmp_path_factory.mktemp("admitting")
    with (
        operator_policy(api, *VALUES),
        token_of(api, "drumline-operator", *VALUES) as token,
        Proxy(api.kubeconfig, folder, token=token) as proxy,
    ):
        settings = {
            "DRUMLINE_ADMIT_WORKLOADS": "true",
            "DRUMLINE_WORKLOAD_KINDS": ",".join(KINDS),
        }
        operator = OperatorProcess(kubeconfig=proxy.kubeconfig, folder=folder, settings=settings)
        operator.start()
        try:
            yield proxy
        finally:
            operator.stop()
            if request.session.testsfailed:
                print(*operator.log[-LOG_LINES:], sep="\n")


@pytest.fixture
def site(api: Kube, admitting: Proxy) -> Iterator[Site]:
    with a_site(api) as made:
        yield made
    assert admitting.refused == []


def gated(site: Site, name: str, *, gpus: int = 2, size: int = 0, **spec: Any) -> None:
    """A pod that waits at the gate, alone or in a group of that size."""
    labels = {"drumline.dev/queue": site.queue}
    annotations = {}
    if size:
        labels["drumline.dev/pod-group"] = "group"
        annotations["drumline.dev/pod-group-size"] = str(size)
    limits = {"nvidia.com/gpu": str(gpus)}
    container = {"name": "c", "image": "any:1", "resources": {"limits": limits}}
    site.kube.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": site.namespace,
                "labels": labels,
                "annotations": annotations,
            },
            "spec": {"schedulingGates": [GATE], "containers": [container], **spec},
        }
    )


def limit_queue(site: Site, gpus: int) -> None:
    spec = {"quotas": [{"gpuPool": site.pool, "nominalGpus": gpus}]}
    site.kube.patch("trainingqueues", site.queue, {"spec": spec})


def is_open(pod: Json | None) -> bool:
    return pod is not None and not pod["spec"].get("schedulingGates")


def foreign_gpus(queue: Json | None) -> int:
    usage = (queue or {}).get("status", {}).get("usage") or [{}]
    return usage[0].get("foreignGpus", 0)


def wait_open(site: Site, name: str) -> Json:
    pod = site.kube.wait("pods", name, site.namespace, is_open)
    assert pod is not None
    return pod


def wait_for_event(site: Site, name: str, reason: str) -> str:
    """What the pod's first event with this reason says."""

    def about(event: Json) -> bool:
        return event["involvedObject"]["name"] == name and event["reason"] == reason

    events = site.kube.wait_all("events", site.namespace, lambda events: any(map(about, events)))
    return next(event["message"] for event in events if about(event))


def test_a_pod_waits_at_the_gate_and_is_charged_from_when_it_opens(site: Site) -> None:
    limit_queue(site, 8)
    site.submit("first", gpusPerNode=8)
    site.wait("first", phase_is("Running"))
    gated(site, "notebook")
    why = wait_for_event(site, "notebook", "QuotaExhausted")
    assert f"{site.namespace}/first (8)" in why
    assert not is_open(site.kube.get("pods", "notebook", site.namespace))

    site.kube.delete("trainingjobs", "first", site.namespace)
    pod = wait_open(site, "notebook")
    assert pod["spec"]["nodeSelector"] == {"drumline.test/site": site.namespace}
    site.submit("second", gpusPerNode=8)
    second = site.wait("second", reason_is("QuotaExhausted"))
    assert f"held by {site.namespace}/pods/notebook (2)" in second["status"]["message"]
    site.kube.wait("trainingqueues", site.queue, None, lambda queue: foreign_gpus(queue) == 2)
    site.kube.delete("pods", "notebook", site.namespace, grace=0)
    site.wait("second", phase_is("Running"))


def test_a_group_of_pods_is_let_go_as_a_whole_or_not_at_all(site: Site) -> None:
    """Two sizes of pods; the first two wait for the third, then all of them for a job."""
    site.submit("job", nodes=3, gpusPerNode=8)
    site.wait("job", phase_is("Running"))
    for name in ("a", "b"):
        gated(site, name, gpus=4, size=3)
    assert "of 3 pods exist" in wait_for_event(site, "a", "WaitingForGroup")
    gated(site, "c", gpus=8, size=3)
    assert wait_for_event(site, "a", "QuotaExhausted")
    pods = site.kube.list("pods", site.namespace, labels="drumline.dev/pod-group=group")
    assert not any(map(is_open, pods))
    site.kube.delete("trainingjobs", "job", site.namespace)
    for name in ("a", "b", "c"):
        wait_open(site, name)
    site.kube.wait("trainingqueues", site.queue, None, lambda queue: foreign_gpus(queue) == 16)


def template(site: Site, *, gpus: int) -> Json:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    container = {"name": "c", "image": "any:1", "resources": {"limits": limits}}
    return {
        "metadata": {"labels": {"drumline.dev/queue": site.queue}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


def suspended(site: Site, kind: str, version: str, **spec: Any) -> None:
    """A workload that waits for the queue."""
    labels = {"drumline.dev/queue": site.queue}
    metadata = {"name": "work", "namespace": site.namespace, "labels": labels}
    body = {"apiVersion": version, "kind": kind, "metadata": metadata}
    site.kube.create({**body, "spec": {"suspend": True, **spec}})


def is_resumed(workload: Json | None) -> bool:
    return workload is not None and not workload["spec"]["suspend"]


def test_a_suspended_job_is_resumed_whole_and_charged(api: Kube, admitting: Proxy) -> None:
    """Its pods are made, and no kubelet accepts them: all of it stays reserved."""
    with a_site(api, silent=True) as site:
        limit_queue(site, 16)
        work = {"parallelism": 3, "completions": 3, "template": template(site, gpus=8)}
        suspended(site, "Job", "batch/v1", **work)
        assert "24" in wait_for_event(site, "work", "ExceedsQuota")
        assert not is_resumed(site.kube.get("jobs", "work", site.namespace))
        limit_queue(site, 32)
        job = site.kube.wait("jobs", "work", site.namespace, is_resumed)
        assert job is not None
        pods = site.kube.wait_all(
            "pods", site.namespace, lambda pods: len(pods) == 3, labels="job-name=work"
        )
        for pod in pods:
            assert pod["metadata"]["labels"]["drumline.dev/workload"] == job["metadata"]["uid"]
            assert pod["spec"]["nodeSelector"] == {"drumline.test/site": site.namespace}
        site.kube.wait("trainingqueues", site.queue, None, lambda queue: foreign_gpus(queue) == 24)
        site.submit("next", nodes=2, gpusPerNode=8)
        next_job = site.wait("next", reason_is("QuotaExhausted"))
        assert "held by" in next_job["status"]["message"]
        site.kube.delete("jobs", "work", site.namespace)
    assert admitting.refused == []


def test_a_suspended_job_set_is_resumed_whole_and_charged(site: Site) -> None:
    """Its driver needs no GPU; nobody makes its Jobs here, so all of it stays reserved."""
    workers = {"parallelism": 2, "completions": 2, "template": template(site, gpus=8)}
    parts = [
        {"name": "driver", "template": {"spec": {"template": template(site, gpus=0)}}},
        {"name": "workers", "replicas": 2, "template": {"spec": workers}},
    ]
    limit_queue(site, 24)
    suspended(site, "JobSet", "jobset.x-k8s.io/v1alpha2", replicatedJobs=parts)
    assert "32" in wait_for_event(site, "work", "ExceedsQuota")
    limit_queue(site, 32)
    work = site.kube.wait("jobsets", "work", site.namespace, is_resumed)
    assert work is not None
    driver, made = (each["template"]["spec"]["template"] for each in work["spec"]["replicatedJobs"])
    assert "nodeSelector" not in driver["spec"]
    assert made["spec"]["nodeSelector"] == {"drumline.test/site": site.namespace}
    assert made["metadata"]["labels"]["drumline.dev/workload-part"] == "workers"
    site.kube.wait("trainingqueues", site.queue, None, lambda queue: foreign_gpus(queue) == 32)
    site.kube.delete("jobsets", "work", site.namespace)
    site.kube.wait("trainingqueues", site.queue, None, lambda queue: foreign_gpus(queue) == 0)


@pytest.mark.parametrize("kind", KINDS)
def test_what_ray_and_kubeflow_make_is_resumed_whole_and_charged(site: Site, kind: str) -> None:
    """A pod without GPUs and two with eight; nobody makes them here, so they stay reserved."""
    metadata = {
        "name": "work",
        "namespace": site.namespace,
        "labels": {"drumline.dev/queue": site.queue},
    }
    plural = f"{kind.lower()}s"
    site.kube.create(workload_crds.suspended(kind, pod=template(site, gpus=8), metadata=metadata))

    def is_let_go(body: Json | None) -> bool:
        marked = (body or {}).get("metadata", {}).get("annotations", {})
        return "drumline.dev/admitted" in marked

    work = site.kube.wait(plural, "work", site.namespace, is_let_go)
    assert work is not None
    row = OTHER_KINDS[kind]
    assert at(work, row.suspend) is False
    first, second = parts_of(row, work)
    assert "nodeSelector" not in first.template["spec"]
    assert second.template["spec"]["nodeSelector"] == {"drumline.test/site": site.namespace}
    labels = second.template["metadata"]["labels"]
    assert labels["drumline.dev/workload"] == work["metadata"]["uid"]
    assert labels["drumline.dev/workload-part"] == second.name
    site.kube.wait("trainingqueues", site.queue, None, lambda queue: foreign_gpus(queue) == 16)
    site.kube.delete(plural, "work", site.namespace)
    site.kube.wait("trainingqueues", site.queue, None, lambda queue: foreign_gpus(queue) == 0)


def stop_queue(site: Site, policy: str) -> None:
    site.kube.patch("trainingqueues", site.queue, {"spec": {"stopPolicy": policy}})


def is_taken_back(job: Json | None) -> bool:
    marks = (job or {}).get("metadata", {}).get("annotations", {})
    return job is not None and job["spec"]["suspend"] and "drumline.dev/admitted" not in marks


def test_a_job_of_a_drained_queue_is_suspended_again_and_one_that_its_owner_suspends_stays_so(
    api: Kube, admitting: Proxy
) -> None:
    """No kubelet accepts its pods, so that it does not end; they are gone once they are deleted."""
    with a_site(api, silent=True) as site:
        pod = template(site, gpus=8)
        pod["spec"]["terminationGracePeriodSeconds"] = 0
        suspended(site, "Job", "batch/v1", parallelism=2, completions=2, template=pod)
        site.kube.wait("jobs", "work", site.namespace, is_resumed)
        stop_queue(site, "HoldAndDrain")
        site.kube.wait("jobs", "work", site.namespace, is_taken_back)
        assert "is drained" in wait_for_event(site, "work", "QueueStopped")
        site.kube.wait("trainingqueues", site.queue, None, lambda queue: foreign_gpus(queue) == 0)
        stop_queue(site, "None")
        site.kube.wait("jobs", "work", site.namespace, is_resumed)

        site.kube.patch("jobs", "work", {"spec": {"suspend": True}}, namespace=site.namespace)
        site.kube.wait("trainingqueues", site.queue, None, lambda queue: foreign_gpus(queue) == 0)
        gated(site, "later")
        wait_open(site, "later")  # a cycle has passed that had room for the Job
        assert not is_resumed(site.kube.get("jobs", "work", site.namespace))
        take_off = {"metadata": {"annotations": {"drumline.dev/admitted": None}}}
        site.kube.patch("jobs", "work", take_off, namespace=site.namespace)
        site.kube.wait("jobs", "work", site.namespace, is_resumed)
        site.kube.delete("jobs", "work", site.namespace)
        site.kube.delete("pods", "later", site.namespace, grace=0)
    assert admitting.refused == []
