"""What the owner of a queue says about it while jobs run: who may use it, and that it stops."""

from __future__ import annotations

import pytest

from drumline_contract import Progress
from tests.integration.operator.conftest import Site
from tests.integration.operator.trainers import Trainers
from tests.kube import left_because, phase_is, reason_is
from tests.operator_process import OperatorProcess

pytestmark = pytest.mark.extended(keep=5, of="corners of a cluster")


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
    site.wait("early", phase_is("Running"))
    site.submit("late", gpusPerNode=8)
    site.wait("late", reason_is("QuotaExhausted"))
    label(None)
    late = site.wait("late", reason_is("NamespaceNotAllowed"))
    assert f"for the labels example.com/team={site.namespace}" in late["status"]["message"]
    assert site.job("early")["status"]["phase"] == "Running"
    label(site.namespace)
    site.wait("late", reason_is("QuotaExhausted"))


SAVED = Progress(step=410, total_steps=1000, checkpoint_step=410, checkpoint_digest="d")


def test_a_drained_queue_saves_what_runs_and_goes_on_when_it_is_open_again(
    site: Site, operator: OperatorProcess
) -> None:
    assert operator.process is not None

    def stop(policy: str) -> None:
        site.kube.patch("trainingqueues", site.queue, {"spec": {"stopPolicy": policy}})

    with Trainers(site, "gang", saves=SAVED) as gang:
        gang.submit(nodes=2)
        gang.attend("0-g1", "1-g1")
        queued_at = gang.running(1)["status"]["queuedAt"]
        site.submit("template", gpusPerNode=8)
        site.wait("template", phase_is("Running"))
        stop("HoldAndDrain")
        for name in ("gang", "template"):
            site.wait(name, left_because("QueueHeld"))
        drained = site.job("gang")["status"]
        assert (drained["checkpoint"]["step"], drained["queuedAt"]) == (410, queued_at)
        assert gang.agents["gang-0-g1"].notices[-1].leave
        site.kube.wait_all("pods", site.namespace, lambda pods: not pods)
        stop("None")
        gang.attend("0-g2", "1-g2")
        gang.running(2)
        site.wait("template", phase_is("Running"))
