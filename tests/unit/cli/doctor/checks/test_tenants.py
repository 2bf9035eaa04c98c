from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline_api.load import parse
from drumline_api.podprofile import PodProfile
from drumline_cli.doctor.checks.tenants import (
    ENFORCED,
    guarded_pools,
    level_of,
    pod_security,
    queues,
)
from drumline_cli.doctor.facts import JobFact, NamespaceFact
from drumline_cli.doctor.results import CheckFailed, Passed, Warned
from tests.texts import missing
from tests.unit.cli.doctor.facts import a_node, a_pool, a_queue, an_operator

HOST = {
    "volumes": [{"name": "ib", "hostPath": {"path": "/dev/infiniband"}}],
    "volumeMounts": [{"name": "ib", "mountPath": "/dev/infiniband"}],
}


def test_queues_that_promise_what_is_not_there() -> None:
    absent = a_queue("absent", quotas=[{"gpuPool": "b200", "nominalGpus": 8}])
    large = a_queue("large", quotas=[{"gpuPool": "h100", "nominalGpus": 16}])
    orphan = a_queue("orphan", parent="gone")
    absent_pool, beyond, parentless = queues((absent, large, orphan), (a_pool(),), (a_node(),))
    assert isinstance(absent_pool, CheckFailed)
    assert "absent: GpuPool b200 does not exist" in absent_pool.message
    assert isinstance(beyond, Warned)
    assert "large: quotas promise 16 GPUs of h100" in beyond.message
    assert isinstance(parentless, CheckFailed)
    assert "orphan: parent gone does not exist" in parentless.message


def test_a_pool_of_no_nodes_may_grow_to_what_is_promised() -> None:
    (result,) = queues((a_queue(),), (a_pool(),), ())
    assert isinstance(result, Passed)


def test_a_queue_for_everybody_is_said() -> None:
    (result,) = queues((a_queue("open", namespaces=None),), (a_pool(),), (a_node(),))
    assert isinstance(result, Warned)
    assert "every namespace may use open" in result.message
    (none,) = queues((), (a_pool(),), ())
    assert isinstance(none, Warned)


def test_pods_give_back_in_guarded_pools_alone() -> None:
    quotas = [{"gpuPool": name, "nominalGpus": 8} for name in ("h100", "b200")]
    serving = a_queue("serving", quotas=quotas, foreignPods={"borrowed": "Evict"})
    pools = (a_pool(), a_pool("b200"))
    evicting = replace(an_operator(), evicts_foreign_pods=True)
    (open_pool,) = guarded_pools(evicting, pools, (a_queue(), serving))
    assert isinstance(open_pool, Warned)
    assert open_pool.message.startswith("serving: foreignPods.borrowed is Evict")
    assert open_pool.message.endswith("its pods stay in b200, h100")
    guarding = replace(evicting, guarded_pools=frozenset({"h100", "b200"}))
    (result,) = guarded_pools(guarding, pools, (a_queue(), serving))
    assert isinstance(result, Passed)
    without_right = replace(guarding, evicts_foreign_pods=False)
    (no_right,) = guarded_pools(without_right, pools, (a_queue(), serving))
    assert isinstance(no_right, Warned)
    assert "foreignPods.evict" in no_right.fix


def test_a_guarded_pool_that_does_not_exist_is_said() -> None:
    guarding = replace(an_operator(), guarded_pools=frozenset({"h100", "h10"}))
    (result,) = guarded_pools(guarding, (a_pool(),), (a_queue(),))
    assert isinstance(result, Warned)
    assert "guardedPools names h10, but no such GpuPool" in result.message


def test_without_an_operator_nobody_guards_and_nothing_is_wrong_with_that() -> None:
    serving = a_queue("serving", foreignPods={"borrowed": "Evict"})
    (result,) = guarded_pools(None, (a_pool(),), (serving,))
    assert isinstance(result, Passed)


@pytest.mark.parametrize(
    ("profile", "level"),
    [
        ({}, "restricted"),
        ({"runtimeClassName": "nvidia"}, "restricted"),
        ({"capabilities": ["NET_BIND_SERVICE"]}, "restricted"),
        ({"runAsUser": 0}, "baseline"),
        ({"capabilities": ["CHOWN"]}, "baseline"),
        ({"capabilities": ["IPC_LOCK"]}, "privileged"),
        (HOST, "privileged"),
        ({"sidecars": [{"name": "rxdm", "image": "rxdm", "privileged": True}]}, "privileged"),
        ({"sidecars": [{"name": "rxdm", "image": "rxdm", "runAsUser": 0}]}, "baseline"),
    ],
)
def test_the_level_that_a_profile_needs(profile: dict[str, Any], level: str) -> None:
    assert level_of(parse(PodProfile, profile)) == level


def test_a_namespace_stricter_than_the_pools_profile_fails() -> None:
    pool = a_pool(podProfile=HOST)
    strict = NamespaceFact(name="team", labels={ENFORCED: "baseline"})
    (result,) = pod_security((strict,), (a_queue(),), (pool,), ())
    assert isinstance(result, CheckFailed)
    assert "namespace team enforces baseline, but the podProfile of h100 needs privileged" in (
        result.message
    )
    for labels in ({}, {ENFORCED: "privileged"}, {ENFORCED: "of-2030"}):
        loose = NamespaceFact(name="team", labels=labels)
        (well,) = pod_security((loose,), (a_queue(),), (pool,), ())
        assert isinstance(well, Passed)
    strictest = NamespaceFact(name="team", labels={ENFORCED: "restricted"})
    (well,) = pod_security((strictest,), (a_queue(),), (a_pool(),), ())
    assert isinstance(well, Passed)


def test_an_open_queue_counts_for_the_namespaces_that_have_jobs() -> None:
    strict = NamespaceFact(name="lab", labels={ENFORCED: "restricted"})
    job = JobFact(namespace="lab", name="gpt", nodes=1, claim=None)
    queue = a_queue(namespaces=None)
    (result,) = pod_security((strict,), (queue,), (a_pool(podProfile=HOST),), (job,))
    assert isinstance(result, CheckFailed)


def test_a_namespace_that_does_not_exist_is_named() -> None:
    (result,) = pod_security((), (a_queue(),), (a_pool(),), ())
    assert isinstance(result, Warned)
    assert "do not exist: team" in result.message


def test_jobs_whose_queue_or_pool_was_deleted_are_named() -> None:
    def job(name: str, **where: str) -> JobFact:
        return JobFact(namespace="lab", name=name, nodes=1, claim=None, **where)

    jobs = (
        job("a", queue="infra", pool="h100"),
        job("b", queue="infra"),
        job("c", queue="research", pool="b200"),
    )
    lost_queue, lost_pool = queues((a_queue(),), (a_pool(),), (a_node(),), jobs)
    assert isinstance(lost_queue, CheckFailed)
    assert not missing(lost_queue.message, "TrainingQueue infra", "1 running", "1 waiting")
    assert isinstance(lost_pool, CheckFailed)
    assert not missing(lost_pool.message, "GpuPool b200 does not exist", "1 job")


def test_a_cycle_of_parents_is_named_once() -> None:
    cluster = (a_queue("a", parent="b"), a_queue("b", parent="a"), a_queue("c", parent="a"))
    (cycle,) = queues(cluster, (a_pool(),), (a_node(),))
    assert isinstance(cycle, CheckFailed)
    assert "a -> b -> a" in cycle.message
