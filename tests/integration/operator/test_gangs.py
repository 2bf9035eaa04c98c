"""The operator on a real API server with fake nodes: admission, waiting, the life of a gang."""

from __future__ import annotations

import json

import pytest

from drumline_contract import ExitCode
from tests.integration.operator.conftest import OperatorProcess, Site
from tests.kube import Json, phase_is, ready, reason_is
from tools.cluster.kwok import fake_node
from tools.cluster.rest import ApiStatusError

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.extended(keep=3)]


def nodes_of(pods: list[Json]) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in pods}


def racks_of(site: Site, pods: list[Json]) -> set[str]:
    return {
        site.kube.get("nodes", name)["metadata"]["labels"]["drumline.dev/rack"]
        for name in nodes_of(pods)
    }


def test_a_gang_runs_with_its_secret_and_no_finalizer(site: Site) -> None:
    site.submit("one", nodes=4, gpusPerNode=8)
    job = site.wait("one", phase_is("Running"))
    pods = site.pods("one")
    assert len(pods) == 4
    assert nodes_of(pods) == set(site.nodes)
    assert job["status"]["ready"] == "4/4"
    assert job["status"]["assignment"]["gpuPool"] == site.pool
    assert all(
        pod["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"] for pod in pods
    )
    assert "finalizers" not in job["metadata"]
    assert len(site.kube.list("secrets", site.namespace, labels="drumline.dev/job=one")) == 1


def test_the_jobs_of_a_namespace_share_budget_and_policy(site: Site) -> None:
    for name, nodes in (("gang", 2), ("alone", 1)):
        site.submit(name, nodes=nodes, gpusPerNode=8)
        site.wait(name, phase_is("Running"))
    for plural in ("poddisruptionbudgets", "networkpolicies"):
        (shared,) = site.kube.list(plural, site.namespace)
        assert shared["metadata"]["name"] == "drumline-pods"
        assert "ownerReferences" not in shared["metadata"]
    for name in ("gang-0-g1", "alone-0-g1"):
        with pytest.raises(ApiStatusError, match="disruption budget"):
            site.kube.evict(name, site.namespace)


def test_a_large_gang_has_a_budget_of_its_own(site: Site) -> None:
    first = int(site.nodes[-1].rpartition("-")[2]) + 1
    for number in range(first, first + 5):
        node = fake_node(number, gpus=8, nodes_per_rack=2)
        node["metadata"]["labels"]["drumline.test/site"] = site.namespace
        site.kube.create(node)
    site.submit("large", nodes=9, gpusPerNode=1)
    site.wait("large", phase_is("Running"))
    (budget,) = site.kube.list("poddisruptionbudgets", site.namespace)
    assert budget["spec"]["minAvailable"] == 9
    assert budget["metadata"]["ownerReferences"][0]["name"] == "large"
    site.kube.wait_all(
        "poddisruptionbudgets",
        site.namespace,
        lambda budgets: budgets[0].get("status", {}).get("currentHealthy") == 9,
    )
    with pytest.raises(ApiStatusError, match="disruption budget"):
        site.kube.evict("large-3-g1", site.namespace)
    for number in range(first, first + 5):
        site.kube.delete("nodes", f"fake-{number}")


def test_two_jobs_that_each_need_everything_never_hold_half_each(site: Site) -> None:
    for name in ("left", "right"):
        site.submit(name, nodes=4, gpusPerNode=8)
    site.kube.wait_all(
        "trainingjobs",
        site.namespace,
        lambda jobs: (
            sorted(job.get("status", {}).get("phase", "") for job in jobs) == ["Pending", "Running"]
        ),
    )
    jobs = {job["metadata"]["name"]: job for job in site.kube.list("trainingjobs", site.namespace)}
    winner = next(name for name, job in jobs.items() if job["status"]["phase"] == "Running")
    loser = "left" if winner == "right" else "right"
    assert len(site.pods(winner)) == 4
    assert site.pods(loser) == []
    message = jobs[loser]["status"]["message"]
    assert f"{site.namespace}/{winner}" in message
    assert "32" in message

    site.kube.delete("trainingjobs", winner, site.namespace)
    site.wait(loser, phase_is("Running"))


def test_a_required_level_holds_though_a_looser_fit_exists(site: Site) -> None:
    site.submit("filler", nodes=1, gpusPerNode=8)
    site.wait("filler", phase_is("Running"))
    site.submit("racked", nodes=2, gpusPerNode=8, topology={"required": "rack"})
    site.wait("racked", phase_is("Running"))
    assert len(racks_of(site, site.pods("racked"))) == 1
    site.submit("toowide", nodes=1, gpusPerNode=8, topology={"required": "rack"})
    site.wait("toowide", phase_is("Running"))


