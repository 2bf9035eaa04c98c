"""Reclaims of nodes, from their notices to the price that pools are compared by."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from drumline.controller.nodes.interruptions import MOST_NODES
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.kube.views import NodeView
from drumline.lifecycle.model.timestamps import timestamp
from drumline_api.capacity import InterruptionsStatus
from drumline_api.objects import builtin
from drumline_scheduler.model import Policy
from tests.builders import T0
from tests.unit.controller.views import assignment, job_view, node_view, pool_view, queue_view

NOTICE = builtin.Taint(key="aws-node-termination-handler/spot-itn", effect="NoSchedule")
GPUS = 8
LOOK_SECONDS = 300


def reclaimed(node: NodeView) -> NodeView:
    return replace(node, resource_version="2", taints=(NOTICE,))


class SpotPool:
    """A spot pool at 1.00 of four nodes, with a job of 8 GPUs on two of them."""

    def __init__(self, *, capacity: str = "Spot") -> None:
        self.now = T0
        self.state = ClusterCache(nodes=NodeCache(clock=lambda: self.now))
        pool = pool_view()
        spec = {**pool.spec, "capacity": {"type": capacity, "pricePerGpuHour": "1"}}
        self.state.on_pool(None, replace(pool, spec=spec))
        self.state.on_queue(None, queue_view())
        for number in range(4):
            self.state.nodes.on_node(None, node_view(f"node-{number}"))
        status = assignment("node-0", "node-1")
        self.state.on_job(None, job_view("llama", nodes=2, gpusPerNode=4, status=status))

    def look(self, *, after: float = LOOK_SECONDS) -> None:
        self.now += after
        snapshot = self.state.scheduling.snapshot(now=self.now)
        self.state.interruptions.observe(snapshot, self.state.nodes.disruptions(), now=self.now)

    def announce(self, *numbers: int) -> None:
        for number in numbers:
            node = node_view(f"node-{number}")
            self.state.nodes.on_node(node, reclaimed(node))

    def fields(self, *, before: dict[str, Any] | None = None, changed: bool = True) -> Any:
        fields = self.state.interruptions.status_fields(
            "h100", before=before or {}, changed=changed, now=self.now
        )
        return fields.get("interruptions")

    @property
    def expected_price(self) -> int | None:
        (pool,) = self.state.scheduling.snapshot(now=self.now).pools
        return pool.expected_price


def test_a_reclaim_is_counted_once_and_costs_every_gang_there_a_restart() -> None:
    pool = SpotPool()
    pool.look()
    pool.look()
    pool.announce(0, 1, 2)
    pool.look()
    pool.look()
    written = pool.fields()
    InterruptionsStatus.model_validate(written)
    assert written["reclaimedNodes"] == 3
    assert written["reclaiming"] == ["node-0", "node-1", "node-2"]
    (day,) = written["days"]
    assert day["gpuSeconds"] == 3 * LOOK_SECONDS * GPUS
    assert day["lostGpuSeconds"] == 60 * GPUS  # both of its nodes at once: one restart
    assert written["lostPercent"] == 6
    assert pool.expected_price == 1_060_000


def test_a_node_that_came_back_is_reclaimed_again() -> None:
    pool = SpotPool()
    pool.announce(0)
    pool.look()
    node = node_view("node-0")
    pool.state.nodes.on_node(reclaimed(node), None)
    pool.look()
    pool.state.nodes.on_node(None, replace(node, resource_version="3"))
    pool.look()
    pool.announce(0)
    pool.look()
    assert pool.fields()["reclaimedNodes"] == 2


def test_a_drain_is_no_reclaim_and_other_pools_have_no_history() -> None:
    pool = SpotPool()
    node = node_view("node-0")
    pool.state.nodes.on_node(node, replace(node, resource_version="2", unschedulable=True))
    pool.look()
    assert pool.fields()["reclaimedNodes"] == 0
    stays = SpotPool(capacity="OnDemand")
    stays.announce(0)
    stays.look()
    assert stays.fields() is None


def test_a_new_leader_goes_on_from_the_status_and_counts_no_reclaim_twice() -> None:
    pool = SpotPool()
    pool.look()
    pool.announce(0)
    pool.look()
    status = {"interruptions": pool.fields()}
    successor = SpotPool()
    successor.announce(0)
    successor.now = pool.now
    successor.state.interruptions.restore({"h100": status}, policy=Policy())
    successor.look()
    written = successor.fields()
    assert written["reclaimedNodes"] == 1
    assert written["days"][0]["gpuSeconds"] == 2 * LOOK_SECONDS * GPUS
    later = SpotPool()
    later.now = pool.now
    later.state.interruptions.restore({"h100": status}, policy=Policy())
    later.look(after=3600)  # nobody looked: what was held is not known
    assert later.fields()["days"][0]["gpuSeconds"] == LOOK_SECONDS * GPUS


def test_what_cannot_be_read_counts_as_none() -> None:
    pool = SpotPool()
    broken = {"interruptions": {"days": [{"day": "yesterday"}], "until": timestamp(T0)}}
    pool.state.interruptions.restore({"h100": broken}, policy=Policy())
    pool.look()
    assert pool.fields()["reclaimedNodes"] == 0


def test_time_alone_is_written_rarely_and_a_reclaim_at_once() -> None:
    pool = SpotPool()
    pool.look()
    before = {"interruptions": pool.fields()}
    pool.look()
    assert pool.fields(before=before, changed=False) == before["interruptions"]
    assert pool.fields(before=before, changed=True) != before["interruptions"]
    pool.look(after=300)
    assert pool.fields(before=before, changed=False) != before["interruptions"]
    again = {"interruptions": pool.fields()}
    pool.announce(3)
    pool.look(after=5)
    assert pool.fields(before=again, changed=False)["reclaimedNodes"] == 1


def test_a_status_that_names_as_many_nodes_as_it_may_is_fresh() -> None:
    pool = SpotPool()
    for number in range(4, MOST_NODES + 4):
        pool.state.nodes.on_node(None, node_view(f"node-{number}"))
    pool.announce(*range(MOST_NODES + 4))
    pool.look()
    written = pool.fields()
    assert len(written["reclaiming"]) == MOST_NODES
    pool.now += 1
    assert pool.fields(before={"interruptions": written}, changed=False) == written


def test_what_was_held_of_a_pool_with_parts_is_in_gpus() -> None:
    pool = SpotPool()
    before = pool_view()
    partitions = {"partsPerGpu": 4, "resources": [{"resource": "a.com/half", "parts": 2}]}
    capacity = {"type": "Spot", "pricePerGpuHour": "1"}
    spec = {**before.spec, "capacity": capacity, "partitions": partitions}
    pool.state.on_pool(before, replace(before, resource_version="2", spec=spec))
    llama = job_view("llama", nodes=2, gpusPerNode=4, status=assignment("node-0", "node-1"))
    named = job_view(
        "llama", nodes=2, gpusPerNode=4, gpuPool="h100", status=assignment("node-0", "node-1")
    )
    pool.state.on_job(llama, named)
    pool.look()
    pool.announce(0)
    pool.look()
    day = pool.fields()["days"][0]
    assert day["gpuSeconds"] == GPUS * LOOK_SECONDS
    assert day["lostGpuSeconds"] == GPUS * Policy().restart_seconds


def test_a_reclaim_of_surplus_costs_the_restart_of_the_whole_job() -> None:
    pool = SpotPool()
    other = pool_view("stays")
    pool.state.on_pool(None, other)
    places = {
        "gpuPool": "stays",
        "nodes": ["other-0", "node-2", "node-3"],
        "surplus": {"gpuPool": "h100", "indices": [1, 2]},
    }
    pool.state.on_job(
        None,
        job_view(
            "mixed",
            uid="mixed",
            nodes=3,
            minNodes=1,
            gpusPerNode=4,
            checkpoint={"claimName": "saves"},
            trainer={"globalBatchSize": 24},
            status={**assignment("a"), "assignment": places},
        ),
    )
    pool.look()
    pool.announce(3)
    pool.look()
    (day,) = pool.fields()["days"]
    assert day["lostGpuSeconds"] == 12 * 60
