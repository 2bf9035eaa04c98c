"""What jobs say against nodes, until it stands in their pools' statuses and the scheduler knows."""

from __future__ import annotations

from typing import Any, cast

import pytest
from msgspec.structs import replace

from drumline.controller.nodes.evidence import evidence_of
from drumline.controller.nodes.health import NodeHealthBook
from drumline.controller.nodes.health_signals import health_of
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.kube.events import EventRecorder, Occurrence
from drumline.lifecycle.incidents.avoided_nodes import AVOID_SECONDS
from drumline.lifecycle.model.timestamps import timestamp
from drumline.telemetry.metrics import Metrics
from drumline_contract import AgentPhase, AgentStatus, Progress, SlowMember
from drumline_scheduler.disruption.node_scores import Evidence, EvidenceKind
from drumline_scheduler.model import Node
from tests.builders import T0
from tests.texts import missing
from tests.unit.controller.views import assignment, job_view, node_view, pool_view

HOUR = T0 // 3600 * 3600
NODES = tuple(f"node-{i}" for i in range(10))


def said(*slow: int, generation: int = 1) -> AgentStatus:
    return AgentStatus(
        job_uid="",
        pod_uid="",
        index=0,
        generation=generation,
        attempt=0,
        phase=AgentPhase.RUNNING,
        progress=Progress(),
        slow=tuple(SlowMember(index=index, percent=27, steps=40) for index in slow),
    )


