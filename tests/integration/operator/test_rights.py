"""The operator with the chart's own rights and no more: a whole life without one refusal."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.binaries import ensure_binaries
from tests.cluster.rest import Api, ApiStatusError
from tests.integration.operator.conftest import (
    Site,
    a_claim,
    ensure_waiting_class,
    with_claim,
)
from tests.integration.operator.proxy import Proxy
from tests.kube import Json, Kube, phase_is
from tests.operator_process import ROOT, OperatorProcess

pytestmark = pytest.mark.usefixtures("no_operator")

NAMESPACE = "drumline-system"
CORE, RBAC = "/api/v1", "/apis/rbac.authorization.k8s.io/v1"
PATHS = {
    "ServiceAccount": f"{CORE}/namespaces/{NAMESPACE}/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{NAMESPACE}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{NAMESPACE}/rolebindings",
}
"""What of the chart decides rights, and where it is created."""


def chart() -> list[Json]:
    helm = ensure_binaries(["helm"], say=print)["helm"]
    command = [helm, "template", "drumline", ROOT / "helm/drumline", f"--namespace={NAMESPACE}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@pytest.fixture
def token(api: Kube) -> Iterator[str]:
    """A token of the chart's service account, bound to the chart's roles."""
    made = [document for document in chart() if document["kind"] in PATHS]
    with Api(api.kubeconfig) as server:
        for manifest in made:
            try:
                server.request("POST", PATHS[manifest["kind"]], manifest)
            except ApiStatusError as error:
                if error.code != 409:
                    raise
        accounts = PATHS["ServiceAccount"]
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        answer = server.request("POST", f"{accounts}/drumline-operator/token", request)
        yield answer["status"]["token"]
        for manifest in made:
            server.request("DELETE", f"{PATHS[manifest['kind']]}/{manifest['metadata']['name']}")


def test_a_whole_life_needs_no_more_than_the_chart_grants(
    site: Site, api: Kube, token: str, tmp_path: Path
) -> None:
    with Proxy(api.kubeconfig, tmp_path, token=token) as proxy:
        operator = OperatorProcess(kubeconfig=proxy.kubeconfig, folder=tmp_path)
        operator.start()
        try:
            waits = ensure_waiting_class(site.kube)
            site.kube.create(a_claim("data", namespace=site.namespace, storage_class=waits))
            template = with_claim("data")
            site.submit(
                "whole", nodes=2, gpusPerNode=8, ttlSecondsAfterFinished=1, template=template
            )
            site.wait("whole", phase_is("Running"), seconds=60)
            site.submit("waits", nodes=4, gpusPerNode=8)
            site.wait("waits", phase_is("Pending"))
            site.kube.delete("trainingjobs", "waits", site.namespace)
            site.kube.delete("pods", "whole-1-g1", site.namespace, grace=0)
            site.wait(
                "whole",
                lambda job: phase_is("Running")(job) and (job or {})["status"]["generation"] == 2,
            )
            for suspend, phase in ((True, "Suspended"), (False, "Running")):
                body = {"spec": {"suspend": suspend}}
                site.kube.patch("trainingjobs", "whole", body, site.namespace)
                site.wait("whole", phase_is(phase))
            site.kube.wait(
                "gpupools",
                site.pool,
                None,
                lambda pool: (pool or {}).get("status", {}).get("usedGpus") == 16,
            )
            site.end_pods("whole")
            site.kube.wait("trainingjobs", "whole", site.namespace, lambda job: job is None)
        finally:
            code = operator.stop()
        assert code == 0
        assert proxy.refused == []
        assert {write.about for write in proxy.writes} == {
            "leases",
            "trainingjobs",
            "trainingjobs/status",
            "trainingqueues/status",
            "gpupools/status",
            "pods",
            "secrets",
            "persistentvolumeclaims",
            "networkpolicies",
            "poddisruptionbudgets",
            "events",
        }
