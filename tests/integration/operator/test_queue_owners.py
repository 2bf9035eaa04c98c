"""What the owner of a queue says about it while jobs run: who may use it, and that it stops."""

from __future__ import annotations

from tests.integration.operator.conftest import Site
from tests.kube import phase_is, reason_is
from tests.operator_process import OperatorProcess


def test_a_namespace_that_loses_its_label_starts_nothing_more(
    site: Site, operator: OperatorProcess
) -> None:
    """The jobs that wait could not start anyway, so it does not matter when labels are seen."""
    assert operator.process is not None

    def label(value: str | None) -> None:
        labels = {"metadata": {"labels": {"example.com/team": value}}}
        site.kube.patch("namespaces", site.namespace, labels)

    label(site.namespace)
    team = {"matchLabels": {"example.com/team": site.namespace}}
    site.kube.patch("trainingqueues", site.queue, {"spec": {"namespaceSelector": team}})
    site.submit("early", nodes=4, gpusPerNode=8)
    site.wait("early", phase_is("Running"), seconds=60)
    site.submit("late", gpusPerNode=8)
    site.wait("late", reason_is("QuotaExhausted"), seconds=60)
    label(None)
    late = site.wait("late", reason_is("NamespaceNotAllowed"), seconds=60)
    assert f"for the labels example.com/team={site.namespace}" in late["status"]["message"]
    assert site.job("early")["status"]["phase"] == "Running"
    label(site.namespace)
    site.wait("late", reason_is("QuotaExhausted"), seconds=60)
