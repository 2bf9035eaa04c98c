"""Starts of gangs as a cluster's own rules let them be: quotas, defaults, kubelets that cannot."""

from __future__ import annotations

import pytest

from tests.integration.operator.conftest import Site
from tests.kube import Json, phase_is

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

    def in_force(quota: Json | None) -> bool:
        return "hard" in (quota or {}).get("status", {})

    site.kube.wait("resourcequotas", "limits", site.namespace, in_force)


def test_a_gang_with_a_template_starts_under_a_quota_of_limits(site: Site) -> None:
    create_quota(site, limits_cpu="4", limits_memory="8Gi")
    site.submit("bound", nodes=2, gpusPerNode=8, resources={"cpu": "2", "memory": "4Gi"})
    site.wait("bound", phase_is("Running"))
    assert {pod["status"]["qosClass"] for pod in site.pods("bound")} == {"Guaranteed"}


def test_children_that_were_deleted_are_back_in_the_next_generation(site: Site) -> None:
    site.submit("healed", nodes=2, gpusPerNode=8)
    site.wait("healed", phase_is("Running"))
    plurals = ("secrets", "networkpolicies", "poddisruptionbudgets")
    labels = "drumline.dev/job=healed"
    names: dict[str, str] = {}
    for plural in plurals:
        (child,) = site.kube.list(plural, site.namespace, labels=labels)
        names[plural] = child["metadata"]["name"]
        site.kube.delete(plural, names[plural], site.namespace)
    site.kube.delete("pods", "healed-1-g1", site.namespace, grace=0)
    site.wait(
        "healed",
        lambda job: phase_is("Running")(job) and (job or {})["status"]["generation"] == 2,
    )
    for plural in plurals:
        (child,) = site.kube.list(plural, site.namespace, labels=labels)
        assert child["metadata"]["name"] == names[plural]
