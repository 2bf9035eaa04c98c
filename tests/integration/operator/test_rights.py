"""The operator with the chart's own rights and no more: a whole life without one refusal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.operator.chart_rights import token_of
from tests.integration.operator.conftest import (
    Site,
    a_claim,
    ensure_waiting_class,
    with_claim,
)
from tests.integration.operator.proxy import Proxy
from tests.kube import Kube, phase_is
from tests.operator_process import OperatorProcess

pytestmark = pytest.mark.usefixtures("no_operator")


@pytest.fixture
def token(api: Kube) -> Iterator[str]:
    """A token of the chart's service account, bound to the chart's roles."""
    with token_of(api, "drumline-operator") as token:
        yield token


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
            site.wait("whole", phase_is("Running"))
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
