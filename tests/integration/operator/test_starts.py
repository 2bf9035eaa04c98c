"""Starts of gangs as a cluster's own rules let them be: quotas, defaults, kubelets that cannot."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.operator.conftest import Site
from tests.kube import phase_is

pytestmark = pytest.mark.usefixtures("operator")


def create_quota(site: Site, **hard: str) -> None:
    """A ResourceQuota that is in force: the quota controller has written its status."""
    site.kube.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "limits", "namespace": site.namespace},
            "spec": {"hard": {key.replace("_", "."): amount for key, amount in hard.items()}},
        }
    )

    def in_force(quota: Any) -> bool:
        return "hard" in (quota or {}).get("status", {})

    site.kube.wait("resourcequotas", "limits", site.namespace, in_force)


def test_a_gang_with_a_template_starts_under_a_quota_of_limits(site: Site) -> None:
    create_quota(site, limits_cpu="4", limits_memory="8Gi")
    site.submit("bound", nodes=2, gpusPerNode=8, resources={"cpu": "2", "memory": "4Gi"})
    site.wait("bound", phase_is("Running"))
    assert {pod["status"]["qosClass"] for pod in site.pods("bound")} == {"Guaranteed"}
