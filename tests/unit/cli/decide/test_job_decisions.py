"""Decisions as lines, whatever their kind."""

from __future__ import annotations

from dataclasses import replace

from drumline_cli.decide.job_decisions import JobVerdict, job_decisions
from drumline_cli.decide.table import table
from drumline_scheduler.decisions import (
    Blocked,
    BlockReason,
    Decisions,
    Move,
    MoveReason,
    Placed,
    Preemption,
    Reservation,
    Resized,
    Victim,
    VictimReason,
)
from drumline_scheduler.model import CapacityType, Pool, Slice, with_surplus
from tests.texts import missing
from tests.unit.scheduler.builders import admitted, cluster, gang, node

HELD = {
    name: admitted(gang(name, nodes=2, sizes=(1, 2), gpus=4), "n0", "n1")
    for name in ("broken", "grown", "shrunk", "gone", "aside", "moved")
}
SITE = cluster(node("n0"), node("n1"), running=HELD.values())
WAITING = gang("waits", nodes=2, gpus=4)


def victim(name: str, **rest: object) -> Victim:
    fields = {"gpus": 4, "gpu_seconds_lost": 12.0, "why": VictimReason.LOWER_PRIORITY, **rest}
    return Victim(key=f"training/{name}", uid=f"uid-{name}", **fields)  # type: ignore[arg-type] - fields of several types


def named(name: str) -> dict[str, str]:
    return {"key": f"training/{name}", "uid": f"uid-{name}", "pool": "h100"}


def test_every_kind_of_decision_has_its_line() -> None:
    decisions = Decisions(
        placed=(Placed(**named("broken"), assignment=("n0", "n2"), replaced=(1,)),),
        resized=(Resized(**named("grown"), kept=(0, 1), added=("n2",)),),
        preemptions=(
            Preemption(
                **named("waits"),
                assignment=("n0", "n1"),
                victims=(
                    victim("gone"),
                    victim("shrunk", kept=(0,)),
                    victim("aside", moves_to=("n4", "n5"), moves_to_pool="a100"),
                ),
            ),
        ),
        moves=(
            Move(
                **named("moved"),
                assignment=("n6", "n7"),
                why=MoveReason.DEFRAGMENTATION,
                gpu_seconds_lost=5.0,
                domains_freed=2,
            ),
        ),
        blocked=(
            Blocked(
                key="training/waits",
                uid="uid-waits",
                reason=BlockReason.WAITING_FOR_VICTIMS,
                message="waits for its victims",
            ),
        ),
        reservations=(Reservation(**named("waits"), assignment=("n0", "n1"), start_at=99.0),),
    )
    rows = job_decisions(decisions, snapshot=SITE, pending=[WAITING])
    assert [(row.job.partition("/")[2], row.verdict, row.pool, row.nodes) for row in rows] == [
        ("broken", JobVerdict.REPAIRED, "h100", ("n0", "n2")),
        ("grown", JobVerdict.RESIZED, "h100", ("n0", "n1", "n2")),
        ("gone", JobVerdict.PREEMPTED, "h100", ()),
        ("shrunk", JobVerdict.PREEMPTED, "h100", ()),
        ("aside", JobVerdict.MOVED, "a100", ("n4", "n5")),
        ("moved", JobVerdict.MOVED, "h100", ("n6", "n7")),
        ("waits", JobVerdict.WAITS, "h100", ("n0", "n1")),
    ]
    assert [row.by for row in rows[2:5]] == ["training/waits"] * 3
    assert (rows[3].pods, rows[3].message) == (1, "continues with 1 pod")
    assert rows[5].message == "frees 2 domains"
    assert rows[6].reserved_at == 99.0


def test_places_have_their_price_by_the_hour_and_at_most() -> None:
    spot = Pool(name="h100", capacity=CapacityType.SPOT, price=900_000)
    site = replace(SITE, pools=(spot,))
    longest = gang("waits", nodes=2, gpus=4, max_runtime_seconds=86_400)
    decisions = Decisions(placed=(Placed(**named("waits"), assignment=("n0", "n1")),))
    (row,) = job_decisions(decisions, snapshot=site, pending=[longest])
    assert (row.capacity, row.cost_per_hour, row.cost_at_most) == ("Spot", "7.20", "172.80")
    text = table([row], now=0.0, wide=False)
    assert not missing(text, "h100", "n0", "n1", "7.20", "172.80")