class Recorder:
    """Notes events instead of writing them."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def record(self, occurrence: Occurrence) -> None:
        self.events.append((occurrence.reason, occurrence.regarding.name))


class Cluster:
    """Ten nodes, and jobs whose agents say what a test has them say."""

    def __init__(self) -> None:
        self.state = ClusterCache(nodes=NodeCache(clock=lambda: T0))
        self.state.on_pool(None, pool_view())
        for name in NODES:
            self.state.nodes.on_node(None, node_view(name))
        self.statuses: dict[str, AgentStatus] = {}
        self.recorder = Recorder()
        self.metrics = Metrics()
        self.woken = 0

    def job(self, namespace: str, *nodes: str, slow: tuple[int, ...] = (), **status: Any) -> None:
        places = assignment(*nodes) | status
        view = job_view("llama", uid=f"in-{namespace}", nodes=len(nodes), status=places)
        self.state.on_job(None, replace(view, namespace=namespace))
        self.statuses[view.uid] = said(*slow)

    def book(self) -> NodeHealthBook:
        def wake() -> None:
            self.woken += 1

        return NodeHealthBook(
            jobs=self.state.jobs.all,
            pools=lambda: self.state.pools.by_name,
            nodes=self.state.nodes,
            status_of=self.statuses.get,
            recorder=cast("EventRecorder", self.recorder),
            uid_of=lambda name: name,
            wake_scheduler=wake,
            metrics=self.metrics,
        )

    def nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.state.scheduling.snapshot(now=T0).nodes}

    def evidence(self) -> list[Evidence]:
        return evidence_of(self.state.jobs.all(), self.statuses.get, now=T0)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_slow_member_speaks_against_its_node(cluster: Cluster) -> None:
    cluster.job("team-a", "node-3", "node-1", "node-2", slow=(1,))
    slow = EvidenceKind.SLOW
    assert cluster.evidence() == [
        Evidence(node="node-1", kind=slow, at=T0, by="team-a", detail="by 20 %")
    ]


def test_members_are_found_by_their_index_not_their_place(cluster: Cluster) -> None:
    places = {"gpuPool": "h100", "nodes": ["node-0", "node-2", "node-3"], "absent": [1]}
    cluster.job("team-a", "", "", "", "", slow=(2,), assignment=places)
    assert [each.node for each in cluster.evidence()] == ["node-2"]


def test_an_assignment_that_makes_no_sense_says_nothing_and_the_other_jobs_do(
    cluster: Cluster,
) -> None:
    places = {"gpuPool": "h100", "nodes": ["node-0", "node-2", "node-3"], "absent": [7]}
    cluster.job("team-a", "", "", "", "", slow=(2,), assignment=places)
    cluster.job("team-b", *NODES[:4], slow=(1,))
    assert [each.by for each in cluster.evidence()] == ["team-b"]


@pytest.mark.parametrize(
    ("nodes", "status"),
    [
        pytest.param(NODES[:2], said(1), id="of two nobody knows which is slow"),
        pytest.param(NODES[:4], said(1, 2), id="half of a gang"),
        pytest.param(NODES[:4], said(7), id="no member"),
        pytest.param(NODES[:4], said(1, generation=2), id="of another generation"),
    ],
)
def test_what_an_agent_says_is_bounded(
    cluster: Cluster, nodes: tuple[str, ...], status: AgentStatus
) -> None:
    cluster.job("team-a", *nodes)
    cluster.statuses["in-team-a"] = status
    assert cluster.evidence() == []


def test_a_gpu_that_failed_speaks_against_its_node_though_the_job_waits(cluster: Cluster) -> None:
    avoided = {"node": "node-1", "until": timestamp(T0 + AVOID_SECONDS), "cause": "Xid 79"}
    cluster.job("team-a", "node-0", assignment=None, avoidedNodes=[avoided])
    failed = EvidenceKind.DEVICE_FAILED
    assert cluster.evidence() == [Evidence(node="node-1", kind=failed, at=T0, by="team-a")]


def test_two_tenants_take_a_node_from_new_pods_until_it_is_long_ago(cluster: Cluster) -> None:
    book = cluster.book()
    cluster.job("team-a", *NODES[:4], slow=(1,))
    book.look(cluster.nodes().values(), now=T0)
    assert cluster.nodes()["node-1"].suspicion == 1
    assert not cluster.nodes()["node-1"].quarantined
    assert cluster.recorder.events == []

    cluster.job("team-b", *NODES[1:5], slow=(0,))
    book.look(cluster.nodes().values(), now=T0)
    assert cluster.nodes()["node-1"].quarantined
    assert cluster.recorder.events == [("NodeQuarantined", "node-1")]
    assert cluster.woken == 2
    value = cluster.metrics.registry.get_sample_value
    assert value("drumline_quarantined_nodes", {"gpu_pool": "h100"}) == 1
    assert book.fields("h100") == {
        "nodeHealth": [
            {
                "node": "node-1",
                "quarantinedAt": timestamp(T0),
                "message": "Slow (by 20 %) for jobs in team-a; Slow (by 20 %) for jobs in team-b",
                "evidence": [
                    {"kind": "Slow", "by": by, "at": timestamp(HOUR), "detail": "by 20 %"}
                    for by in ("team-a", "team-b")
                ],
            }
        ],
        "quarantinedNodes": 1,
    }

    book.look(cluster.nodes().values(), now=T0)
    assert cluster.woken == 2, "nothing new"
    cluster.statuses.clear()
    book.look(cluster.nodes().values(), now=T0 + 24 * 3600)
    node = cluster.nodes()["node-1"]
    assert (node.quarantined, node.suspicion) == (False, 0)
    assert cluster.recorder.events[1:] == [("NodeReleased", "node-1")]
    assert book.fields("h100") == {}


def test_a_check_is_enough_and_a_later_one_clears_the_node(cluster: Cluster) -> None:
    def check(at: float, **result: str) -> None:
        checked = {"node": "node-1", "at": timestamp(at), **result}
        view = pool_view()
        spec = {**view.spec, "nodeHealth": {"checked": [checked]}}
        cluster.state.on_pool(view, replace(view, spec=spec, resource_version=timestamp(at)))

    book = cluster.book()
    check(T0, failed="matmul gives\x1b wrong results")
    book.look(cluster.nodes().values(), now=T0)
    assert cluster.nodes()["node-1"].quarantined
    (entry,) = book.fields("h100")["nodeHealth"]
    assert not missing(entry["message"], "CheckFailed")
    check(T0 + 600)
    book.look(cluster.nodes().values(), now=T0 + 600)
    assert not cluster.nodes()["node-1"].quarantined
    assert book.fields("h100") == {}


def test_another_leader_goes_on_from_the_status(cluster: Cluster) -> None:
    cluster.job("team-a", *NODES[:4], slow=(1,))
    cluster.job("team-b", *NODES[1:5], slow=(0,))
    first = cluster.book()
    first.look(cluster.nodes().values(), now=T0)
    status = first.fields("h100")

    successor = Cluster()
    book = successor.book()
    book.restore({"h100": status}, now=T0 + 60)
    assert successor.nodes()["node-1"].quarantined
    book.look(successor.nodes().values(), now=T0 + 60)
    assert book.fields("h100") == status
    assert successor.recorder.events == [], "no news"


def test_what_cannot_be_read_of_a_status_is_left_out() -> None:
    good = {"kind": "Slow", "by": "a", "at": timestamp(HOUR)}
    entries: list[Any] = [
        "text",
        {"node": "n1", "evidence": [{**good, "kind": "OfTomorrow"}]},
        {"node": "n2", "evidence": [{**good, "at": "noon"}]},
        {"node": "n3", "evidence": [good]},
    ]
    assert health_of({"nodeHealth": entries}).keys() == {"n3"}
    assert health_of({"nodeHealth": 7}) == {}