def test_higher_priority_is_placed_first_when_room_comes(site: Site) -> None:
    for name, value in (("low", 10), ("high", 1000)):
        site.kube.ensure(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": f"test-{name}"},
                "value": value,
            }
        )
    peaceful = {"spec": {"preemption": {"withinQueue": "Never"}}}
    site.kube.patch("trainingqueues", site.queue, peaceful)
    site.submit("holder", nodes=4, gpusPerNode=8)
    site.wait("holder", phase_is("Running"))
    site.submit("first", nodes=4, gpusPerNode=8, priorityClassName="test-low")
    site.wait("first", phase_is("Pending"))
    site.submit("second", nodes=4, gpusPerNode=8, priorityClassName="test-high")
    site.wait("second", phase_is("Pending"))
    site.kube.delete("trainingjobs", "holder", site.namespace)
    site.wait("second", phase_is("Running"))
    assert site.job("first")["status"]["phase"] == "Pending"


def test_a_missing_priority_class_is_named(site: Site) -> None:
    site.submit("lost", priorityClassName="nobody-made-this")
    job = site.wait("lost", reason_is("PriorityClassNotFound"))
    assert "nobody-made-this" in job["status"]["message"]
    assert site.pods("lost") == []


def test_foreign_pods_count(site: Site) -> None:
    site.kube.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "foreign", "namespace": site.namespace},
            "spec": {
                "nodeName": site.nodes[0],
                "containers": [
                    {
                        "name": "c",
                        "image": "any:1",
                        "resources": {
                            "requests": {"nvidia.com/gpu": "1"},
                            "limits": {"nvidia.com/gpu": "1"},
                        },
                    }
                ],
            },
        }
    )
    site.kube.wait(
        "gpupools",
        site.pool,
        None,
        lambda pool: (pool or {}).get("status", {}).get("usedGpus") == 1,
    )
    site.submit("whole", nodes=4, gpusPerNode=8)
    job = site.wait("whole", reason_is("InsufficientGpus"))
    assert "foreign pods" in job["status"]["message"]
    site.kube.delete("pods", "foreign", site.namespace, grace=0)
    site.wait("whole", phase_is("Running"))


def test_suspend_gives_everything_back_and_resume_runs_again(site: Site) -> None:
    site.submit("pausing", nodes=2, gpusPerNode=8)
    site.wait("pausing", phase_is("Running"))
    site.kube.patch("trainingjobs", "pausing", {"spec": {"suspend": True}}, site.namespace)
    site.wait("pausing", phase_is("Suspended"))
    site.kube.wait_all(
        "pods", site.namespace, lambda pods: not pods, labels="drumline.dev/job=pausing"
    )
    site.kube.patch("trainingjobs", "pausing", {"spec": {"suspend": False}}, site.namespace)
    job = site.wait("pausing", phase_is("Running"))
    assert job["status"]["generation"] == 2


def test_a_pod_that_is_deleted_places_the_gang_again(site: Site) -> None:
    site.submit("losing", nodes=2, gpusPerNode=8)
    before = site.wait("losing", phase_is("Running"))
    site.kube.delete("pods", "losing-1-g1", site.namespace, grace=0)
    after = site.wait(
        "losing",
        lambda job: phase_is("Running")(job) and (job or {})["status"]["generation"] == 2,
    )
    assert (before["status"]["restarts"], after["status"]["restarts"]) == (0, 1)
    assert {pod["metadata"]["name"] for pod in site.pods("losing")} == {
        "losing-0-g2",
        "losing-1-g2",
    }


def test_a_resource_quota_releases_the_whole_gang_and_says_why(site: Site) -> None:
    site.kube.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "three-pods", "namespace": site.namespace},
            "spec": {"hard": {"pods": "3"}},
        }
    )
    site.kube.wait(
        "resourcequotas",
        "three-pods",
        site.namespace,
        lambda quota: "hard" in (quota or {}).get("status", {}),
    )
    site.submit("big", nodes=4, gpusPerNode=8)
    job = site.wait("big", lambda job: "exceeded quota" in str((job or {}).get("status")))
    assert "three-pods" in job["status"]["message"]
    site.kube.wait_all("pods", site.namespace, lambda pods: not pods)


def test_an_invalid_override_is_reported_and_never_scheduled(site: Site) -> None:
    site.submit(
        "typo",
        nodes=2,
        gpusPerNode=1,
        trainer={"model": "tiny", "overrides": {"optimizer": {"learning_rat": 0.1}}},
    )
    job = site.wait("typo", reason_is("InvalidConfig"))
    assert "did you mean 'learning_rate'" in job["status"]["message"]
    assert site.pods("typo") == []


def test_queue_and_pool_show_what_is_used(site: Site) -> None:
    site.submit("user", nodes=2, gpusPerNode=8)
    site.wait("user", phase_is("Running"))
    queue = site.kube.wait(
        "trainingqueues",
        site.queue,
        None,
        lambda queue: (queue or {}).get("status", {}).get("gpus") == "16/32",
    )
    assert queue is not None
    assert queue["status"]["admittedJobs"] == 1
    site.kube.wait(
        "gpupools",
        site.pool,
        None,
        lambda pool: (pool or {}).get("status", {}).get("gpus") == "16/32",
    )