def test_parts_of_gpus_have_their_share_of_the_price() -> None:
    mixed = Pool(name="h100", price=2_500_000, parts_per_gpu=7)
    longest = gang("waits", nodes=2, gpus=4, max_runtime_seconds=3600)
    decisions = Decisions(placed=(Placed(**named("waits"), assignment=("n0", "n1")),))
    site = replace(SITE, pools=(mixed,))
    (row,) = job_decisions(decisions, snapshot=site, pending=[longest])
    assert (row.cost_per_hour, row.cost_at_most) == ("2.857143", "2.857143")
    assert "8 parts" in table([row], now=0.0, wide=False)


def test_without_a_price_or_a_longest_runtime_no_cost_is_made_up() -> None:
    decisions = Decisions(placed=(Placed(**named("waits"), assignment=("n0", "n1")),))
    (row,) = job_decisions(decisions, snapshot=SITE, pending=[WAITING])
    assert (row.capacity, row.cost_per_hour, row.cost_at_most) == ("OnDemand", "", "")
    priced = replace(SITE, pools=(Pool(name="h100", price=2_500_000),))
    (row,) = job_decisions(decisions, snapshot=priced, pending=[WAITING])
    assert (row.cost_per_hour, row.cost_at_most) == ("20.00", "")
    assert "OnDemand, 20.00 an hour\n" in table([row], now=0.0, wide=False)


def test_nodes_that_an_earlier_cycle_kept_for_a_job_are_named() -> None:
    kept = gang("kept", nodes=2, gpus=4, nominated=("n0", "n1"), nominated_pool="h100")
    blocked = Blocked(
        key="training/kept",
        uid="uid-kept",
        reason=BlockReason.WAITING_FOR_VICTIMS,
        message="waits for its victims",
    )
    (row,) = job_decisions(Decisions(blocked=(blocked,)), snapshot=SITE, pending=[kept])
    assert (row.pool, row.nodes) == ("h100", ("n0", "n1"))


def test_what_a_gang_asks_of_the_topology_is_said() -> None:
    slices = (Slice(level="rack", pods=4, required=False), Slice(level="clique", pods=2))
    asking = gang("asks", nodes=4, required_level="block", slices=slices)
    decisions = Decisions(
        blocked=(
            Blocked(
                key="training/asks",
                uid="uid-asks",
                reason=BlockReason.WAITING_FOR_VICTIMS,
                message="waits for its victims",
            ),
        )
    )
    (row,) = job_decisions(decisions, snapshot=SITE, pending=[asking])
    assert row.asks == (
        "all in one block",
        "every 4 pods in one rack if possible",
        "every 2 pods in one clique",
    )
    shown = table([row], now=0.0, wide=True)
    assert ", ".join(row.asks) in shown
    assert "ASKS" not in table([row], now=0.0, wide=False)


def test_surplus_has_a_row_of_its_own_with_what_it_costs_in_its_pool() -> None:
    job = with_surplus(gang("waits", nodes=3, gpus=4, sizes=(1, 3)), smallest=1)
    assert job.surplus is not None
    decisions = Decisions(
        placed=(
            Placed(**named("waits"), assignment=("n0",)),
            Placed(key=job.key, uid=job.surplus.uid, pool="spot", assignment=("s0", "s1")),
        )
    )
    pools = (
        Pool(name="h100", price=2_500_000),
        Pool(name="spot", capacity=CapacityType.SPOT, price=900_000),
    )
    site = replace(cluster(node("n0")), pools=pools)
    base, surplus = job_decisions(decisions, snapshot=site, pending=[job])
    assert (base.uid, base.surplus, base.pool, base.cost_per_hour) == (
        job.uid,
        False,
        "h100",
        "10.00",
    )
    assert (surplus.uid, surplus.surplus, surplus.pods, surplus.gpus) == (job.uid, True, 2, 8)
    assert (surplus.pool, surplus.capacity, surplus.cost_per_hour) == ("spot", "Spot", "7.20")
    assert "training/waits (surplus)" in table([base, surplus], now=0.0, wide=False)
