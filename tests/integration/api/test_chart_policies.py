"""Admission policies of the chart that are off by default, in force on a real API server."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.integration.api.conftest import ROOT, Helm, Kubectl
from tests.integration.api.manifests import Json, manifest

CHART = ROOT / "helm/drumline"


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    name = f"policy-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    kubectl("wait", "--for=create", "serviceaccount/default", "-n", name, "--timeout=60s")
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def notebook(*, queue: str = "", gpus: int | None = 1) -> str:
    limits = {} if gpus is None else {"nvidia.com/gpu": str(gpus)}
    labels = {"drumline.dev/queue": queue} if queue else {}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "notebook", "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "any:1", "resources": {"limits": limits}}]},
    }
    return json.dumps(pod)


def queues_of(namespace: str) -> dict[str, Json]:
    """A queue that is open to all, to this namespace, and to another."""
    opens: dict[str, Json] = {
        "all": {},
        "ours": {"namespaces": [namespace]},
        "theirs": {"namespaces": ["another"]},
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
        try:
            self._create(text)
        except AssertionError as error:
            return str(error)
        return ""

    def wait_for_refusal(self, text: str) -> str:
        """The same once the policy is in force: the API server does not say when that is."""
        deadline = time.monotonic() + 60
        while not (refusal := self.refusal(text)):
            assert time.monotonic() < deadline, "the policy has no effect"
        return refusal


@contextmanager
def in_force(
    helm: Helm, kubectl: Kubectl, namespace: str, value: str, *, names: tuple[str, ...]
) -> Iterator[None]:
    """What this value of the chart adds, for one namespace alone."""
    template = ("template", namespace, CHART, "-n", "elsewhere", f"--set={value}=true")
    policies = [
        each
        for each in yaml.safe_load_all(helm(*template))
        if each and each["metadata"]["name"].endswith(names)
    ]
    assert len(policies) == 2 * len(names)
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    for policy in policies:
        if policy["kind"] == "ValidatingAdmissionPolicyBinding":
            policy["spec"]["matchResources"] = {"namespaceSelector": here}
    manifests = yaml.safe_dump_all(policies)
    kubectl("apply", "-f", "-", stdin=manifests)
    try:
        yield
    finally:
        kubectl("delete", "-f", "-", stdin=manifests)


def test_with_the_policy_of_foreign_pods_an_open_queue_pays_for_gpus(
    helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    queues = queues_of(namespace)
    names = {name: queue["metadata"]["name"] for name, queue in queues.items()}
    manifests = yaml.safe_dump_all(queues.values())
    kubectl("apply", "-f", "-", stdin=manifests)
    policies = ("-foreign-pods", "-closed-queues")
    with in_force(helm, kubectl, namespace, "foreignPods.enabled", names=policies):
        user = Submitter(kubectl, namespace)
        assert "needs the label drumline.dev/queue" in user.wait_for_refusal(notebook())
        closed = user.wait_for_refusal(notebook(queue=names["theirs"]))
        assert f"{names['theirs']} is not open to namespace {namespace}" in closed
        assert user.refusal(notebook(gpus=None)) == ""
        assert user.refusal(notebook(gpus=0)) == ""
        assert user.refusal(notebook(queue=names["all"])) == ""

        kubectl("create", "-n", namespace, "-f", "-", stdin=notebook(queue=names["ours"]))
        other = json.dumps({"metadata": {"labels": {"drumline.dev/queue": names["all"]}}})
        with pytest.raises(AssertionError, match="stays as it is"):
            kubectl("patch", "pod", "notebook", "-n", namespace, "-p", other)
        kubectl("label", "pod", "notebook", "-n", namespace, "other=label")
        kubectl("delete", "pod", "notebook", "-n", namespace, "--force")
    kubectl("delete", "-f", "-", stdin=manifests)


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


def job(**changes: Any) -> str:
    return json.dumps(manifest("TrainingJob", **changes))
