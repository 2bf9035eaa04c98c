"""Operator and jobs under a user that the namespace assigns, with group 0, as OpenShift does it.

Not in `make test`: `make test-all WHAT=helm`. A MutatingAdmissionPolicy plays the constraint
`restricted-v2`: it gives every pod that names no user one of the namespace's range.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.e2e.absence import LABELS
from tests.e2e.rehearsals import REHEARSED, rehearse
from tests.e2e.site import VALUES, Site
from tests.kube import Json, Kube
from tools import install
from tools.cluster import Cluster, kubectl
from tools.cluster.images import TRAINER_IMAGE
from tools.install import SYSTEM_NAMESPACE

ASSIGNED = 1_000_680_000
POLICY = "drumline-test-assigns-users"
WITHOUT_USER: Json = {
    **VALUES,
    "trainingUser": None,
    "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
}
SCRIPT = """
import os, pathlib
assert (os.getuid(), os.getgid()) == (1000680000, 0), (os.getuid(), os.getgid())
pathlib.Path(os.environ["HOME"], "cache").write_text("kept")
"""


@pytest.fixture
def assigned(cluster: Cluster, site: Site) -> Iterator[None]:
    """Users are assigned in the operator's and the team's namespace, and the chart names none."""
    kubectl(cluster, "apply", "--filename=-", manifests=_policy(SYSTEM_NAMESPACE, site.namespace))
    _wait_until_in_force(site.kube, site.namespace)
    install.install(cluster, say=print, progress_seconds=1, values=WITHOUT_USER)
    yield
    kubectl(cluster, "delete", f"mutatingadmissionpolicybinding/{POLICY}")
    kubectl(cluster, "delete", f"mutatingadmissionpolicy/{POLICY}")
    install.install(cluster, say=print, progress_seconds=1, values=VALUES)


def _policy(*namespaces: str) -> list[Json]:
    group = "admissionregistration.k8s.io/v1"
    label = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(namespaces)}
    fields = f"runAsUser: {ASSIGNED}, fsGroup: {ASSIGNED}"
    security = f"Object.spec.securityContext{{{fields}}}"
    expression = f"Object{{spec: Object.spec{{securityContext: {security}}}}}"
    change = {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}
    unnamed = (
        "!has(object.spec.securityContext) || !has(object.spec.securityContext.runAsUser)"
        " && !has(object.spec.securityContext.fsGroup)"
    )
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
    return [
        {
            "apiVersion": group,
            "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": POLICY},
            "spec": {
                "failurePolicy": "Fail",
                "reinvocationPolicy": "Never",
                "matchConstraints": {
                    "namespaceSelector": {"matchExpressions": [label]},
                    "resourceRules": [{**rule, "resources": ["pods"]}],
                },
                "matchConditions": [{"name": "names-no-user", "expression": unnamed}],
                "mutations": [change],
            },
        },
        {
            "apiVersion": group,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": POLICY},
            "spec": {"policyName": POLICY},
        },
    ]


def _wait_until_in_force(kube: Kube, namespace: str) -> None:
    """The API server takes policies in without saying when."""
    deadline = time.monotonic() + 60
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "c", "image": TRAINER_IMAGE, "securityContext": security}
    while True:
        probe = kube.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "probe", "namespace": namespace},
                "spec": {
                    "nodeSelector": {"drumline.test/none": "here"},
                    "securityContext": {"runAsNonRoot": True},
                    "containers": [container],
                },
            }
        )
        kube.delete("pods", "probe", namespace, grace=0)
        if probe["spec"]["securityContext"].get("runAsUser") == ASSIGNED:
            return
        assert time.monotonic() < deadline, "the policy has no effect"
        time.sleep(0.2)


@pytest.mark.usefixtures("assigned")
def test_operator_trainer_and_scripts_run_under_the_user_of_the_namespace(site: Site) -> None:
    operators = site.kube.list("pods", SYSTEM_NAMESPACE, labels=LABELS)
    assert {_user(pod) for pod in operators if _is_new(pod)} == {ASSIGNED}
    trained: Json = {**REHEARSED, "steps": 30}
    job = rehearse(site, "trains", **trained)
    template = {
        "image": TRAINER_IMAGE,
        "launch": "PerGpu",
        "command": ["python3", "-c", SCRIPT],
        "terminationGracePeriodSeconds": 1,
    }
    site.submit("script", nodes=1, gpusPerNode=1, template=template)
    job.reach(1)
    assert {_user(pod) for pod in site.pods("trains")} == {ASSIGNED}
    site.finish("script")
    job.finish()
    assert job.outcome().weights


def _is_new(pod: Json) -> bool:
    return "deletionTimestamp" not in pod["metadata"]


def _user(pod: Json) -> int:
    security = pod["spec"]["securityContext"]
    assert "runAsGroup" not in security
    return security["runAsUser"]
