"""A queue with a spot pool and an on-demand pool: fall back, return, and what a reclaim leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from drumline_contract import Progress
from tests.integration.operator.conftest import Site
from tests.integration.operator.trainers import Trainers
from tests.kube import Json, phase_is, reason_is
from tools.cluster.kwok import fake_node

pytestmark = [
    pytest.mark.usefixtures("operator"),
    pytest.mark.extended(keep=5, of="corners of a cluster"),
]

NOTICE = {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}


@dataclass(frozen=True, kw_only=True)
class SpotPool:
    """Its name, and that of its only node."""

    name: str
    node: str
    manifest: Json
    """Of the node."""


@pytest.fixture
def spot(site: Site) -> Iterator[SpotPool]:
    """A spot pool of one node beside the site's pool, which is on-demand; its queue prefers it.

    All of it is known to the operator, so the first cycle that sees a job sees all of it, too.
    """
    name = f"{site.pool}-spot"
    last = max(int(node.rpartition("-")[2]) for node in site.nodes)
    node = fake_node(last + 100, gpus=8, nodes_per_rack=2)
    node["metadata"]["labels"]["drumline.test/spot"] = site.pool
    site.kube.create(node)
    # before the spot pool is made: who knows that one knows this
    capacity = {"type": "OnDemand", "pricePerGpuHour": "2.50"}
    site.kube.patch("gpupools", site.pool, {"spec": {"capacity": capacity}})
    site.kube.create(
        {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "GpuPool",
            "metadata": {"name": name},
            "spec": {
                "nodeSelector": {"drumline.test/spot": site.pool},
                "capacity": {"type": "Spot", "pricePerGpuHour": "0.90"},
            },
        }
    )
    quotas = [{"gpuPool": pool, "nominalGpus": 32} for pool in (site.pool, name)]
    site.kube.patch("trainingqueues", site.queue, {"spec": {"quotas": quotas, "spot": "Prefer"}})
    for pool, gpus in ((site.pool, 8 * len(site.nodes)), (name, 8)):
        wait_reported(site, "gpupools", pool, lambda status, n=gpus: status.get("totalGpus") == n)
    wait_reported(
        site,
        "trainingqueues",
        site.queue,
        lambda status: {each["gpuPool"] for each in status.get("usage") or ()} == {site.pool, name},
    )
    yield SpotPool(name=name, node=node["metadata"]["name"], manifest=node)
    site.kube.delete("gpupools", name)
    site.kube.delete("nodes", node["metadata"]["name"])


def pool_of(job: Json) -> str:
    return job["status"]["assignment"]["gpuPool"]


def wait_reported(site: Site, plural: str, name: str, holds: Callable[[Json], bool]) -> None:
    """Wait until the status of a pool or queue is such."""
    site.kube.wait(
        plural,
        name,
        None,
        lambda body: holds((body or {}).get("status") or {}),
    )


def wait_used(site: Site, pool: str, gpus: int) -> None:
    """Wait until the operator has seen that so many GPUs of a pool are held."""
    wait_reported(site, "gpupools", pool, lambda status: status.get("usedGpus") == gpus)


def submit(site: Site, name: str, **spec: object) -> None:
    """A job of a whole node in any pool of its queue."""
    site.kube.create(
        {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name, "namespace": site.namespace},
            "spec": {
                "queue": site.queue,
                "gpusPerNode": 8,
                "template": {"image": "any:1", "command": ["true"]},
                **spec,
            },
        }
    )


def test_jobs_fall_back_to_on_demand_and_return_to_spot_at_their_next_start(
    site: Site, spot: SpotPool
) -> None:
    submit(site, "first")
    assert pool_of(site.wait("first", phase_is("Running"))) == spot.name
    submit(site, "second")
    assert pool_of(site.wait("second", phase_is("Running"))) == site.pool
    submit(site, "poor", maxPricePerGpuHour="0.50")
    poor = site.wait("poor", reason_is("PriceTooHigh"))
    assert "the job pays at most 0.50 per GPU-hour" in poor["status"]["message"]
    wait_used(site, spot.name, 8)
    site.kube.delete("trainingjobs", "first", site.namespace)
    wait_used(site, spot.name, 0)
    site.kube.patch("trainingjobs", "second", {"spec": {"suspend": True}}, site.namespace)
    site.wait("second", phase_is("Suspended"))
    site.kube.patch("trainingjobs", "second", {"spec": {"suspend": False}}, site.namespace)
    assert pool_of(site.wait("second", phase_is("Running"))) == spot.name
    site.kube.patch("gpupools", spot.name, {"spec": {"capacity": {"pricePerGpuHour": "0.40"}}})
    site.wait("poor", reason_is("InsufficientGpus"))


def test_a_reclaim_stands_in_the_pool_s_history(site: Site, spot: SpotPool) -> None:
    submit(site, "first", gpuPool=spot.name)
    site.wait("first", phase_is("Running"))
    wait_used(site, spot.name, 8)
    site.kube.patch("nodes", spot.node, {"spec": {"taints": [NOTICE]}})
    pool = site.kube.wait(
        "gpupools",
        spot.name,
        None,
        lambda pool: bool(
            ((pool or {}).get("status", {}).get("interruptions") or {}).get("reclaimedNodes")
        ),
    )
    history = pool["status"]["interruptions"]
    assert (history["reclaimedNodes"], history["reclaiming"]) == (1, [spot.node])
    assert sum(each.get("lostGpuSeconds", 0) for each in history["days"]) == 8 * 60


SAVED = Progress(step=30, total_steps=100, checkpoint_step=30, checkpoint_digest="digest-30")


def has_surplus(surplus: Json | None) -> Callable[[Json | None], bool]:
    """Whether a job that has places has these in another pool."""

    def holds(job: Json | None) -> bool:
        assignment = (job or {}).get("status", {}).get("assignment")
        return bool(assignment) and assignment.get("surplus") == surplus

    return holds


def test_an_elastic_job_has_its_surplus_on_spot_loses_it_to_a_reclaim_and_takes_it_again(
    site: Site, spot: SpotPool
) -> None:
    with Trainers(site, "gang", saves=SAVED) as gang:
        gang.submit(nodes=3, minNodes=2, gpuPool=None, spot="Surplus")
        gang.attend("0-g1", "1-g1", "2-g1")
        surplus = {"gpuPool": spot.name, "indices": [2]}
        started = gang.running(1)
        assert pool_of(started) == site.pool
        assert has_surplus(surplus)(started)
        wait_used(site, site.pool, 16)
        wait_used(site, spot.name, 8)
        before = gang.uids()
        site.kube.delete("nodes", spot.node)
        smaller = site.wait("gang", has_surplus(None))
        smaller = gang.running(smaller["status"]["generation"])
        assert smaller["status"]["ready"] == "2/2"
        site.kube.create(spot.manifest)
        larger = site.wait("gang", has_surplus(surplus))
        generation = larger["status"]["generation"]
        assert generation > smaller["status"]["generation"]
        gang.attend("0-g1", "1-g1", f"2-g{generation}")
        assert has_surplus(surplus)(gang.running(generation))
        after = gang.uids()
        assert {name: after[name] for name in ("gang-0-g1", "gang-1-g1")} == {
            name: before[name] for name in ("gang-0-g1", "gang-1-g1")
        }
