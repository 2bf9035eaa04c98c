"""An exception on one gang is that gang's answer; all others are decided as if it did not exist.

An exception is planted at every stage of a cycle, for one gang of random small clusters. The
decisions about the other gangs must be those of a cycle without the gang. A running gang keeps its
slots, so it is compared with a cycle in which it can only keep them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest

from drumline_scheduler import (
    Admitted,
    BlockReason,
    CycleCache,
    CycleInput,
    Decisions,
    Gang,
    MoveBudget,
    Policy,
    Queue,
    Snapshot,
    decide,
    queue_evictions,
)
from drumline_scheduler.admission import Admission
from drumline_scheduler.decisions import GangFault
from drumline_scheduler.fault_isolation import (
    MAX_FAULTS,
    MAX_NAMESPACE_FAULTS,
    TooManyFaultsError,
    all_gangs,
    without,
)
from drumline_scheduler.faults import fault_about
from drumline_scheduler.growth import Growth
from drumline_scheduler.model import InvalidSnapshotError, with_surplus
from drumline_scheduler.placement.cluster_view import ClusterView
from drumline_scheduler.placement.placer import Placer
from drumline_scheduler.preemption.candidates import Candidates
from drumline_scheduler.preemption.migration import Migrator
from drumline_scheduler.preemption.preemptor import Preemptor
from drumline_scheduler.preemption.repair import GangRepair
from drumline_scheduler.queueing.pending_gangs import PendingGangs
from drumline_scheduler.queueing.reservations import Reservations
from drumline_scheduler.quota.queue_access import QueueAccess
from drumline_scheduler.rejections import Rejection
from tests.property.invariants import violations
from tests.property.planted_faults import (
    Place,
    PlantedError,
    by_keyword,
    cycle_of,
    first_gang,
    first_held,
    first_of_group,
    moving_unit,
    of_others,
    planted,
    requesting,
    some_world,
)
from tests.property.scale import many
from tests.property.scheduling_worlds import World
from tests.unit.scheduler.builders import PREEMPTS, admitted, after, cluster, gang, node, racks, run

pytestmark = pytest.mark.extended(keep=5)

RARE = (36, 44, 46, 51, 64, 78, 84, 88, 118, 126, 131, 141, 152, 200)
"""Worlds with nominated gangs, displaced gangs, surplus gangs and preemptions."""
NUMBERS = (*range(many(slice_of=32, everything=2000)), *RARE)


PLACES = [
    Place(owner=GangRepair, method="repair", uids=first_held),
    Place(owner=GangRepair, method="relocate", uids=first_held),
    Place(owner=Admission, method="start_nominated", uids=first_gang),
    Place(owner=Admission, method="admit", uids=first_gang),
    Place(owner=Admission, method="admit_together", uids=first_of_group),
    Place(owner=Admission, method="waiting", uids=first_gang),
    Place(owner=Growth, method="grow", uids=first_held),
    Place(owner=Growth, method="start_surplus", uids=first_gang),
    Place(owner=Migrator, method="_move", uids=moving_unit),
    Place(owner=Placer, method="find", uids=by_keyword),
    Place(owner=Placer, method="try_find", uids=by_keyword),
    Place(owner=ClusterView, method="search", uids=by_keyword),
    Place(owner=ClusterView, method="fits", uids=by_keyword),
    Place(owner=ClusterView, method="take", uids=by_keyword),
    Place(owner=Preemptor, method="preempt", uids=by_keyword),
    Place(owner=Candidates, method="_is_protected", uids=first_held),
    Place(owner=Candidates, method="moving_costs", uids=first_held),
    Place(owner=Reservations, method="reserve", uids=requesting),
    Place(owner=QueueAccess, method="rejection", uids=first_gang),
    Place(owner=Rejection, method="of", uids=first_gang),
    Place(owner=PendingGangs, method="_register", uids=first_gang),
]


def decided(item: World, cache: CycleCache | None = None) -> Decisions:
    return decide(cycle_of(item), cache=cache)


@cache
def decided_without(number: int, uid: str) -> Decisions:
    """Decide without a waiting gang, or with an inert running gang."""
    item = some_world(number)
    left = without(cycle_of(item), {uid})
    return decided(replace(item, snapshot=left.snapshot, pending=left.pending))


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_an_exception_on_one_gang_changes_nothing_for_all_others(place: Place) -> None:
    hit = 0
    for number in NUMBERS:
        item = some_world(number)
        uids = list(all_gangs(cycle_of(item)))
        for uid in Random(number).sample(uids, min(3, len(uids))):
            memory = CycleCache()
            with planted(place, uid) as raised:
                decisions = decided(item, memory)
                again = decided(item, memory)
            if not raised:
                assert not decisions.faults
                continue
            hit += 1
            assert [fault.uid for fault in decisions.faults] == [uid], (number, uid)
            assert "PlantedError: planted" in decisions.faults[0].error
            expected = decided_without(number, uid)
            assert of_others(decisions, uid) == of_others(expected, uid), (number, uid)
            assert again == decisions, (number, uid)
            assert decided(item, memory) == decided(item), "the cache survives an exception"
            answers = {each.uid: each for each in decisions.blocked}
            if any(each.uid == uid for each in item.pending):
                assert answers[uid].reason is BlockReason.SCHEDULER_ERROR
    assert hit, "no world reaches this place"
    print(f"{place}: {hit} cycles with an exception")


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_exceptions_on_two_gangs_come_to_an_end_and_blame_no_third_one(place: Place) -> None:
    for number in NUMBERS[::2]:
        item = some_world(number)
        uids = list(all_gangs(cycle_of(item)))
        pair = Random(f"pair {number}").sample(uids, min(2, len(uids)))
        with planted(place, *pair) as raised:
            decisions = decided(item)
        assert {fault.uid for fault in decisions.faults} <= set(pair), (number, pair)
        assert bool(decisions.faults) == bool(raised), (number, pair)


def test_gangs_that_are_set_aside_are_not_tried_and_say_why() -> None:
    snapshot = cluster(*racks(count=1, nodes=2))
    bad, good = gang("bad", at=0), gang("good", at=1)
    place = PLACES[3]
    with planted(place, bad.uid) as raised:
        first = run(snapshot, bad, good)
        count = raised[bad.uid]
        second = decide(
            CycleInput(
                snapshot=snapshot,
                pending=(bad, good),
                policy=Policy(),
                now=0.0,
                set_aside=first.faults,
            )
        )
    assert (count, raised[bad.uid]) == (2, 2), "tried once more without the cache"
    assert second == first
    assert [placed.uid for placed in first.placed] == [good.uid]
    assert [each.reason for each in first.blocked] == [BlockReason.SCHEDULER_ERROR]
    assert "stage admit: PlantedError: planted" in first.blocked[0].message


def test_a_running_gang_that_makes_others_raise_is_found() -> None:
    """Each preemptor raises when it looks at the running gang, which is at fault."""
    nodes = racks(count=1, nodes=2)
    queue = Queue(name="research", nominal={"h100": 4}, preemption=PREEMPTS)
    start = cluster(*nodes, queues=(queue,))
    running = [gang(f"r{i}", nodes=1, gpus=2) for i in range(2)]
    snapshot = after(start, running, run(start, *running))
    waiting = [gang(f"w{i}", nodes=1, gpus=2, priority=5, at=float(i)) for i in range(6)]
    place = next(each for each in PLACES if str(each) == "Candidates._is_protected")
    with planted(place, running[0].uid):
        decisions = run(snapshot, *waiting)
    assert [fault.uid for fault in decisions.faults] == [running[0].uid]
    assert [victim.uid for each in decisions.preemptions for victim in each.victims] == [
        running[1].uid
    ]


def test_two_waiting_gangs_that_raise_alike_do_not_put_the_blame_on_running_ones() -> None:
    """Their search for victims raises, and would not without the innocent running gangs."""
    nodes = racks(count=1, nodes=3)
    queue = Queue(name="research", nominal={"h100": 6}, preemption=PREEMPTS)
    start = cluster(*nodes, queues=(queue,))
    running = [gang(f"r{i}", nodes=1, gpus=2) for i in range(3)]
    snapshot = after(start, running, run(start, *running))
    waiting = [gang(f"w{i}", nodes=1, gpus=2, priority=5, at=float(i)) for i in range(3)]
    place = Place(
        owner=Candidates,
        method="permitted",
        uids=lambda _, *, requester, **__: [requester.gang.uid],
    )
    with planted(place, *(each.uid for each in waiting[:2])):
        decisions = run(snapshot, *waiting)
    assert [fault.uid for fault in decisions.faults] == [waiting[0].uid, waiting[1].uid]
    assert [preemption.uid for preemption in decisions.preemptions] == [waiting[2].uid]


def test_many_bad_jobs_of_a_namespace_cost_few_attempts_and_hold_up_nobody_else() -> None:
    snapshot = cluster(*racks(count=1, nodes=2))
    bad = [gang(f"w{i:03}", at=float(i), priority=i) for i in range(300)]
    good = replace(gang("good", at=1000.0, gpus=2), key="other/good")
    place = PLACES[3]
    with planted(place, *(each.uid for each in bad)) as raised:
        decisions = run(snapshot, *bad, good)
    assert raised.total() == MAX_NAMESPACE_FAULTS + 1, "one more attempt without the cache"
    assert [placed.uid for placed in decisions.placed] == [good.uid]
    assert {fault.uid for fault in decisions.faults} == {each.uid for each in bad}
    reasons = {each.reason for each in decisions.blocked}
    assert reasons == {BlockReason.SCHEDULER_ERROR}


def test_with_too_many_faults_the_cycle_fails_and_names_those_that_it_found() -> None:
    """In more namespaces than one cycle goes through."""
    snapshot = cluster(node("n0", "r0"))
    waiting = [
        replace(gang(f"w{i:02}", at=float(i)), key=f"n{i}/w{i:02}") for i in range(MAX_FAULTS + 3)
    ]
    with (
        planted(PLACES[3], *(each.uid for each in waiting)),
        pytest.raises(TooManyFaultsError) as failed,
    ):
        run(snapshot, *waiting)
    assert len(failed.value.faults) == MAX_FAULTS + 1


def test_a_gang_that_is_about_to_move_stays_when_it_is_set_aside() -> None:
    mover = admitted(
        gang("m", gpus=2), "n0", leaving=True, nominated={0: "n1"}, nominated_pool="h100"
    )
    snapshot = cluster(node("n0", "r0"), node("n1", "r1"), running=(mover,))
    waits = [gang(f"w{i}", gpus=2, at=float(i)) for i in range(2)]
    decisions = set_aside(snapshot, *waits, uids=[mover.gang.uid])
    assert decisions.stay == (mover.gang.uid,)
    assert [placed.assignment for placed in decisions.placed] == [("n1",)]


def test_a_gang_and_its_surplus_gang_are_set_aside_together() -> None:
    base = with_surplus(gang("e", nodes=6, gpus=1, sizes=(2, 4, 6)), smallest=2)
    assert base.surplus is not None
    policy = Policy(moves=MoveBudget(gangs=3, gpu_seconds=1e9))
    for lost, uid in ((frozenset[int](), base.surplus.uid), (frozenset({0}), base.uid)):
        snapshot = cluster(
            node("n0", "r0", gpus=4),
            node("n1", "r0", gpus=4),
            node("n2", "r1", gpus=8),
            node("n3", "r1", gpus=4),
            node("s0", "r0", gpus=4, pool="spot"),
            running=(
                admitted(base, "n0", "n0", lost=lost),
                admitted(base.surplus, "s0", "s0", pool="spot"),
                admitted(gang("o", gpus=4), "n2"),
            ),
            pools=("h100", "spot"),
        )
        decisions = set_aside(snapshot, uids=[uid], policy=policy)
        moved = {move.uid for move in decisions.moves}
        changed = {each.uid for each in (*decisions.resized, *decisions.placed)}
        assert not (moved | changed) & {base.uid, base.surplus.uid}


def test_a_gang_that_raises_as_its_queue_is_drained_is_set_aside() -> None:
    queues = (
        Queue(name="research", nominal={"h100": 100}),
        Queue(name="q2", nominal={"h100": 100}, drained=True, held=True),
    )
    bad = admitted(gang("bad", queue="q2"), "n0")
    snapshot = cluster(node("n0", "r0"), node("n1", "r1"), queues=queues, running=(bad,))
    real = queue_evictions._eviction

    def raises(held: Admitted, **named: Any) -> Any:
        if held.gang.uid == bad.gang.uid:
            raise PlantedError("planted")
        return real(held, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_evictions, "_eviction", raises)
        decisions = run(snapshot, gang("w"))
    assert [placed.key for placed in decisions.placed] == ["training/w"]
    assert [(fault.uid, fault.stage) for fault in decisions.faults] == [(bad.gang.uid, "queue")]
    assert decisions.evictions == ()


def test_a_leaving_gang_that_raises_leaves_nominated_gangs_alone() -> None:
    place = next(each for each in PLACES if str(each) == "QueueAccess.rejection")
    nominated = [
        gang(
            f"n{i}",
            nodes=2,
            gpus=2,
            sizes=(1, 2),
            at=5.0 + i,
            nominated=(f"n{i + 1}",),
            nominated_pool="h100",
        )
        for i in range(3)
    ]
    bad = admitted(gang("bad", gpus=2), "n0", leaving=True)
    snapshot = cluster(*(node(f"n{i}", "r0") for i in range(5)), running=(bad,))
    with planted(place, bad.gang.uid):
        decisions = run(snapshot, *nominated)
    assert [fault.uid for fault in decisions.faults] == [bad.gang.uid]
    assert decisions.placed


def test_an_exception_that_passes_without_the_cache_is_reported_with_its_cause() -> None:
    calls, admit = Counter[str](), Admission.admit

    def raises_once(admission: Admission, item: Gang) -> Any:
        calls[item.uid] += 1
        if calls[item.uid] == 1:
            raise PlantedError("poisoned")
        return admit(admission, item)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Admission, "admit", raises_once)
        decisions = run(cluster(node("n0", "r0")), gang("w"))
    [fault] = decisions.faults
    assert (fault.uid, fault.stage) == ("", "cache")
    assert fault.error.startswith("PlantedError: poisoned")
    assert decisions.placed


def test_an_exception_without_a_text_is_named() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    assert fault_about("a/b", uid="u", stage="admit", error=MuteError()).error == "MuteError"


def test_an_exception_that_no_gang_explains_fails_the_cycle() -> None:
    snapshot = cluster(node("n0", "r0"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("drumline_scheduler.cycle.open_session", _raise)
        with pytest.raises(PlantedError):
            run(snapshot, gang("a"))


def test_two_gangs_with_one_uid_are_rejected_as_before() -> None:
    snapshot = cluster(node("n0", "r0"))
    with pytest.raises(InvalidSnapshotError):
        run(snapshot, gang("a"), gang("a"))


def test_a_fault_is_a_violation_of_the_invariants() -> None:
    """So no test and no replay takes it for a plain rejection."""
    snapshot = cluster(node("n0", "r0"))
    item = gang("a")
    with planted(PLACES[3], item.uid):
        decisions = run(snapshot, item)
    broken_rules = violations(snapshot=snapshot, pending=(item,), decisions=decisions)
    assert any("PlantedError" in each for each in broken_rules)


def set_aside(
    snapshot: Snapshot, *pending: Gang, uids: Sequence[str], policy: Policy | None = None
) -> Decisions:
    return decide(
        CycleInput(
            snapshot=snapshot,
            pending=pending,
            policy=policy or Policy(),
            now=0.0,
            set_aside=tuple(GangFault(key=uid, uid=uid, stage="move", error="x") for uid in uids),
        )
    )


def _raise(_cycle: CycleInput, **_: object) -> None:
    raise PlantedError("planted")
