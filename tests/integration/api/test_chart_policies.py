"""Admission policies of the chart that are off by default, in force on a real API server."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.integration.api.conftest import ROOT, Helm, Kubectl
from tests.integration.api.manifests import Json, manifest
from tests.patience import HANG_SECONDS

pytestmark = pytest.mark.extended(keep=1)

CHART = ROOT / "helm/drumline"
QUEUE = "drumline.dev/queue"
POLICIES = ("-foreign-pods", "-closed-queues")


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    name = f"policy-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    kubectl("wait", "--for=create", "serviceaccount/default", "-n", name, "--timeout=60s")
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def notebook(*, queue: str = "", gpus: int | None = 1, resource: str = "nvidia.com/gpu") -> str:
    limits = {} if gpus is None else {resource: str(gpus)}
    labels = {"drumline.dev/queue": queue} if queue else {}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "notebook", "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "any:1", "resources": {"limits": limits}}]},
    }
    return json.dumps(pod)


def queues_of(namespace: str) -> dict[str, Json]:
    """Queues that are open to all, to this namespace by name or labels, and to others."""
    own = {"kubernetes.io/metadata.name": namespace}
    key = "kubernetes.io/metadata.name"
    opens: dict[str, Json] = {
        "all": {},
        "ours": {"namespaces": [namespace]},
        "theirs": {"namespaces": ["another"]},
        "labelled": {"namespaceSelector": {"matchLabels": own}},
        "also-labelled": {
            "namespaces": ["another"],
            "namespaceSelector": {
                "matchExpressions": [
                    {"key": key, "operator": "In", "values": ["another", namespace]},
                    {"key": key, "operator": "NotIn", "values": ["another"]},
                    {"key": key, "operator": "Exists"},
                    {"key": "absent", "operator": "NotIn", "values": ["another"]},
                    {"key": "absent", "operator": "DoesNotExist"},
                ]
            },
        },
        "otherwise-labelled": {"namespaceSelector": {"matchLabels": {**own, "absent": ""}}},
        "unlabelled": {
            "namespaceSelector": {"matchExpressions": [{"key": key, "operator": "DoesNotExist"}]}
        },
    }
    return {
        name: {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "TrainingQueue",
            "metadata": {"name": f"{namespace}-{name}"},
            "spec": {"quotas": [{"gpuPool": "any", "nominalGpus": 8}], **spec},
        }
        for name, spec in opens.items()
    }


class Submitter:
    """Sends pods and jobs to a namespace, as whom `options` of kubectl say."""

    def __init__(self, kubectl: Kubectl, namespace: str, *options: str) -> None:
        self._create = lambda text: kubectl(
            "create", "-n", namespace, *options, "--dry-run=server", "-f", "-", stdin=text
        )

    def refusal(self, text: str) -> str:
        """Why the API server would not take it; empty: it would."""
        return refusal_of(lambda: self._create(text))

    def wait_for_refusal(self, text: str) -> str:
        """The same once the policy is in force."""
        return wait_until_refused(lambda: self._create(text))


def refusal_of(attempt: Callable[[], object]) -> str:
    """What kubectl says of a request that is refused; empty: it is not."""
    try:
        attempt()
    except AssertionError as error:
        return str(error)
    return ""


def wait_until_refused(attempt: Callable[[], object]) -> str:
    """The same once a policy is in force: the API server does not say when that is."""
    deadline = time.monotonic() + HANG_SECONDS
    while not (refusal := refusal_of(attempt)):
        assert time.monotonic() < deadline, "the policy has no effect"
    return refusal


def wait_for_right(kubectl: Kubectl, namespace: str, user: str, verb: str, kind: str) -> None:
    """Until the API server knows of a role that was just bound: it does not say when that is."""
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        try:
            kubectl("auth", "can-i", verb, kind, "-n", namespace, f"--as={user}")
        except AssertionError:
            assert time.monotonic() < deadline, f"{user} may not {verb} {kind}"
        else:
            return


@contextmanager
def in_force(
    helm: Helm, kubectl: Kubectl, namespace: str, *values: str, names: tuple[str, ...]
) -> Iterator[None]:
    """What these values of the chart add, for one namespace alone."""
    settings = [f"--set={value if '=' in value else f'{value}=true'}" for value in values]
    settings.append("--set=imageRegistry=registry.example.com")
    template = ("template", namespace, CHART, "-n", "elsewhere", *settings)
    policies = [
        each
        for each in yaml.safe_load_all(helm(*template))
        if each and each["metadata"]["name"].endswith(names)
    ]
    assert len(policies) == 2 * len(names)
    policies += last_policy(namespace)
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    for policy in policies:
        if policy["kind"] == "ValidatingAdmissionPolicyBinding":
            policy["spec"]["matchResources"] = {"namespaceSelector": here}
    manifests = yaml.safe_dump_all(policies)
    kubectl("apply", "-f", "-", stdin=manifests)
    refused = json.dumps(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "refused-by-the-last"}}
    )
    try:
        Submitter(kubectl, namespace).wait_for_refusal(refused)
        yield
    finally:
        kubectl("delete", "-f", "-", stdin=manifests)


def last_policy(namespace: str) -> list[Json]:
    """Build a policy that refuses one ConfigMap, to apply after all others.

    The API server sees policies in the order of their creation. Once this one has an effect, all
    others have theirs.
    """
    name = f"{namespace}-last"
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["configmaps"],
        "resourceNames": ["refused-by-the-last"],
    }
    return [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"ValidatingAdmissionPolicy{kind}",
            "metadata": {"name": name},
            "spec": spec,
        }
        for kind, spec in (
            (
                "",
                {
                    "matchConstraints": {"resourceRules": [rule]},
                    "validations": [{"expression": "false", "message": "refused by the last"}],
                },
            ),
            ("Binding", {"policyName": name, "validationActions": ["Deny"]}),
        )
    ]


def test_with_the_policy_of_foreign_pods_an_open_queue_pays_for_gpus(
    helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    queues = queues_of(namespace)
    names = {name: queue["metadata"]["name"] for name, queue in queues.items()}
    manifests = yaml.safe_dump_all(queues.values())
    kubectl("apply", "-f", "-", stdin=manifests)
    with in_force(helm, kubectl, namespace, "foreignPods.enabled", names=POLICIES):
        user = Submitter(kubectl, namespace)
        assert "needs the label drumline.dev/queue" in user.wait_for_refusal(notebook())
        closed = user.wait_for_refusal(notebook(queue=names["theirs"]))
        assert f"{names['theirs']} is not open to namespace {namespace}" in closed
        assert user.refusal(notebook(gpus=None)) == ""
        assert user.refusal(notebook(gpus=0)) == ""
        for name in ("all", "labelled", "also-labelled"):
            assert user.refusal(notebook(queue=names[name])) == "", name
        for name in ("otherwise-labelled", "unlabelled"):
            assert "is not open to" in user.refusal(notebook(queue=names[name])), name

        kubectl("create", "-n", namespace, "-f", "-", stdin=notebook(queue=names["ours"]))
        other = json.dumps({"metadata": {"labels": {"drumline.dev/queue": names["all"]}}})
        with pytest.raises(AssertionError, match="cannot change"):
            kubectl("patch", "pod", "notebook", "-n", namespace, "-p", other)
        kubectl("label", "pod", "notebook", "-n", namespace, "other=label")
        kubectl("delete", "pod", "notebook", "-n", namespace, "--force")
    kubectl("delete", "-f", "-", stdin=manifests)


def test_a_label_that_a_queue_was_named_by_stays_by_every_way_to_write_it(
    helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    """Removed or changed, by way of the status, and by what binds the pod."""
    with in_force(helm, kubectl, namespace, "foreignPods.enabled", names=POLICIES):
        user = Submitter(kubectl, namespace)
        user.wait_for_refusal(notebook())
        kubectl("create", "-n", namespace, "-f", "-", stdin=notebook(queue="research"))
        change = ("patch", "pod", "notebook", "-n", namespace, "-p")
        for queue in ("other", None):
            patch = json.dumps({"metadata": {"labels": {QUEUE: queue}}})
            for options in ((), ("--subresource=status",)):
                with pytest.raises(AssertionError, match="cannot change"):
                    kubectl(*change, patch, *options)
        kubectl(*change, json.dumps({"status": {"reason": "Seen"}}), "--subresource=status")

        pods = f"/api/v1/namespaces/{namespace}/pods/notebook/binding"
        for field in ("labels", "annotations"):
            with pytest.raises(AssertionError, match="must not set labels or annotations"):
                kubectl("create", "--raw", pods, "-f", "-", stdin=binding(**{field: {QUEUE: "x"}}))
        kubectl("create", "--raw", pods, "-f", "-", stdin=binding(labels={"other": "label"}))
        kubectl("delete", "pod", "notebook", "-n", namespace, "--force")


def test_slices_of_gpus_are_gpus(helm: Helm, kubectl: Kubectl, namespace: str) -> None:
    """By the prefix of their resources: nobody has to list the profiles of MIG."""
    with in_force(helm, kubectl, namespace, "foreignPods.enabled", names=POLICIES):
        user = Submitter(kubectl, namespace)
        needs_label = "needs the label drumline.dev/queue"
        assert needs_label in user.wait_for_refusal(notebook())
        assert needs_label in user.refusal(notebook(resource="nvidia.com/mig-1g.10gb"))
        assert user.refusal(notebook(resource="nvidia.com/mig-1g.10gb", gpus=0)) == ""
        assert user.refusal(notebook(resource="example.com/nic")) == ""


def test_devices_that_may_be_gpus_under_another_name_are_refused(
    helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    values = (
        "foreignPods.enabled",
        "foreignPods.gpuResources={aws.com/core,nvidia.com/gpu}",
        "foreignPods.auxiliaryResources={aws.com/nic}",
    )
    with in_force(helm, kubectl, namespace, *values, names=POLICIES):
        user = Submitter(kubectl, namespace)
        user.wait_for_refusal(notebook(resource="aws.com/core"))
        assert "no quota counts aws.com/device" in user.refusal(
            notebook(queue="research", resource="aws.com/device")
        )
        for resource in ("aws.com/nic", "nvidia.com/hostdev", "example.com/fpga"):
            assert user.refusal(notebook(resource=resource)) == ""
        for resource in ("aws.com/core", "nvidia.com/mig-1g.10gb"):
            assert user.refusal(notebook(queue="research", resource=resource)) == ""


def test_no_toleration_and_no_node_of_its_own_gets_a_pod_to_promised_places(
    helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    everything, promised = {"operator": "Exists"}, {"key": "drumline.dev/promised"}

    def tolerating(*tolerations: Json, gpus: int | None = 1, **spec: Any) -> str:
        pod = json.loads(notebook(queue="research", gpus=gpus))
        pod["spec"] |= {"tolerations": tolerations, **spec}
        return json.dumps(pod)

    before = json.loads(tolerating(everything))
    before["metadata"]["name"] = "before"
    kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(before))
    values = ("foreignPods.enabled", "guardedPools={gpus}")
    with in_force(helm, kubectl, namespace, *values, names=POLICIES):
        user = Submitter(kubectl, namespace)
        neither = "must not tolerate the taint drumline.dev/promised"
        assert neither in user.wait_for_refusal(tolerating(everything))
        for toleration in (
            {**everything, "effect": "NoSchedule"},
            {**everything, **promised},
            {"operator": "Equal", "value": "x", **promised},
        ):
            assert neither in user.refusal(tolerating(toleration)), toleration
        for toleration in (
            {**everything, "effect": "NoExecute"},
            {**everything, "key": "nvidia.com/gpu"},
        ):
            assert user.refusal(tolerating(toleration)) == "", toleration
        assert user.refusal(tolerating(everything, gpus=None)) == ""
        assert "must not set nodeName" in user.refusal(tolerating(nodeName="nowhere"))

        kubectl("label", "pod", "before", "-n", namespace, "other=label")  # it stays as it was
        kubectl("create", "-n", namespace, "-f", "-", stdin=tolerating())
        value = {**everything, **promised}
        more = json.dumps([{"op": "add", "path": "/spec/tolerations/-", "value": value}])
        with pytest.raises(AssertionError, match=neither):
            kubectl("patch", "pod", "notebook", "-n", namespace, "--type=json", "-p", more)
        kubectl("delete", "pod", "before", "notebook", "-n", namespace, "--force")


def test_a_pod_gets_no_gpus_after_its_creation(kubectl: Kubectl, namespace: str) -> None:
    """The policy need not look: the API server has neither containers nor sizes with more GPUs."""
    kubectl("create", "-n", namespace, "-f", "-", stdin=notebook(gpus=None))
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    for subresource, spec in (
        ("resize", {"containers": [{"name": "c", **limits}]}),
        ("ephemeralcontainers", {"ephemeralContainers": [{"name": "e", "image": "a", **limits}]}),
    ):
        change = ("patch", "pod", "notebook", "-n", namespace, f"--subresource={subresource}")
        with pytest.raises(AssertionError, match=r"[Ff]orbidden|only cpu and memory"):
            kubectl(*change, "-p", json.dumps({"spec": spec}))
    kubectl("delete", "pod", "notebook", "-n", namespace, "--force")


def test_the_gate_and_the_mark_of_a_pod_are_the_operator_s(
    helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    """Others neither open a gate, nor mark a pod as let go, nor go past the gate with GPUs."""
    values = ("foreignPods.enabled", "foreignPods.admission.enabled")
    required = "foreignPods.admission.required"
    with in_force(helm, kubectl, namespace, *values, required, names=POLICIES):
        user = Submitter(kubectl, namespace)
        assert "needs the scheduling gate" in user.wait_for_refusal(notebook(queue="research"))
        assert user.refusal(notebook(gpus=None)) == ""
        marked = json.loads(notebook(gpus=None))
        marked["metadata"]["annotations"] = {"drumline.dev/admitted": "{}"}
        assert "only the operator writes" in user.refusal(json.dumps(marked))
        bound = json.loads(gated_notebook())
        bound["spec"]["nodeName"] = "nowhere"
        assert "until all schedulingGates" in user.refusal(json.dumps(bound))  # by the API server

        kubectl("create", "-n", namespace, "-f", "-", stdin=gated_notebook())
        patch = ("patch", "pod", "notebook", "-n", namespace)
        pods = f"/api/v1/namespaces/{namespace}/pods/notebook/binding"
        with pytest.raises(AssertionError, match="schedulingGates"):
            kubectl("create", "--raw", pods, "-f", "-", stdin=binding())
        for body, refusal in (
            ({"spec": {"schedulingGates": None}}, "only the operator removes the gate"),
            (
                {"metadata": {"annotations": {"drumline.dev/admitted": "{}"}}},
                "only the operator writes",
            ),
        ):
            with pytest.raises(AssertionError, match=refusal):
                kubectl(*patch, "--type=merge", "-p", json.dumps(body))
        kubectl("label", "pod", "notebook", "-n", namespace, "other=label")
        account = f"elsewhere:{namespace}-drumline-operator"
        operator = f"system:serviceaccount:{account}"
        admin = ("create", "clusterrolebinding", namespace, "--clusterrole=cluster-admin")
        kubectl(*admin, f"--serviceaccount={account}")
        try:
            wait_for_right(kubectl, namespace, operator, "patch", "pods")
            body = {"spec": {"schedulingGates": None}}
            kubectl(*patch, f"--as={operator}", "--type=merge", "-p", json.dumps(body))
        finally:
            kubectl("delete", "clusterrolebinding", namespace)
        kubectl("delete", "pod", "notebook", "-n", namespace, "--force")


def test_jobs_that_wait_are_the_operator_s_to_resume(
    helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    values = ("foreignPods.enabled", "foreignPods.admission.enabled")
    with in_force(helm, kubectl, namespace, *values, names=("-workloads",)):
        user = Submitter(kubectl, namespace)
        waits = json.loads(workload("Job", queue="research"))
        waits["metadata"]["labels"] = {QUEUE: "other"}
        assert "must name it in the labels of its pods" in user.wait_for_refusal(json.dumps(waits))
        waits["metadata"]["labels"] = {QUEUE: "research"}
        marked = {**waits["metadata"], "annotations": {"drumline.dev/admitted": "{}"}}
        refused = user.refusal(json.dumps({**waits, "metadata": marked}))
        assert "only the operator writes" in refused
        assert user.refusal(workload("Job", queue="research")) == ""  # its pods pay as any other

        kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(waits))
        patch = ("patch", "job", "any", "-n", namespace, "--type=merge", "-p")
        for body, refusal in (
            ({"spec": {"suspend": False}}, "only the operator resumes"),
            ({"metadata": {"labels": {QUEUE: "other"}}}, "cannot change"),
        ):
            with pytest.raises(AssertionError, match=refusal):
                kubectl(*patch, json.dumps(body))
        kubectl(*patch, json.dumps({"spec": {"parallelism": 2}}))
        kubectl("delete", "job", "any", "-n", namespace, "--wait=false")


def test_of_jobs_the_operator_changes_what_resuming_them_takes_and_nothing_else(
    helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    account = f"elsewhere:{namespace}-drumline-operator"
    admin = ("create", "clusterrolebinding", namespace, "--clusterrole=cluster-admin")
    kubectl(*admin, f"--serviceaccount={account}")
    values = ("foreignPods.enabled", "foreignPods.admission.enabled")
    try:
        with in_force(helm, kubectl, namespace, *values, names=("-resumed",)):
            job = json.loads(workload("Job", queue="research"))
            for name, labels in (("other", {"app": "any"}), ("any", {QUEUE: "research"})):
                job["metadata"] = {"name": name, "labels": labels}
                kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(job))
            operator = f"--as=system:serviceaccount:{account}"
            patch = ("patch", "-n", namespace, operator, "--type=merge", "-p")
            resume = {"spec": {"suspend": False}}
            other = ("job", "other", "--dry-run=server")
            refusal = wait_until_refused(lambda: kubectl(*patch, json.dumps(resume), *other))
            assert "only a Job or JobSet that waits" in refusal
            for change in (
                {"spec": {"parallelism": 0}},
                {"spec": {"template": {"spec": {"tolerations": [{"operator": "Exists"}]}}}},
                {"metadata": {"labels": {QUEUE: "other"}}},
            ):
                with pytest.raises(AssertionError, match="can change only suspend"):
                    kubectl(*patch, json.dumps(change), "job", "any")
            pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"nodeSelector": {"c": "d"}}}
            metadata = {"annotations": {"drumline.dev/admitted": "{}"}}
            whole = {"metadata": metadata, "spec": {"suspend": False, "template": pod}}
            kubectl(*patch, json.dumps(whole), "job", "any")
            with pytest.raises(AssertionError, match="only a Job or JobSet that waits"):
                kubectl(*patch, json.dumps({"spec": {"parallelism": 0}}), "job", "any")
            kubectl(*patch, json.dumps({"spec": {"suspend": True}}), "job", "any")  # taken back
            kubectl("delete", "job", "any", "other", "-n", namespace, "--wait=false")
    finally:
        kubectl("delete", "clusterrolebinding", namespace)


def owned(kind: str, name: str, owner: Json | None, **fields: Any) -> str:
    """A pod or Secret as the operator creates it, or nearly."""
    metadata = {"name": name, **({} if owner is None else {"ownerReferences": [owner]})}
    return json.dumps({"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields})


def probe(kind: str, owner: Json | None) -> str:
    """Return an object by which the operator asks whether its name is taken."""
    document = json.loads(owned(kind, "a", owner))
    document["metadata"]["labels"] = {"drumline.dev/dry-run": "true"}
    return json.dumps(document)


def test_the_operator_creates_pods_and_secrets_of_jobs_and_nothing_else(
    helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    account = f"elsewhere:{namespace}-drumline-operator"
    admin = ("create", "clusterrolebinding", namespace, "--clusterrole=cluster-admin")
    kubectl(*admin, f"--serviceaccount={account}")
    owner = {"apiVersion": "drumline.dev/v1alpha1", "name": "a", "uid": "u", "controller": True}
    job, pool = ({**owner, "kind": kind} for kind in ("TrainingJob", "GpuPool"))
    container = {"name": "c", "image": "any:1"}
    spec: Json = {"automountServiceAccountToken": False, "containers": [container]}

    def pod(owner: Json | None = job, **changes: Any) -> str:
        return owned("Pod", "a-0", owner, spec={**spec, **changes})

    def token(audience: str | None) -> Json:
        source = {"path": "token", **({} if audience is None else {"audience": audience})}
        return {"name": "t", "projected": {"sources": [{"serviceAccountToken": source}]}}

    def stored(text: str) -> None:
        kubectl(
            *("create", "-n", namespace, f"--as=system:serviceaccount:{account}", "-f", "-"),
            stdin=text,
        )

    account_token = {"kubernetes.io/service-account.name": "default"}
    stolen = json.loads(owned("Secret", "a-drumline-token", job))
    stolen["metadata"]["annotations"] = account_token
    stolen["type"] = "kubernetes.io/service-account-token"
    try:
        with in_force(helm, kubectl, namespace, names=("-created",)):
            user = Submitter(kubectl, namespace, f"--as=system:serviceaccount:{account}")
            of_jobs, tokens = "of TrainingJobs alone", "no pods with a token for the API server"
            assert of_jobs in user.wait_for_refusal(pod(None))
            for refused, why in (
                (pod(pool), of_jobs),
                (pod({**job, "controller": False}), of_jobs),
                (pod({**job, "apiVersion": "other.dev/v1"}), of_jobs),
                (pod(automountServiceAccountToken=True), tokens),
                (pod(automountServiceAccountToken=None), tokens),
                (pod(volumes=[token(None)]), tokens),
                (pod(volumes=[token("https://kubernetes.default.svc")]), tokens),
                *((pod(volumes=[token(audience)]), tokens) for audience in ("k3s", "rke2", "api")),
                (pod(volumes=[token("system:konnectivity-server")]), tokens),
                (pod(hostNetwork=True), "namespaces of the node"),
                (pod(hostPID=True), "namespaces of the node"),
                (pod(hostIPC=True), "namespaces of the node"),
                (owned("Secret", "a-drumline-token", None), of_jobs),
                (owned("Secret", f"{namespace}-drumline-signing-key", None), of_jobs),
                (owned("Secret", "a", job), "named ...-drumline-token alone"),
                (json.dumps(stolen), "named ...-drumline-token alone"),
            ):
                assert why in user.refusal(refused), refused
            probes = [probe("Secret", job), probe("ConfigMap", job)]
            for kept in probes:  # stored they would be somebody else's objects
                why = refusal_of(lambda text=kept: stored(text))
                assert "Drumline's operator creates" in why
            assert "creates no ConfigMaps" in user.refusal(owned("ConfigMap", "a", job))
            assert of_jobs in user.refusal(probe("Secret", None))
            for allowed in (
                *probes,
                pod(),
                pod(volumes=[token("sts.amazonaws.com")]),
                owned("Secret", "a-drumline-token", job),
            ):
                assert user.refusal(allowed) == ""
            kubectl("create", "configmap", "a", "-n", namespace)
            assert "already exists" in user.refusal(probe("ConfigMap", job))
            somebody = Submitter(kubectl, namespace)
            assert somebody.refusal(pod(None)) == ""
    finally:
        kubectl("delete", "clusterrolebinding", namespace)


def gated_notebook() -> str:
    pod = json.loads(notebook(queue="research"))
    pod["spec"]["schedulingGates"] = [{"name": QUEUE}]
    return json.dumps(pod)


def binding(**metadata: Json) -> str:
    """What a scheduler sends that places the pod."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "notebook", **metadata},
            "target": {"kind": "Node", "name": "nowhere"},
        }
    )


