"""GpuPools and TrainingQueues say what becomes of their specs; Kopf runs the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.operator.conftest import Site
from tests.kstatus import kstatus
from tests.kube import phase_is
from tests.operator_process import OperatorProcess

Json = dict[str, Any]


def ready(truth: str, reason: str) -> Callable[[Json | None], bool]:
    """Whether an object's newest spec was judged like this."""

    def judged(document: Json | None) -> bool:
        status = (document or {}).get("status", {})
        conditions = {entry["type"]: entry for entry in status.get("conditions") or ()}
        entry = conditions.get("Ready", {})
        observed = status.get("observedGeneration") == (document or {})["metadata"]["generation"]
        return observed and (entry.get("status"), entry.get("reason")) == (truth, reason)

    return judged


@pytest.mark.usefixtures("operator")
def test_a_queue_waits_for_its_pool_and_kstatus_reads_it(site: Site) -> None:
    kube, name = site.kube, site.queue
    accepted = kube.wait("trainingqueues", name, None, ready("True", "Accepted"))
    pool = kube.wait("gpupools", site.pool, None, ready("True", "Accepted"))
    assert [kstatus(document) for document in (accepted, pool) if document] == ["Current"] * 2
    spec = {"quotas": [{"gpuPool": "nowhere", "nominalGpus": 8}]}
    kube.patch("trainingqueues", name, {"spec": spec})
    lost = kube.wait("trainingqueues", name, None, ready("False", "GpuPoolNotFound"))
    assert lost is not None
    assert kstatus(lost) == "InProgress"
    (condition,) = lost["status"]["conditions"]
    assert "'nowhere'" in condition["message"]


@pytest.mark.usefixtures("operator")
def test_a_job_is_current_while_it_runs_and_in_progress_while_it_waits(site: Site) -> None:
    site.submit("runs", nodes=1, gpusPerNode=8)
    site.submit("waits", nodes=8, gpusPerNode=8)
    runs = site.wait("runs", phase_is("Running"))
    waits = site.wait("waits", phase_is("Pending"))
    assert [kstatus(runs), kstatus(waits)] == ["Current", "InProgress"]
    site.kube.patch(
        "trainingjobs", "runs", {"spec": {"ttlSecondsAfterFinished": 999}}, site.namespace
    )
    site.wait("runs", lambda job: job["status"]["observedGeneration"] == 2)


def test_a_signal_ends_the_operator_and_frees_the_lease(
    no_operator: None, site: Site, session_operator: OperatorProcess
) -> None:
    del no_operator
    session_operator.start()
    site.kube.wait("gpupools", site.pool, None, ready("True", "Accepted"))
    assert session_operator.stop() == 0
    lease = site.kube.get("leases", "drumline-operator", "drumline-system")
    assert lease["spec"]["holderIdentity"] == ""
    events = [line.get("event", "") for line in session_operator.log]
    assert not [event for event in events if "signals are ignored" in event]
    assert not [line for line in session_operator.log if line.get("level") == "error"]
