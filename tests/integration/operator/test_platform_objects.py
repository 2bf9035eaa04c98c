"""GpuPools and TrainingQueues say what becomes of their specs; Kopf runs the process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import yaml

from tests.integration.operator.conftest import Site, once_allowed, release_lease
from tests.kstatus import kstatus
from tests.kube import Kube, phase_is, ready, reason_is
from tests.operator_process import CHART_FILES, OperatorProcess, errors_in

pytestmark = pytest.mark.extended(keep=1)

Json = dict[str, Any]


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
    known_lines = len(session_operator.log)
    session_operator.start()
    site.kube.wait("gpupools", site.pool, None, ready("True", "Accepted"))
    assert session_operator.stop() == 0
    lease = site.kube.get("leases", "drumline-operator", "drumline-system")
    assert lease["spec"]["holderIdentity"] == ""
    lines = session_operator.log[known_lines:]
    assert not [line for line in lines if "signals are ignored" in line.get("event", "")]
    assert errors_in(lines) == []


API = "drumline.dev/v1alpha1"
LOOSE: dict[str, tuple[str, Json]] = {
    "trainingqueues": ("weight", {"type": "integer"}),
    "gpupools": ("hardware", {"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
}
"""A field of each kind, and what an older release asked of it."""


def unreadable(site: Site, *, queue: str, pool: str) -> tuple[Json, Json]:
    """A queue and a pool that the models refuse."""
    quotas = [{"gpuPool": site.pool, "nominalGpus": 8}]
    return (
        {
            "apiVersion": API,
            "kind": "TrainingQueue",
            "metadata": {"name": queue},
            "spec": {"quotas": quotas, "weight": 0},
        },
        {
            "apiVersion": API,
            "kind": "GpuPool",
            "metadata": {"name": pool},
            "spec": {"nodeSelector": {"no": "node"}, "hardware": {"gpu": "H100", "networkGbps": 0}},
        },
    )


@pytest.fixture
def older_release(api: Kube) -> Iterator[None]:
    """The CRDs of a release that checked less; in the end those of this one are there again."""
    crds = {
        plural: yaml.safe_load((CHART_FILES[0] / f"{plural}.yaml").read_text()) for plural in LOOSE
    }
    for plural, (field, schema) in LOOSE.items():
        spec = yaml.safe_load(yaml.safe_dump(crds[plural]["spec"]))
        (version,) = spec["versions"]
        fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        fields[field] = schema
        api.patch("customresourcedefinitions", crds[plural]["metadata"]["name"], {"spec": spec})
    yield
    for crd in crds.values():
        api.patch("customresourcedefinitions", crd["metadata"]["name"], {"spec": crd["spec"]})


@pytest.fixture
def odd(site: Site, older_release: None) -> Iterator[tuple[str, str]]:
    """A TrainingQueue and a GpuPool that an older release let in, and this one cannot read."""
    del older_release
    queue, pool = f"{site.queue}-odd", f"{site.pool}-odd"
    for document in unreadable(site, queue=queue, pool=pool):
        once_allowed(partial(site.kube.create, document))
    yield queue, pool
    site.kube.delete("trainingqueues", queue)
    site.kube.delete("gpupools", pool)


def test_an_unreadable_queue_and_pool_stop_nobody(
    site: Site, operator: OperatorProcess, odd: tuple[str, str]
) -> None:
    """Also not an operator that starts with them there."""
    queue, pool = odd
    site.submit("before", nodes=1, gpusPerNode=8)
    site.submit("odd", nodes=1, gpusPerNode=8, queue=queue)
    before = site.wait("before", phase_is("Running"))
    operator.kill()
    release_lease(site.kube)
    operator.start()
    site.submit("after", nodes=1, gpusPerNode=8)
    site.wait("after", phase_is("Running"))
    rejected = site.wait("odd", reason_is("QueueNotFound"))
    assert "cannot be read" in rejected["status"]["message"]
    for plural, name, field in (
        ("trainingqueues", queue, "spec.weight: "),
        ("gpupools", pool, "spec.hardware.networkGbps: "),
    ):
        document = site.kube.wait(plural, name, None, ready("False", "Unreadable"))
        assert document is not None
        assert kstatus(document) == "Failed"
        (message,) = {entry["message"] for entry in document["status"]["conditions"]}
        assert message.startswith(field)
    site.kube.patch("trainingqueues", queue, {"spec": {"weight": 1}})
    site.wait("odd", phase_is("Running"))
    kept = site.job("before")["status"]
    assert (kept["phase"], kept["generation"]) == ("Running", before["status"]["generation"])


def test_a_queue_that_becomes_unreadable_keeps_its_last_quota(
    site: Site, operator: OperatorProcess, older_release: None
) -> None:
    """While this operator runs; the next one knows no spec of it, and ends none of its jobs."""
    del older_release
    site.submit("before", nodes=1, gpusPerNode=8)
    before = site.wait("before", phase_is("Running"))
    worse = {"spec": {"weight": 0}}
    once_allowed(lambda: site.kube.patch("trainingqueues", site.queue, worse))
    site.kube.wait("trainingqueues", site.queue, None, ready("False", "Unreadable"))
    site.submit("after", nodes=1, gpusPerNode=8)
    site.wait("after", phase_is("Running"))
    operator.kill()
    release_lease(site.kube)
    operator.start()
    site.submit("late", nodes=1, gpusPerNode=8)
    site.wait("late", reason_is("QueueNotFound"))
    kept = site.job("before")["status"]
    assert (kept["phase"], kept["generation"]) == ("Running", before["status"]["generation"])
    site.kube.patch("trainingqueues", site.queue, {"spec": {"weight": 1}})
    site.wait("late", phase_is("Running"))
