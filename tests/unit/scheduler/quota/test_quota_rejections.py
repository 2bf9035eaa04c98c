"""Rejections for want of quota and at users' caps, and that what they propose is true."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest

from drumline_scheduler import (
    Blocked,
    BlockReason,
    CycleCache,
    CycleInput,
    Gang,
    Policy,
    Queue,
    Remedy,
    RemedyKind,
    Role,
    Snapshot,
    decide,
)
from tests.property.invariants import violations
from tests.texts import missing
from tests.unit.scheduler.builders import (
    admitted,
    after,
    cluster,
    gang,
    node,
    pod,
    queue,
    racks,
    run,
    without,
)

TEAM = (queue("org"), queue("a", 2, parent="org"), queue("b", 2, parent="org"))


def refused(snapshot: Snapshot, each_gang: Gang) -> Blocked:
    return run(snapshot, each_gang).blocked[0]


def raised(limits: Mapping[str, int] | None, pool: str, amount: int) -> dict[str, int]:
    base = dict(limits or {})
    base[pool] = base.get(pool, 0) + amount
    return base


def remedy_of(blocked: Blocked) -> Remedy:
    assert blocked.remedy is not None
    return blocked.remedy


def applied(snapshot: Snapshot, blocked: Blocked) -> Snapshot:
    """The snapshot with the remedy of a rejection."""
    remedy = remedy_of(blocked)
    match remedy.kind:
        case RemedyKind.WAIT_FOR:
            names = [key.removeprefix("training/") for key in blocked.blockers]
            return without(snapshot, *names)
        case RemedyKind.RAISE_QUOTA:
            field = "nominal"
        case RemedyKind.RAISE_USER_LIMIT:
            field = "user_limit"
        case _:
            raise AssertionError(remedy)
    changed = [
        replace(
            each_queue, **{field: raised(getattr(each_queue, field), remedy.pool, remedy.amount)}
        )
        if each_queue.name == remedy.where
        else each_queue
        for each_queue in snapshot.queues
    ]
    return replace(snapshot, queues=tuple(changed))


def less(remedy: Remedy) -> Remedy:
    return replace(remedy, amount=remedy.amount - 1)


def hold_true(snapshot: Snapshot, each_gang: Gang) -> Blocked:
    """A rejection whose remedy lets the gang start, and nothing less does."""
    blocked = refused(snapshot, each_gang)
    assert run(applied(snapshot, blocked), each_gang).placed, blocked
    remedy = remedy_of(blocked)
    if remedy.kind is RemedyKind.WAIT_FOR:
        for i in range(len(blocked.blockers)):
            fewer = (*blocked.blockers[:i], *blocked.blockers[i + 1 :])
            assert not run(applied(snapshot, replace(blocked, blockers=fewer)), each_gang).placed
    elif remedy.amount:
        assert not run(applied(snapshot, replace(blocked, remedy=less(remedy))), each_gang).placed
    return blocked


def test_a_gang_above_its_quota_is_told_how_much_more_it_takes() -> None:
    snapshot = cluster(*racks(), queues=(queue("research", 4),))
    blocked = hold_true(snapshot, gang("x", nodes=3, gpus=2))
    assert blocked.reason is BlockReason.EXCEEDS_QUOTA
    assert blocked.remedy == Remedy(
        kind=RemedyKind.RAISE_QUOTA, amount=2, where="research", pool="h100"
    )


def test_a_quota_in_percent_waits_for_nodes_that_are_out_and_no_longer_than_they_are() -> None:
    half = queue("research", 2, lasting_nominal={"h100": 4})
    snapshot = cluster(*racks(), queues=(half,))
    blocked = hold_true(snapshot, gang("x", nodes=2, gpus=2))
    assert blocked.reason is BlockReason.NODES_UNAVAILABLE
    assert not missing(blocked.message, "may hold 2", "4 once all are back", "percentage")
    assert refused(snapshot, gang("x", nodes=5)).reason is BlockReason.EXCEEDS_QUOTA
    without_any = cluster(*racks(), queues=(replace(half, nominal={"h100": 0}),))
    assert refused(without_any, gang("x")).reason is BlockReason.NODES_UNAVAILABLE


def test_a_pool_that_is_gone_is_named_beside_one_with_a_quota_of_zero() -> None:
    owner = replace(queue("research"), nominal={"h100": 0, "old": 64})
    for asks in (gang("x"), gang("x", pools=("old", "h100"))):
        blocked = refused(cluster(*racks(), queues=(owner,)), asks)
        assert blocked.reason is BlockReason.NO_QUOTA_IN_POOL
        assert not missing(blocked.message, "it has quota in no pool", "pool old does not exist")


def test_what_others_hold_of_the_cohort_is_counted_in() -> None:
    held = admitted(gang("held", nodes=2, queue="b"), "n0", "n0")
    snapshot = cluster(*racks(), queues=TEAM, running=[held])
    blocked = hold_true(snapshot, gang("x", nodes=5, queue="a"))
    assert blocked.remedy == Remedy(kind=RemedyKind.RAISE_QUOTA, amount=3, where="a", pool="h100")


def test_a_pool_without_quota_may_be_opened_with_none_where_there_is_some_to_borrow() -> None:
    queues = (TEAM[0], replace(TEAM[1], nominal={}), TEAM[2])
    snapshot = cluster(*racks(), queues=queues)
    blocked = hold_true(snapshot, gang("x", nodes=2, queue="a"))
    assert blocked.reason is BlockReason.NO_QUOTA_IN_POOL
    assert blocked.remedy == Remedy(kind=RemedyKind.RAISE_QUOTA, where="a", pool="h100")
    assert hold_true(snapshot, gang("x", nodes=3, queue="a")).remedy == replace(
        remedy_of(blocked), amount=1
    )


def test_more_quota_is_no_remedy_where_there_are_no_places_either() -> None:
    held = admitted(gang("held", nodes=2, gpus=2, queue="b"), "n0", "n1")
    snapshot = cluster(*racks(count=1), queues=(*TEAM, queue("c", 9)), running=[held])
    assert refused(snapshot, gang("x", nodes=5, gpus=1, queue="a")).remedy is None


def test_who_has_quota_is_named_before_those_who_only_have_places() -> None:
    """The queue's own job has to leave for the quota, one of another queue for the places."""
    own = admitted(gang("own", nodes=2, queue="a"), "n0", "n0")
    other = admitted(gang("other", nodes=2, queue="c"), "n1", "n1")
    queues = (queue("a", 3), queue("c", 9))
    snapshot = cluster(*racks(count=1), queues=queues, running=[own, other])
    blocked = hold_true(snapshot, gang("x", nodes=3, queue="a"))
    assert blocked.reason is BlockReason.QUOTA_EXHAUSTED
    assert blocked.blockers == ("training/own", "training/other")
    assert blocked.remedy == Remedy(kind=RemedyKind.WAIT_FOR, pool="h100")


