"""The rights that the chart grants to a service account of it, on the tests' API server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import yaml

from tests.kube import Json, Kube
from tests.operator_process import ROOT
from tools.cluster.binaries import ensure_binaries
from tools.cluster.rest import Api, ApiStatusError

NAMESPACE = "drumline-system"
CORE, RBAC = "/api/v1", "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "ServiceAccount": f"{CORE}/namespaces/{{namespace}}/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{{namespace}}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{{namespace}}/rolebindings",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}
"""What of the chart decides rights, and where it is created."""


@contextmanager
def operator_policy(api: Kube, *settings: str) -> Iterator[None]:
    """The policies by which the API server compares what the chart's operator changes of pods, and
    of Jobs and JobSets."""
    chart = _chart(settings, release="drumline", namespace=NAMESPACE)
    made = [
        each
        for each in chart
        if each["kind"].startswith("ValidatingAdmissionPolicy")
        and each["metadata"]["name"].startswith(
            ("drumline-operator-pods", "drumline-operator-resumed")
        )
    ]
    for manifest in made:
        api.ensure(manifest)
    try:
        yield
    finally:
        for manifest in reversed(made):  # a binding before its policy
            is_policy = manifest["kind"] == "ValidatingAdmissionPolicy"
            plural = f"validatingadmission{'policies' if is_policy else 'policybindings'}"
            api.delete(plural, manifest["metadata"]["name"])


@contextmanager
def token_of(
    api: Kube,
    account: str,
    *settings: str,
    release: str = "drumline",
    namespace: str = NAMESPACE,
) -> Iterator[str]:
    """A token of one of the chart's service accounts, bound to the chart's roles.

    Args:
        api: where the chart's rights are granted meanwhile.
        account: its name.
        settings: of the chart, as `helm --set` takes them.
        release: its name.
        namespace: where it is installed.
    """
    chart = _chart(settings, release=release, namespace=namespace)
    made = [document for document in chart if _decides_rights(document)]
    with Api(api.kubeconfig) as server:
        for manifest in made:
            try:
                server.request("POST", _path(manifest), manifest)
            except ApiStatusError as error:
                if error.code != 409:
                    raise
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        accounts = PATHS["ServiceAccount"].format(namespace=namespace)
        path = f"{accounts}/{account}/token"
        yield server.request("POST", path, request)["status"]["token"]
        for manifest in made:
            server.request("DELETE", f"{_path(manifest)}/{manifest['metadata']['name']}")


def _decides_rights(document: Json) -> bool:
    if document["kind"].startswith("ValidatingAdmissionPolicy"):  # the others are about users
        return document["metadata"]["name"].endswith(("-operator-pods", "-operator-nodes"))
    return document["kind"] in PATHS


def _path(manifest: Json) -> str:
    return PATHS[manifest["kind"]].format(namespace=manifest["metadata"].get("namespace"))


def _chart(settings: tuple[str, ...], *, release: str, namespace: str) -> list[Json]:
    helm = ensure_binaries(["helm"], say=print)["helm"]
    command = [helm, "template", release, ROOT / "helm/drumline", f"--namespace={namespace}"]
    command += ["--set=imageRegistry=registry.example.com"]
    command += [f"--set={setting}" for setting in settings]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [document for document in yaml.safe_load_all(done.stdout) if document]
