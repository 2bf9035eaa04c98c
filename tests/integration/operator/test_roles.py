"""Pods of roles are placed, started and ended with the ranks of their job."""

from __future__ import annotations

import pytest

from tests.integration.operator.conftest import Site
from tests.integration.operator.trainers import Trainers
from tests.kube import Json, phase_is

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.extended(keep=1)]

TEMPLATE: Json = {"image": "mine:1", "command": ["work"], "terminationGracePeriodSeconds": 1}
LAUNCHER: Json = {"name": "launcher", "command": ["mpirun"], "completesJob": True}
EVALUATOR: Json = {"name": "evaluator", "gpusPerNode": 1, "command": ["evaluate"]}


def by_role(pods: list[Json]) -> dict[str, list[Json]]:
    """The pods by the name of their role; those with ranks as `''`."""
    names = {pod["metadata"]["labels"].get("drumline.dev/role", "") for pod in pods}
    return {
        name: [p for p in pods if p["metadata"]["labels"].get("drumline.dev/role", "") == name]
        for name in names
    }


def test_a_launcher_starts_with_its_workers_and_its_success_is_the_jobs(site: Site) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    site.kube.patch("namespaces", site.namespace, {"metadata": {"labels": labels}})
    with Trainers(site, "mpi") as gang:
        gang.submit(nodes=2, template=TEMPLATE, roles=[LAUNCHER])
        gang.attend("0-g1", "1-g1", "2-g1")
        job = gang.running(1)
        assert job["status"]["ready"] == "3/3"
        pods = by_role(site.pods("mpi"))
        (launcher,) = pods["launcher"]
        assert launcher["metadata"]["name"] == "mpi-2-g1"
        assert "nvidia.com/gpu" not in launcher["spec"]["containers"][0]["resources"]["requests"]
        site.end_pod("mpi-2-g1", exit_code=0)
        site.wait("mpi", phase_is("Succeeded"))
        left = site.kube.wait_all(
            "pods",
            site.namespace,
            lambda pods: all(
                pod["status"]["phase"] == "Succeeded" or "deletionTimestamp" in pod["metadata"]
                for pod in pods
            ),
            labels="drumline.dev/job=mpi",
        )
        assert "mpi-2-g1" in {pod["metadata"]["name"] for pod in left}  # for its logs


def test_a_launcher_that_fails_restarts_the_whole_gang(site: Site) -> None:
    with Trainers(site, "mpi") as gang:
        gang.submit(nodes=1, template=TEMPLATE, roles=[LAUNCHER])
        gang.attend("0-g1", "1-g1")
        gang.running(1)
        site.end_pod("mpi-1-g1", exit_code=1)
        gang.attend("0-g2", "1-g2")
        status = gang.running(2)["status"]
        assert [(each["faultClass"], each["used"]) for each in status["budgets"]] == [
            ("Application", 1)
        ]


def test_an_evaluator_that_fails_is_replaced_and_the_ranks_keep_their_pods(site: Site) -> None:
    template = {**TEMPLATE, "launch": "PerGpu"}
    with Trainers(site, "run") as gang:
        gang.submit(nodes=2, template=template, roles=[EVALUATOR])
        gang.attend("0-g1", "1-g1")
        gang.running(1)
        before = gang.uids()
        (record,) = gang.agents["run-0-g1"].records
        assert [member.host for member in record.members] == ["run-0", "run-1"]
        assert [(each.alias, each.ranks) for each in record.companions] == [("evaluator-0", 0)]
        site.end_pod("run-2-g1", exit_code=1)
        job = gang.running(2)
        after = gang.uids()
        ranks = {"run-0-g1", "run-1-g1"}
        assert {name: after[name] for name in ranks} == {name: before[name] for name in ranks}
        assert "run-2-g2" in after
        assert job["status"]["lastIncident"]["pod"] == "run-2-g1"
        site.end_pod("run-0-g1", exit_code=0)
        site.end_pod("run-1-g1", exit_code=0)
        site.wait("run", phase_is("Succeeded"))


def test_an_evaluator_that_is_done_ends_nothing(site: Site) -> None:
    template = {**TEMPLATE, "launch": "PerGpu"}
    with Trainers(site, "run") as gang:
        gang.submit(nodes=1, template=template, roles=[EVALUATOR])
        gang.attend("0-g1")
        gang.running(1)
        site.end_pod("run-1-g1", exit_code=0)
        site.kube.delete("pods", "run-0-g1", site.namespace, grace=0)
        gang.attend("0-g2")
        gang.running(2)
        assert "run-1-g1" in gang.uids()  # it has done its work


def test_the_gang_waits_where_there_is_no_room_for_a_role(site: Site) -> None:
    wants_a_node = {**EVALUATOR, "gpusPerNode": 8}
    site.submit("large", nodes=4, gpusPerNode=8, template=TEMPLATE, roles=[wants_a_node])
    site.wait("large", phase_is("Pending"))

    def says(job: Json | None) -> bool:
        return bool((job or {}).get("status", {}).get("message"))

    message = site.wait("large", says)["status"]["message"]
    assert "40" in message or "GPUs" in message
    assert site.pods("large") == []