def test_an_operator_killed_between_any_two_events_takes_up_where_it_was(
    site: Site, operator: OperatorProcess
) -> None:
    site.submit("steady", nodes=2, gpusPerNode=8)
    before = site.wait("steady", phase_is("Running"))
    uids = {pod["metadata"]["uid"] for pod in site.pods("steady")}
    operator.kill()
    site.submit("meanwhile", nodes=2, gpusPerNode=8)
    operator.start()
    site.wait("meanwhile", phase_is("Running"))
    after = site.wait(
        "steady", lambda job: (job or {})["status"]["epoch"] > before["status"]["epoch"]
    )
    assert {pod["metadata"]["uid"] for pod in site.pods("steady")} == uids
    assert after["status"]["generation"] == before["status"]["generation"]
    assert after["status"]["phase"] == "Running"


def test_an_operator_asked_to_stop_releases_its_lease(
    site: Site, operator: OperatorProcess
) -> None:
    site.submit("leaving", nodes=1, gpusPerNode=8)
    site.wait("leaving", phase_is("Running"))
    assert operator.stop() == 0
    lease = site.kube.get("leases", "drumline-operator", "drumline-system")
    assert not lease["spec"].get("holderIdentity")


def test_a_job_that_cannot_fit_in_memory_hears_it_and_may_be_refused(site: Site) -> None:
    trainer = {
        "model": "llama-8b",
        "globalBatchSize": 64,
        "sequenceLength": 8192,
        "precision": "bf16",
    }
    hardware = {"gpu": "H100", "networkGbps": 400}
    site.kube.patch("gpupools", site.pool, {"spec": {"hardware": hardware}})
    site.kube.wait("gpupools", site.pool, None, ready("True", "Accepted"))
    site.submit("large", nodes=1, gpusPerNode=8, trainer=trainer)
    job = site.wait("large", lambda job: condition_of(job, "ExceedsMemory") is not None)
    warning = condition_of(job, "ExceedsMemory")
    assert warning is not None
    assert (warning["status"], warning["reason"]) == ("True", "MemoryExceeded")
    assert "GiB of the 79.2 GiB of an H100" in warning["message"]
    assert "trainer.microBatchSize: 1" in warning["message"]
    site.kube.wait_all("pods", site.namespace, lambda pods: len(pods) == 1)  # a warning alone
    (pod,) = site.pods("large")
    environment = {entry["name"]: entry for entry in pod["spec"]["containers"][0]["env"]}
    assert json.loads(environment["DRUMLINE_CONFIG"]["value"])["hardware"]["gpu"] == "H100"

    refusing = hardware | {"whenMemoryExceeded": "Refuse"}
    site.kube.patch("gpupools", site.pool, {"spec": {"hardware": refusing}})
    site.kube.wait("gpupools", site.pool, None, ready("True", "Accepted"))
    site.submit("larger", nodes=2, gpusPerNode=8, trainer=trainer)
    job = site.wait("larger", reason_is("InvalidConfig"))
    assert "a rank needs" in job["status"]["message"]
    assert site.pods("larger") == []
    auto = trainer | {"parallelism": {"mode": "Auto"}}
    site.submit("chosen", nodes=2, gpusPerNode=8, trainer=auto)
    site.wait("chosen", lambda job: "assignment" in (job or {}).get("status", {}))


def condition_of(job: Json | None, kind: str) -> Json | None:
    conditions = (job or {}).get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == kind), None)


def test_the_model_of_a_folder_is_left_to_the_ranks_which_may_refuse_it(site: Site) -> None:
    hardware = {"gpu": "H100", "networkGbps": 400, "whenMemoryExceeded": "Refuse"}
    site.kube.patch("gpupools", site.pool, {"spec": {"hardware": hardware}})
    site.kube.wait("gpupools", site.pool, None, ready("True", "Accepted"))
    trainer = {
        "model": "FromFolder",
        "parallelism": {"tensor": 2, "pipeline": 2},
        "overrides": {"model_from": "/data/mistral", "model": {"dropout": 0.1}},
    }
    site.submit("tuned", nodes=2, gpusPerNode=8, trainer=trainer)
    site.kube.wait_all("pods", site.namespace, lambda pods: len(pods) == 2)
    (pod, _) = site.pods("tuned")
    environment = {entry["name"]: entry for entry in pod["spec"]["containers"][0]["env"]}
    written = json.loads(environment["DRUMLINE_CONFIG"]["value"])
    assert (written["model_from"], written["model"]) == ("/data/mistral", {"dropout": 0.1})

    site.end_pods("tuned", exit_code=ExitCode.CONFIG)
    job = site.wait("tuned", phase_is("Failed"))
    assert job["status"]["reason"] == "ConfigRefused"
    assert job["status"].get("restarts", 0) == 0
