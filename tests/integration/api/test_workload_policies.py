"""What the chart asks of workloads that wait for a queue, in force on a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml

from drumline.controller.workloads.conversion import PlacesFound
from drumline.controller.workloads.resumed import resumed, suspended_again
from drumline.kube.workload_kinds import OTHER_KINDS, at, parts_of
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.load import parse
from tests import workload_crds
from tests.integration.api.conftest import Helm, Kubectl, wait_until_established
from tests.integration.api.manifests import Json
from tests.integration.api.test_chart_policies import (
    QUEUE,
    Submitter,
    gated_notebook,
    in_force,
    namespace,
    notebook,
    role,
    workload,
)
from tools.cluster.go_modules import module_source

pytestmark = pytest.mark.extended(keep=1)

__all__ = ["namespace"]  # a fixture

JOB_SET_VERSION = "0.11.0"
MARK = "drumline.dev/admitted"
CONTROLLER = "system:serviceaccount:jobset-system:jobset-controller-manager"
ADMISSION = ("foreignPods.enabled", "foreignPods.admission.enabled")
ANY = {"apiGroups": ["", "batch", "jobset.x-k8s.io"], "resources": ["*"], "verbs": ["*"]}


@pytest.fixture
def job_sets(kubectl: Kubectl) -> None:
    """JobSets are there, by the schema of their CRD."""
    crds = module_source("sigs.k8s.io/jobset", JOB_SET_VERSION) / "config/components/crd/bases"
    crd = crds / "jobset.x-k8s.io_jobsets.yaml"
    kubectl("apply", "--server-side", "--force-conflicts", f"--filename={crd}")
    wait_until_established(kubectl)


def waiting_job(**spec: object) -> Json:
    """A suspended Job that names a queue."""
    job = json.loads(workload("Job", queue="research"))
    job["metadata"]["labels"] = {QUEUE: "research"}
    job["spec"] |= spec
    return job


def waiting_job_set(*parts: tuple[int, int]) -> str:
    """A suspended JobSet that names a queue, of so many Jobs of so many pods."""
    pod = waiting_job()["spec"]["template"]
    jobs = [
        {
            "name": f"part-{number}",
            "replicas": replicas,
            "template": {"spec": {"parallelism": pods, "template": pod}},
        }
        for number, (replicas, pods) in enumerate(parts)
    ]
    metadata = {"name": "set", "labels": {QUEUE: "research"}}
    kind = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata}
    return json.dumps({**kind, "spec": {"suspend": True, "replicatedJobs": jobs}})


@pytest.mark.usefixtures("job_sets")
def test_what_waits_has_no_more_pods_than_a_training_job(
    helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    with in_force(helm, kubectl, namespace, *ADMISSION, names=("-workloads",)):
        user = Submitter(kubectl, namespace)
        many = json.dumps(waiting_job(parallelism=2_147_483_647))
        assert "at most 10000 pods" in user.wait_for_refusal(many)
        assert user.refusal(json.dumps(waiting_job(parallelism=10_000))) == ""
        free = waiting_job(parallelism=10_001)
        free["metadata"]["labels"] = {"app": "any"}  # without any it gets those of its pods
        assert user.refusal(json.dumps(free)) == ""
        assert user.refusal(waiting_job_set((100, 99), (1, 100))) == ""
        for parts in (((5_000, 1), (5_001, 1)), ((10_001, 1),), ((1, 1),) * 33):
            assert "at most 10000 pods" in user.refusal(waiting_job_set(*parts))

        kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(waiting_job()))
        patch = ("patch", "job", "any", "-n", namespace, "--type=merge", "-p")
        with pytest.raises(AssertionError, match="at most 10000 pods"):
            kubectl(*patch, json.dumps({"spec": {"parallelism": 10_001}}))
        for metadata, refusal in (
            ({"annotations": {MARK: "{}"}}, "only the operator writes"),
            ({"labels": {QUEUE: "other"}}, "cannot change"),
        ):
            change = json.dumps({"metadata": metadata})
            with pytest.raises(AssertionError, match=refusal):
                kubectl(*patch, change, "--subresource=status")
        kubectl("delete", "job", "any", "-n", namespace, "--wait=false")


@pytest.mark.usefixtures("job_sets")
def test_a_job_set_that_a_job_only_names_as_its_owner_frees_it_of_no_rule(
    helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    as_controller = role("controls", ANY)
    as_controller[1]["subjects"][0]["name"] = CONTROLLER
    kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(as_controller))
    with in_force(helm, kubectl, namespace, *ADMISSION, names=("-workloads",)):
        user = Submitter(kubectl, namespace)
        user.wait_for_refusal(json.dumps(waiting_job(parallelism=10_001)))
        kubectl("create", "-n", namespace, "-f", "-", stdin=waiting_job_set((1, 1)))
        uid = kubectl("get", "jobset", "set", "-n", namespace, "-o", "jsonpath={.metadata.uid}")
        owner = {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "name": "set",
            "uid": uid,
            "controller": True,
        }
        child = waiting_job()
        child["metadata"]["ownerReferences"] = [owner]
        alone = "only the controller of JobSets"
        assert alone in user.refusal(json.dumps(child))
        marked = {**child, "metadata": {**child["metadata"], "annotations": {MARK: "{}"}}}
        controller = Submitter(kubectl, namespace, f"--as={CONTROLLER}")
        for sender in (user, controller):
            assert "only the operator writes" in sender.refusal(json.dumps(marked))

        creation = ("create", "-n", namespace, "-f", "-")
        kubectl(*creation, f"--as={CONTROLLER}", stdin=json.dumps(child))
        patch = ("patch", "job", "any", "-n", namespace, "--type=merge", "-p")
        for metadata, refusal in (
            ({"ownerReferences": None}, alone),
            ({"annotations": {MARK: "{}"}}, "only the operator writes"),
        ):
            with pytest.raises(AssertionError, match=refusal):
                kubectl(*patch, json.dumps({"metadata": metadata}))
        resume = json.dumps({"spec": {"suspend": False}})
        kubectl(*patch, resume, f"--as={CONTROLLER}", "--dry-run=server")
        kubectl("delete", "job", "any", "-n", namespace, "--wait=false")
        own = waiting_job()
        own["metadata"]["name"] = "own"
        kubectl(*creation, stdin=json.dumps(own))
        patch = ("patch", "job", "own", "-n", namespace, "--type=merge", "-p")
        with pytest.raises(AssertionError, match=alone):
            kubectl(*patch, json.dumps({"metadata": {"ownerReferences": [owner]}}))
        kubectl("delete", "jobset", "set", "-n", namespace, "--wait=false")


def test_who_waits_by_a_priority_needs_the_right_to_it(
    helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    queues = {"apiGroups": ["drumline.dev"], "resources": ["trainingqueues"]}
    usual = {
        "apiGroups": ["scheduling.k8s.io"],
        "resources": ["priorityclasses"],
        "resourceNames": ["system-node-critical"],
    }
    roles = yaml.safe_dump_all([*role("submits", ANY), *role("uses", queues, usual)])
    kubectl("apply", "-n", namespace, "-f", "-", stdin=roles)
    values = (*ADMISSION, "queueRights.enabled")

    def with_class(text: str, name: str) -> str:
        body = json.loads(text)
        spec = body["spec"]["template"]["spec"] if body["kind"] == "Job" else body["spec"]
        spec["priorityClassName"] = name
        return json.dumps(body)

    with in_force(helm, kubectl, namespace, *values, names=("-template-rights",)):
        jane = Submitter(kubectl, namespace, "--as=jane")
        other = "system-cluster-critical"
        refusal = f"may not use PriorityClass {other}"
        waits = json.dumps(waiting_job())
        assert refusal in jane.wait_for_refusal(with_class(waits, other))
        assert refusal in jane.refusal(with_class(gated_notebook(), other))
        for text in (waits, gated_notebook()):
            assert jane.refusal(with_class(text, "system-node-critical")) == ""
            assert jane.refusal(text) == ""
        # in no line, so its class is kube-scheduler's matter
        assert jane.refusal(with_class(notebook(queue="research"), other)) == ""


@pytest.mark.parametrize("kind", ["RayCluster", "PyTorchJob"])
def test_what_ray_and_kubeflow_make_is_the_operator_s_to_resume_and_nothing_else(
    helm: Helm, kubectl: Kubectl, namespace: str, kind: str
) -> None:
    kubectl("apply", "-f", "-", stdin=json.dumps(workload_crds.crd(kind)))
    wait_until_established(kubectl)
    plural = f"{kind.lower()}s"
    body = workload_crds.suspended(
        kind,
        pod=waiting_job()["spec"]["template"],
        metadata={"name": "work", "labels": {QUEUE: "research"}},
    )
    operator = f"system:serviceaccount:elsewhere:{namespace}-drumline-operator"
    as_operator = role("operates", {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]})
    as_operator[1]["subjects"][0]["name"] = operator
    kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(as_operator))
    names = (f"operator-{plural}", f"resumed-{plural}")
    values = (*ADMISSION, f"foreignPods.admission.kinds={{{kind}}}")
    with in_force(helm, kubectl, namespace, *values, names=names):
        user = Submitter(kubectl, namespace)
        marked = json.loads(json.dumps(body))
        marked["metadata"]["annotations"] = {MARK: "{}"}
        assert "only the operator writes" in user.wait_for_refusal(json.dumps(marked))
        without = json.loads(json.dumps(body))
        *_, template = (part.template for part in parts_of(OTHER_KINDS[kind], without))
        template["metadata"]["labels"] = {"app": "any"}
        assert "in the labels of its pods too" in user.refusal(json.dumps(without))
        kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(body))

        stored = json.loads(kubectl("get", plural, "work", "-n", namespace, "-o", "json"))
        replace = ("replace", "-n", namespace, "--dry-run=server", "-f", "-")
        row = OTHER_KINDS[kind]
        resumed_by_hand = json.loads(json.dumps(stored))
        at(resumed_by_hand, row.suspend[:-1])["suspend"] = False
        with pytest.raises(AssertionError, match="only the operator resumes"):
            kubectl(*replace, stdin=json.dumps(resumed_by_hand))
        other = json.loads(json.dumps(stored))
        other["metadata"]["labels"][QUEUE] = "other"
        with pytest.raises(AssertionError, match="cannot change"):
            kubectl(*replace, stdin=json.dumps(other))

        pools = {"gpus": parse(GpuPoolSpec, {"nodeSelector": {"gpu": "h100"}}, at="spec")}
        places = {part.name: PlacesFound(pool="gpus", nodes={}) for part in parts_of(row, stored)}
        made = resumed(stored, resource=row.resource, places=places, pools=pools)
        assert made is not None
        kubectl(*replace, f"--as={operator}", stdin=json.dumps(made))
        *_, part = parts_of(row, made)
        part.template["spec"]["containers"][0]["image"] = "mine:1"
        with pytest.raises(AssertionError, match="can change only"):
            kubectl(*replace, f"--as={operator}", stdin=json.dumps(made))

        made = resumed(stored, resource=row.resource, places=places, pools=pools)
        as_its_own = ("replace", "-n", namespace, f"--as={operator}", "-o", "json", "-f", "-")
        runs = json.loads(kubectl(*as_its_own, stdin=json.dumps(made)))
        back = suspended_again(runs, resource=row.resource)
        waits = json.loads(kubectl(*as_its_own, stdin=json.dumps(back)))
        for before, after in zip(parts_of(row, stored), parts_of(row, waits), strict=True):
            spec = before.template["spec"]
            assert after.template["spec"] == {**spec, "nodeSelector": spec.get("nodeSelector", {})}
        kubectl("delete", plural, "work", "-n", namespace, "--wait=false")


RAY = "system:serviceaccount:ray-system:kuberay-operator"


def waiting(kind: str, *, name: str = "work", queue: str = "research") -> Json:
    """A suspended object of a kind that names a queue."""
    pod = waiting_job()["spec"]["template"]
    pod["metadata"]["labels"] = {QUEUE: queue}
    metadata = {"name": name, "labels": {QUEUE: queue}}
    return json.loads(json.dumps(workload_crds.suspended(kind, pod=pod, metadata=metadata)))


RAY_JOB = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "work", "uid": "u"}
CONTROLS = RAY_JOB | {"controller": True}
BY_HAND, MARKED = "make a RayJob or RayService the owner", "only the operator writes"


def made_cluster(owner: Json | None, *, mark: bool = False, name: str = "work-abcde") -> Json:
    """A RayCluster that runs, as KubeRay makes it: with labels and annotations of its owner."""
    made = waiting("RayCluster", name=name)
    made["spec"]["suspend"] = False
    made["metadata"]["annotations"] = {MARK: "{}"} if mark else {}
    made["metadata"]["ownerReferences"] = [owner] if owner else []
    return made


@pytest.fixture
def ray_job_policies(helm: Helm, kubectl: Kubectl, namespace: str) -> Iterator[None]:
    """RayClusters and RayJobs wait; KubeRay is known."""
    for kind in ("RayCluster", "RayJob"):
        kubectl("apply", "-f", "-", stdin=json.dumps(workload_crds.crd(kind)))
    wait_until_established(kubectl)
    as_controller = role("controls", {"apiGroups": ["ray.io"], "resources": ["*"], "verbs": ["*"]})
    as_controller[1]["subjects"][0]["name"] = RAY
    kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(as_controller))
    values = (
        *ADMISSION,
        "foreignPods.admission.kinds={RayCluster,RayJob}",
        f"foreignPods.controllers={{{RAY}}}",
    )
    with in_force(helm, kubectl, namespace, *values, names=("operator-rayclusters",)):
        Submitter(kubectl, namespace).wait_for_refusal(
            json.dumps(made_cluster(CONTROLS, mark=True))
        )
        yield


@pytest.mark.usefixtures("ray_job_policies")
def test_whose_a_ray_cluster_is_and_its_mark_are_the_controller_s_to_write(
    kubectl: Kubectl, namespace: str
) -> None:
    """What a user could be charged less for, and what KubeRay does for a RayJob that was let go."""
    service = CONTROLS | {"kind": "RayService"}
    senders = {
        "user": Submitter(kubectl, namespace),
        "ray": Submitter(kubectl, namespace, f"--as={RAY}"),
    }
    for sender, owner, mark, refusal in (
        ("user", None, False, ""),
        ("user", RAY_JOB, False, ""),
        ("user", CONTROLS, False, BY_HAND),
        ("user", service, False, BY_HAND),
        ("user", CONTROLS, True, MARKED),
        ("ray", CONTROLS, False, ""),
        ("ray", CONTROLS, True, ""),
        ("ray", service, False, ""),
        ("ray", service, True, MARKED),  # its author wrote the mark: no RayService waits
        ("ray", None, True, MARKED),
        ("ray", RAY_JOB, True, MARKED),
        ("ray", CONTROLS | {"kind": "Other"}, True, MARKED),
    ):
        said = senders[sender].refusal(json.dumps(made_cluster(owner, mark=mark)))
        assert refusal in said if refusal else said == "", (sender, owner, mark)


@pytest.mark.usefixtures("ray_job_policies")
def test_no_ray_cluster_changes_whose_it_is(kubectl: Kubectl, namespace: str) -> None:
    """One that was let go would be charged no more; one that is charged would be let go."""
    job = json.dumps(waiting("RayJob"))
    kubectl("create", "-n", namespace, "-f", "-", stdin=job)
    uid = kubectl("get", "rayjob", "work", "-n", namespace, "-o", "jsonpath={.metadata.uid}")
    owner = CONTROLS | {"uid": uid}
    creation = ("create", "-n", namespace, "-f", "-")
    kubectl(*creation, stdin=json.dumps(made_cluster(None, name="own")))
    child = json.dumps(made_cluster(owner, mark=True, name="child"))
    kubectl(*creation, f"--as={RAY}", stdin=child)
    for name, owners in (
        ("own", [owner]),
        ("child", None),
        ("child", [owner | {"controller": False}]),
    ):
        patch = json.dumps({"metadata": {"ownerReferences": owners}})
        with pytest.raises(AssertionError, match=BY_HAND):
            kubectl("patch", "raycluster", name, "-n", namespace, "--type=merge", "-p", patch)
    other = json.dumps({"metadata": {"labels": {"mine": "1"}}})
    for name in ("own", "child"):
        kubectl("patch", "raycluster", name, "-n", namespace, "--type=merge", "-p", other)
        kubectl("delete", "raycluster", name, "-n", namespace, "--wait=false")
    kubectl("delete", "rayjob", "work", "-n", namespace, "--wait=false")


def with_pods(kind: str, pods: int, **fields: object) -> str:
    """One that waits, with so many pods in its last part, and these fields there."""
    body = waiting(kind)
    *_, last = (part.body for part in parts_of(OTHER_KINDS[kind], body))
    most = {"maxReplicas": 10_000} if "maxReplicas" in last else {}
    last |= {"replicas": pods, **most, **fields}
    return json.dumps(body)


def test_of_every_kind_no_more_waits_than_of_jobs_and_its_author_needs_the_rights(
    helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    for kind in OTHER_KINDS:
        kubectl("apply", "-f", "-", stdin=json.dumps(workload_crds.crd(kind)))
    wait_until_established(kubectl)
    any_kind = {"apiGroups": ["ray.io", "kubeflow.org"], "resources": ["*"], "verbs": ["*"]}
    queues = {
        "apiGroups": ["drumline.dev"],
        "resources": ["trainingqueues"],
        "resourceNames": ["research"],
    }
    roles = yaml.safe_dump_all([*role("submits", any_kind), *role("uses", queues)])
    kubectl("apply", "-n", namespace, "-f", "-", stdin=roles)
    values = (
        *ADMISSION,
        "queueRights.enabled",
        f"foreignPods.admission.kinds={{{','.join(OTHER_KINDS)}}}",
    )
    policies = [f"operator-{kind.lower()}s" for kind in OTHER_KINDS]
    with in_force(helm, kubectl, namespace, *values, names=("-template-rights", *policies)):
        jane = Submitter(kubectl, namespace, "--as=jane")
        for kind in OTHER_KINDS:
            refused = jane.wait_for_refusal(json.dumps(waiting(kind, queue="other")))
            assert "may not use TrainingQueue other" in refused
            many = with_pods(kind, 10_000)
            assert "at most 10000 pods" in jane.wait_for_refusal(many)
            high = waiting(kind)
            *_, part = parts_of(OTHER_KINDS[kind], high)
            part.template["spec"]["priorityClassName"] = "system-node-critical"
            refused = jane.refusal(json.dumps(high))
            assert "may not use PriorityClass system-node-critical" in refused
            assert jane.refusal(with_pods(kind, 9_999)) == ""
        for pods, field, number in ((2, "numOfHosts", 5_000), (0, "minReplicas", 10_000)):
            ray = with_pods("RayCluster", pods, **{field: number})
            assert "at most 10000 pods" in jane.refusal(ray)