def role(name: str, *rules: Json) -> list[Json]:
    """Rights for jane in a namespace; a list as what binds them."""
    group = "rbac.authorization.k8s.io"
    return [
        {
            "apiVersion": f"{group}/v1",
            "kind": "Role",
            "metadata": {"name": name},
            "rules": [{"verbs": ["use"], **rule} for rule in rules],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "subjects": [{"kind": "User", "name": "jane", "apiGroup": group}],
            "roleRef": {"kind": "Role", "name": name, "apiGroup": group},
        },
    ]


def test_with_queue_rights_who_submits_may_use_the_queue_and_the_priority(
    helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    may_create = {"apiGroups": ["drumline.dev"], "resources": ["trainingjobs"], "verbs": ["*"]}
    research = {
        "apiGroups": ["drumline.dev"],
        "resources": ["trainingqueues"],
        "resourceNames": ["research"],
    }
    high = {
        "apiGroups": ["scheduling.k8s.io"],
        "resources": ["priorityclasses"],
        "resourceNames": ["high"],
    }
    roles = yaml.safe_dump_all([*role("submits", may_create), *role("uses", research, high)])
    kubectl("apply", "-n", namespace, "-f", "-", stdin=roles)
    with in_force(helm, kubectl, namespace, "queueRights.enabled", names=("-queue-rights",)):
        jane = Submitter(kubectl, namespace, "--as=jane")
        assert "jane may not use TrainingQueue other" in jane.wait_for_refusal(job(queue="other"))
        assert f"from namespace {namespace}" in jane.refusal(job(queue="other"))
        assert "may not use PriorityClass low" in jane.refusal(job(priorityClassName="low"))
        assert jane.refusal(job(priorityClassName="high")) == ""
        assert Submitter(kubectl, namespace).refusal(job(queue="other")) == ""  # an administrator

        kubectl("create", "-n", namespace, "--as=jane", "-f", "-", stdin=job())
        for change in ({"suspend": True}, {"priorityClassName": "high"}):
            patch = json.dumps({"spec": change})
            kubectl(
                "patch", "tj", "probe", "-n", namespace, "--as=jane", "--type=merge", "-p", patch
            )
        other = json.dumps({"spec": {"queue": "other"}})
        with pytest.raises(AssertionError, match="may not use TrainingQueue other"):
            kubectl(
                "patch", "tj", "probe", "-n", namespace, "--as=jane", "--type=merge", "-p", other
            )
        kubectl("delete", "tj", "probe", "-n", namespace)


def granting(name: str, *jobs: str, by: str = "jane", gpus: int = 1) -> str:
    """A queue with an override for each of these jobs."""
    overrides = [
        {"job": job, "until": "2100-01-01T00:00:00Z", "grantedBy": by, "reason": "launch"}
        for job in jobs
    ]
    spec = {"quotas": [{"gpuPool": "any", "nominalGpus": gpus}], "overrides": overrides}
    queue = {"apiVersion": "drumline.dev/v1alpha1", "kind": "TrainingQueue", "spec": spec}
    return json.dumps({**queue, "metadata": {"name": name}})


def test_an_override_is_granted_by_name_and_only_with_the_right(
    helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    edits = {"apiGroups": ["drumline.dev"], "resources": ["trainingqueues"]}
    rules = {name: {**edits, "verbs": verbs} for name, verbs in {
        "owner": ["get", "list", "create", "update", "patch"], "admin": ["*"]}.items()}  # fmt: skip
    objects: list[Json] = []
    for name, rule in rules.items():
        meta = {"name": f"{namespace}-{name}"}
        kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": meta}
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **meta}
        user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}
        objects.append({**kind, "kind": "ClusterRole", "rules": [rule]})
        objects.append({**kind, "kind": "ClusterRoleBinding", "roleRef": ref, "subjects": [user]})
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    queue = f"{namespace}-queue"
    try:
        with in_force(helm, kubectl, namespace, names=("-queue-overrides",)):
            owner = Submitter(kubectl, namespace, "--as=owner")
            admin = Submitter(kubectl, namespace, "--as=admin")
            assert "owner may not grant" in owner.wait_for_refusal(
                granting(queue, "a/b", by="owner")
            )
            assert "grantedBy must be admin" in admin.refusal(granting(queue, "a/b", by="jane"))
            assert owner.refusal(granting(queue)) == ""
            as_admin = ("apply", "--as=admin", "-f", "-")
            kubectl(*as_admin, stdin=granting(queue, "a/b", by="admin"))
            # A granted override stays as it is, and its queue may change.
            as_owner = ("apply", "--as=owner", "-f", "-")
            kubectl(*as_owner, stdin=granting(queue, "a/b", by="admin", gpus=2))
            longer = granting(queue, "a/b", by="admin").replace("2100", "2200")
            assert "may not grant" in refusal_of(lambda: kubectl(*as_owner, stdin=longer))
            more = granting(queue, "a/b", "a/c", by="admin")
            assert "may not grant" in refusal_of(lambda: kubectl(*as_owner, stdin=more))
            kubectl(*as_owner, stdin=granting(queue))
    finally:
        kubectl("delete", "trainingqueue", queue, "--ignore-not-found")
        for kind in ("clusterrole", "clusterrolebinding"):
            for name in rules:
                kubectl("delete", kind, f"{namespace}-{name}")