CAPPED = queue("research", 9, user_limit={"h100": 3})


def test_a_user_at_his_cap_waits_for_his_own_jobs() -> None:
    running = [
        admitted(gang("mine", nodes=2, user="u"), "n0", "n0"),
        admitted(gang("small", user="u"), "n1"),
        admitted(gang("other", user="v"), "n1"),
    ]
    snapshot = cluster(*racks(), queues=(CAPPED,), running=running)
    blocked = hold_true(snapshot, gang("x", nodes=2, user="u"))
    assert blocked.reason is BlockReason.USER_LIMIT
    assert blocked.blockers == ("training/mine",)
    assert (blocked.needed, blocked.available) == (2, 0)
    assert blocked.remedy == Remedy(kind=RemedyKind.WAIT_FOR, pool="h100")
    assert not missing(
        blocked.message, "user u", "3 GPUs", "h100", "research", "0", "2", "training/mine (2)"
    )
    assert run(snapshot, gang("x", nodes=2, user="v")).placed


def test_a_gang_above_the_cap_never_starts_and_says_what_cap_would_do() -> None:
    running = [admitted(gang("mine", user="u"), "n0")]
    snapshot = cluster(*racks(), queues=(CAPPED,), running=running)
    blocked = hold_true(snapshot, gang("x", nodes=4, user="u"))
    assert blocked.reason is BlockReason.EXCEEDS_QUOTA
    assert blocked.remedy == Remedy(
        kind=RemedyKind.RAISE_USER_LIMIT, amount=2, where="research", pool="h100"
    )


def test_one_cycle_does_not_take_a_user_above_his_cap() -> None:
    gangs = [gang(f"g{i}", gpus=2, user="u", at=i) for i in range(3)]
    decisions = run(cluster(*racks(), queues=(CAPPED,)), *gangs)
    assert [item.key for item in decisions.placed] == ["training/g0"]


def test_roles_count_for_quota_and_cap() -> None:
    gang_a = gang("x", nodes=2, user="u", roles=(Role(name="launcher", pods=2, per_pod=pod(1)),))
    assert refused(cluster(*racks(), queues=(CAPPED,)), gang_a).needed == 4
    assert run(cluster(*racks(), queues=(replace(CAPPED, user_limit={"h100": 4}),)), gang_a).placed