def workload(kind: str, *, queue: str) -> str:
    """A workload whose pods name a queue; one that makes none."""
    version = {"CronJob": "batch/v1", "Job": "batch/v1"}.get(kind, "apps/v1")
    labels = {"app": "any", QUEUE: queue}
    pod = {
        "metadata": {"labels": labels},
        "spec": {"restartPolicy": "Always", "containers": [{"name": "c", "image": "any:1"}]},
    }
    job: Json = {"suspend": True, "template": pod}
    if kind in ("Job", "CronJob"):
        pod["spec"]["restartPolicy"] = "Never"
    selector = {"matchLabels": {"app": "any"}}
    spec: Json = {
        "CronJob": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": job}},
        "Job": job,
        "DaemonSet": {"selector": selector, "template": pod},
    }.get(kind, {"replicas": 0, "selector": selector, "template": pod})
    if kind == "StatefulSet":
        spec["serviceName"] = "any"
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": "any"}, "spec": spec}
    return json.dumps(body)


def test_who_writes_a_template_needs_the_right_to_the_queue_and_its_controller_none(
    helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    may_create = {"apiGroups": ["", "apps", "batch"], "resources": ["*"], "verbs": ["*"]}
    research = {
        "apiGroups": ["drumline.dev"],
        "resources": ["trainingqueues"],
        "resourceNames": ["research"],
    }
    roles = yaml.safe_dump_all([*role("submits", may_create), *role("uses", research)])
    kubectl("apply", "-n", namespace, "-f", "-", stdin=roles)
    values = ("queueRights.enabled", "foreignPods.enabled")
    with in_force(helm, kubectl, namespace, *values, names=("-template-rights",)):
        wait_for_right(kubectl, namespace, "jane", "create", "pods")
        wait_for_right(kubectl, namespace, "jane", "use", "trainingqueues/research")
        jane = Submitter(kubectl, namespace, "--as=jane")
        refused = jane.wait_for_refusal(notebook(queue="other"))
        assert f"jane may not use TrainingQueue other from namespace {namespace}" in refused
        assert jane.refusal(notebook(queue="research")) == ""
        for kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob"):
            assert "jane may not use" in jane.refusal(workload(kind, queue="other")), kind
            assert jane.refusal(workload(kind, queue="research")) == "", kind
        controller = "system:serviceaccount:kube-system:replicaset-controller"
        bound = role("controls", may_create)
        bound[1]["subjects"][0]["name"] = controller
        kubectl("apply", "-n", namespace, "-f", "-", stdin=yaml.safe_dump_all(bound))
        as_controller = Submitter(kubectl, namespace, f"--as={controller}")
        assert as_controller.refusal(notebook(queue="other")) == ""

        deployment = workload("Deployment", queue="research")
        kubectl("create", "-n", namespace, "--as=jane", "-f", "-", stdin=deployment)
        template = {"metadata": {"labels": {QUEUE: "other"}}}
        patch = ("patch", "deployment", "any", "-n", namespace, "--as=jane", "-p")
        with pytest.raises(AssertionError, match="may not use TrainingQueue other"):
            kubectl(*patch, json.dumps({"spec": {"template": template}}))
        kubectl("delete", "rolebinding", "uses", "-n", namespace)
        kubectl(*patch, json.dumps({"spec": {"replicas": 0, "paused": True}}))


def job(**changes: Any) -> str:
    return json.dumps(manifest("TrainingJob", **changes))


def test_a_queue_or_pool_in_use_is_not_deleted(
    helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    pool = {"metadata": {"name": f"{namespace}-pool"}, "spec": {"nodeSelector": {"gpu": namespace}}}
    queue = {
        "metadata": {"name": f"{namespace}-queue"},
        "spec": {"quotas": [{"gpuPool": f"{namespace}-pool", "nominalGpus": 1}]},
    }
    documents = [
        {"apiVersion": "drumline.dev/v1alpha1", "kind": kind, **body}
        for kind, body in (("GpuPool", pool), ("TrainingQueue", queue))
    ]
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
    used = {"gp": {"jobs": 2}, "tq": {"admittedJobs": 1, "pendingJobs": 3}}
    with in_force(helm, kubectl, namespace, "objectsInUse.protect", names=("-objects-in-use",)):
        for kind, name, said in (
            ("gp", f"{namespace}-pool", "in use by 2 running and 0 waiting jobs"),
            ("tq", f"{namespace}-queue", "in use by 1 running and 3 waiting jobs"),
        ):
            patch = json.dumps({"status": used[kind]})
            kubectl("patch", kind, name, "--subresource=status", "--type=merge", "-p", patch)
            with pytest.raises(AssertionError, match=f"{name} is {said}"):
                kubectl("delete", kind, name)
            # A deletion of the whole collection names no object in its request.
            plural = {"gp": "gpupools", "tq": "trainingqueues"}[kind]
            own = f"?fieldSelector=metadata.name%3D{name}"
            with pytest.raises(AssertionError, match=f"{name} is {said}"):
                kubectl("delete", "--raw", f"/apis/drumline.dev/v1alpha1/{plural}{own}")
            kubectl("annotate", kind, name, "drumline.dev/delete-in-use=true")
            kubectl("delete", kind, name)
        kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
        for kind, name in (("gp", f"{namespace}-pool"), ("tq", f"{namespace}-queue")):
            kubectl("delete", kind, name)