def test_a_cap_is_respected_by_preemption_and_may_be_its_reason() -> None:
    """The user's own lower job makes room under his cap; another user's would not."""
    mine = admitted(gang("mine", nodes=2, user="u"), "n0", "n0")
    cheap = admitted(gang("cheap", nodes=2, user="v"), "n1", "n1")
    snapshot = cluster(*racks(), queues=(CAPPED,), running=[mine, cheap])
    asks = gang("x", nodes=3, user="u", priority=1)
    decisions = run(snapshot, asks)
    assert violations(snapshot=snapshot, pending=[asks], decisions=decisions) == ()
    (preemption,) = decisions.preemptions
    assert [victim.key for victim in preemption.victims] == ["training/mine"]


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("start", range(0, 300, 100))
def test_every_remedy_of_quota_is_true_and_the_smallest(start: int) -> None:
    output: set[RemedyKind] = set()
    for seed in range(start, start + 100):
        random = Random(seed)
        snapshot, job = some_world(random)
        result = run(snapshot, job).blocked
        if result and result[0].remedy is not None and result[0].reason in WANTS_QUOTA:
            output.add(remedy_of(hold_true(snapshot, job)).kind)
    assert output == {RemedyKind.WAIT_FOR, RemedyKind.RAISE_QUOTA, RemedyKind.RAISE_USER_LIMIT}


WANTS_QUOTA = {
    BlockReason.QUOTA_EXHAUSTED,
    BlockReason.EXCEEDS_QUOTA,
    BlockReason.USER_LIMIT,
    BlockReason.NO_QUOTA_IN_POOL,
}


def some_world(random: Random) -> tuple[Snapshot, Gang]:
    """A tree of queues with random limits on 3 nodes of 4 GPUs, some gangs in it, and one more."""

    def some(name: str, parent: str | None) -> Queue:
        def sometimes(most: int) -> dict[str, int] | None:
            return random.choice([None, None, {"h100": random.randint(0, most)}])

        return Queue(
            name=name,
            nominal=random.choice([{}, {"h100": random.randint(0, 5)}, {"h100": 3}]),
            parent=parent,
            borrowing_limit=sometimes(4),
            lending_limit=sometimes(3),
            user_limit=random.choice([None, None, {"h100": random.randint(1, 5)}]),
        )

    def job(name: str) -> Gang:
        count, each = random.choice([(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)])
        user, at = random.choice("uv"), random.choice(["org", "a", "b", "c"])
        return gang(name, nodes=count, gpus=each, queue=at, user=user)

    tree = (some("org", None), some("a", "org"), some("b", "org"), some("c", "a"))
    snapshot = cluster(*(node(f"n{i}", "rack-0", gpus=4) for i in range(3)), queues=tree)
    waiting = [job(f"g{i}") for i in range(6)]
    settled = after(snapshot, waiting, run(snapshot, *waiting))
    bound = tuple(replace(item, reserved=frozenset()) for item in settled.admitted)
    full = cluster(*snapshot.nodes, queues=tree, running=bound)
    return full, job("x")


def test_one_who_moves_inside_the_pool_is_named_once() -> None:
    """It holds places, and others are kept for it."""
    own = admitted(gang("own", nodes=2, queue="a"), "n0", "n0")
    moves = gang("moves", nodes=2, queue="c")
    mover = admitted(
        moves, "n1", "n1", leaving=True, nominated={0: "n2", 1: "n2"}, nominated_pool="h100"
    )
    snapshot = cluster(
        *racks(count=1, nodes=3), queues=(queue("a", 7), queue("c", 9)), running=[own, mover]
    )
    blocked = refused(snapshot, gang("x", nodes=6, queue="a"))
    assert blocked.reason is BlockReason.QUOTA_EXHAUSTED
    assert blocked.blockers == ("training/own", "training/moves")


def test_a_job_that_holds_more_than_its_places_is_named_once_with_all_of_it() -> None:
    """Two shapes of pods of a deleted job run on; neither nodes nor quota are free yet."""
    gone = gang("gone", gpus=1)
    remains = [
        admitted(
            replace(gone, uid=f"{gone.uid}/pods-{number}", per_pod=pod(gpus)),
            place,
            preemptible=False,
            is_residual=True,
        )
        for number, (place, gpus) in enumerate([("n0", 2), ("n1", 1)])
    ]
    snapshot = cluster(*racks(count=1), queues=(queue("research", 4),), running=remains)
    blocked = refused(snapshot, gang("x", nodes=2, gpus=2))
    assert blocked.reason is BlockReason.QUOTA_EXHAUSTED
    assert blocked.blockers == ("training/gone",)
    assert "training/gone (3)" in blocked.message


def test_a_cycle_that_explains_nothing_searches_no_holders_and_leaves_none_to_the_next_one() -> (
    None
):
    held = admitted(gang("own", nodes=2, queue="a"), "n0", "n0")
    snapshot = cluster(*racks(count=1), queues=(queue("a", 2),), running=[held])
    cache, silent = (
        CycleCache(),
        CycleInput(
            snapshot=snapshot,
            pending=(gang("x", queue="a"),),
            policy=Policy(),
            now=0.0,
            explain=False,
        ),
    )
    named = [
        [(each.reason, each.blockers) for each in decide(cycle, cache=cache).blocked]
        for cycle in (silent, replace(silent, explain=True), silent)
    ]
    reason = BlockReason.QUOTA_EXHAUSTED
    assert named == [[(reason, ())], [(reason, ("training/own",))], [(reason, ())]]
