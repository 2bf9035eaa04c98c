"""When those who wait will probably start."""

from __future__ import annotations

from dataclasses import replace

from drumline_scheduler import (
    Admitted,
    Gang,
    Policy,
    Predecessor,
    PredecessorState,
    Snapshot,
    WaitingRule,
)
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.forecast.expected_starts import (
    LINE,
    MOST_SECONDS,
    USUAL_SECONDS,
    ExpectedStart,
    expected_starts,
)
from tests.unit.scheduler.builders import admitted, cluster, gang, node, queue, racks

POLICY = Policy(waiting=WaitingRule.BACKFILL)
NOW = 1000.0


def runs(name: str, *places: str, limit: float | None, since: float = NOW) -> Admitted:
    item = gang(name, nodes=len(places), gpus=2, max_runtime_seconds=limit)
    return admitted(item, *places, admitted_at=since)


def starts(
    snapshot: Snapshot, *pending: Gang, samples: int = 41, seed: int = 0
) -> dict[str, ExpectedStart]:
    result = expected_starts(
        CycleInput(snapshot=snapshot, pending=pending, policy=POLICY, now=NOW),
        samples=samples,
        seed=seed,
    )
    return {each.key.removeprefix("training/"): each for each in result}


def test_who_has_room_starts_now() -> None:
    result = starts(cluster(*racks()), gang("a"))
    assert (result["a"].p50_at, result["a"].p90_at) == (NOW, NOW)


def test_a_late_kind_stands_behind_the_equal_gangs_that_came_before_it() -> None:
    snapshot = cluster(*racks(), running=[runs("r", "n0", limit=300)])
    early = [gang(f"a{i:02}", nodes=4, gpus=2, at=i) for i in range(LINE + 8)]
    late = gang("late", nodes=3, gpus=2, at=99)
    cycle = CycleInput(snapshot=snapshot, pending=(*early, late), policy=Policy(), now=NOW)
    line = expected_starts(cycle, samples=1)
    assert [each.key for each in line] == [each.key for each in early[:LINE]]


def fleet(*parts: float) -> Snapshot:
    """Nodes in use, each by a gang that has used such a part of its limit."""
    return cluster(
        *(node(f"n{i}", "rack-0") for i in range(len(parts))),
        running=[
            runs(f"r{i}", f"n{i}", limit=300, since=NOW - 300 * part)
            for i, part in enumerate(parts)
        ],
    )


def test_of_one_limit_nobody_knows_whether_it_is_honest() -> None:
    result = starts(fleet(0.0), gang("a", gpus=2))["a"]
    assert NOW + 100 < result.p50_at < NOW + 300
    assert result.p90_at == NOW + 300


def test_where_limits_are_used_up_they_are_honest() -> None:
    result = starts(fleet(*(i / 20 for i in range(20))), gang("a", gpus=2), samples=9)["a"]
    assert (result.p50_at, result.p90_at) == (NOW + 15, NOW + 15)


def test_where_none_is_half_used_it_starts_before_the_limit() -> None:
    result = starts(fleet(*([0.1] * 20)), gang("a", nodes=20, gpus=2), samples=15)["a"]
    assert NOW + 200 < result.p50_at < NOW + 270
    short = starts(fleet(*([0.1] * 20)), gang("a", gpus=2), samples=15)["a"]
    assert NOW + 70 <= short.p50_at < short.p90_at < NOW + 130


def unknown(*ages: float) -> ExpectedStart:
    """The start of a gang that needs the place of one of these, whose lengths nobody knows."""
    snapshot = cluster(
        *(node(f"n{i}", "rack-0") for i in range(len(ages))),
        running=[runs(f"r{i}", f"n{i}", limit=None, since=NOW - age) for i, age in enumerate(ages)],
    )
    return starts(snapshot, gang("a", nodes=len(ages), gpus=2), samples=151)["a"]


def test_nobody_expects_the_places_of_a_foreign_pod_until_it_leaves() -> None:
    pod = replace(runs("pods/notebook", "n0", limit=None), is_residual=True, is_foreign=True)
    stays = cluster(node("n0", "rack-0"), running=[pod])
    assert starts(stays, gang("a", gpus=2))["a"].p50_at is None
    leaves = cluster(node("n0", "rack-0"), running=[replace(pod, leaving=True)])
    assert starts(leaves, gang("a", gpus=2))["a"].p50_at == NOW + 60


def test_a_foreign_pod_with_a_limit_gives_its_places_back_by_then() -> None:
    pod = replace(runs("pods/batch", "n0", limit=None), is_residual=True, is_foreign=True)
    ends = cluster(node("n0", "rack-0"), running=[replace(pod, ends_at=NOW + 500)])
    assert starts(ends, gang("a", gpus=2))["a"].p50_at == NOW + 500


def test_what_waits_and_is_foreign_holds_its_places_for_as_long_as_it_may() -> None:
    """A notebook without a limit comes before the job, and nobody knows when it ends."""
    busy = cluster(node("n0", "rack-0"), running=[runs("r", "n0", limit=100)])
    first = gang("pods/book", gpus=2, priority=1, is_foreign=True)
    endless = starts(busy, first, gang("a", gpus=2))
    assert endless["pods/book"].p50_at is not None
    assert endless["a"].p50_at is None
    limited = starts(busy, replace(first, max_runtime_seconds=50), gang("a", gpus=2))
    assert limited["a"].p50_at is not None


def test_a_foreign_pod_that_is_evicted_waits_in_no_queue() -> None:
    pod = replace(runs("pods/chat", "n0", limit=None), is_residual=True, is_foreign=True)
    lent = replace(pod, gang=replace(pod.gang, queue="serving"), preemptible=True)
    snapshot = cluster(
        node("n0", "rack-0"),
        running=[lent],
        queues=(queue("org"), queue("research", 2, parent="org"), queue("serving", parent="org")),
    )
    result = starts(snapshot, gang("a", gpus=2))
    assert list(result) == ["a"]
    assert result["a"].p50_at == NOW + 60


def test_behind_a_gang_that_has_just_started_the_band_is_wide() -> None:
    result = unknown(0.0)
    assert USUAL_SECONDS / 2 < result.p50_at - NOW < USUAL_SECONDS * 2
    assert result.p90_at - NOW > 5 * (result.p50_at - NOW)


def test_the_longer_a_gang_of_unknown_length_has_run_the_longer_it_goes_on() -> None:
    hour, day, month = (unknown(age).p50_at - NOW for age in (3600.0, 86_400.0, 30 * 86_400.0))
    assert 3600 < hour < day / 4 < month / 40


def test_an_age_beyond_every_length_is_a_length_all_the_same() -> None:
    result = unknown(1e12, 0.0, 0.0)
    assert result.p50_at - NOW == result.p90_at - NOW == MOST_SECONDS


def test_reported_steps_make_the_start_certain_within_a_fifth() -> None:
    held = replace(runs("r", "n0", limit=90_000, since=0.0), ends_at=NOW + 1000)
    result = starts(cluster(node("n0", "rack-0"), running=[held]), gang("a", gpus=2))["a"]
    assert NOW + 800 <= result.p50_at <= result.p90_at <= NOW + 1200


def test_the_line_is_served_one_after_the_other() -> None:
    snapshot = cluster(node("n0", "rack-0"), running=[runs("r", "n0", limit=300)])
    line = [replace(gang(f"w{i}", gpus=2, at=i), max_runtime_seconds=300.0) for i in range(3)]
    result = starts(snapshot, *line)
    moments = [result[f"w{i}"].p50_at for i in range(3)]
    assert moments == sorted(moments)
    assert moments[2] - moments[0] > 200


def test_who_never_fits_has_no_moment() -> None:
    assert starts(cluster(*racks()), gang("a", nodes=99, gpus=2)) == {}


def test_whoever_is_sent_away_first_is_waited_for() -> None:
    snapshot = cluster(
        node("n0", "rack-0"),
        running=[runs("r", "n0", limit=None, since=0.0)],
        queues=(queue("research", 100),),
    )
    result = starts(snapshot, gang("a", gpus=2, priority=5), gang("b", gpus=2, at=1))
    assert result["a"].p50_at == NOW + 60
    assert result["b"].p50_at > NOW + 60


def test_pods_that_end_and_places_of_bound_pods_are_free_later() -> None:
    """What a gang holds is in `used`: it has to go from there when the gang ends."""
    held = runs("r", "n0", limit=90)
    snapshot = cluster(node("n0", "rack-0"), running=[held])
    assert snapshot.nodes[0].used.gpus == 2
    assert starts(snapshot, gang("a", gpus=2))["a"].p90_at <= NOW + 90


def test_the_same_question_has_the_same_answer_in_any_order() -> None:
    snapshot = cluster(
        *racks(), running=[runs(f"r{i}", f"n{i}", limit=100.0 * (i + 1)) for i in range(4)]
    )
    line = [gang(f"w{i}", gpus=2, at=i) for i in range(6)]
    turned = replace(snapshot, nodes=snapshot.nodes[::-1], admitted=snapshot.admitted[::-1])
    assert starts(snapshot, *line) == starts(turned, *line[::-1])
    assert starts(snapshot, *line) != starts(snapshot, *line, seed=1)


def test_who_is_told_to_stop_looks_no_further() -> None:
    snapshot = cluster(node("n0", "rack-0"), running=[runs("r", "n0", limit=300)])
    answers = iter((True, False, False))
    result = expected_starts(
        CycleInput(snapshot=snapshot, pending=(gang("a", gpus=2),), policy=Policy(), now=NOW),
        go_on=lambda: next(answers),
    )
    assert (result, list(answers)) == ((), [])


def test_a_chain_is_expected_link_by_link() -> None:
    """One node; `b` starts after `a`, and `c`, which came last, in between or after both."""
    snapshot = cluster(node("n0", "rack-0"), running=[runs("r", "n0", limit=300)])
    first, second = (
        replace(gang(name, gpus=2, at=at), max_runtime_seconds=300.0)
        for name, at in (("a", 2.0), ("b", 1.0))
    )
    second = replace(second, after=(Predecessor(key=first.key),))
    result = starts(snapshot, first, second)
    assert result["a"].p50_at < result["b"].p50_at < NOW + 600
    assert result["b"].p90_at <= NOW + 600


def test_what_waits_for_a_running_job_starts_when_that_ends() -> None:
    held = replace(runs("r", "n0", limit=90_000, since=0.0), ends_at=NOW + 1000)
    waits = gang("a", gpus=2, after=(Predecessor(key=held.gang.key),))
    result = starts(cluster(*racks(), running=[held]), waits)["a"]
    assert NOW + 800 <= result.p50_at <= result.p90_at <= NOW + 1200


def test_what_waits_for_a_failed_job_is_not_expected() -> None:
    lost = Predecessor(key="training/x", state=PredecessorState.FAILED)
    assert starts(cluster(*racks()), gang("a", after=(lost,))) == {}


def test_a_job_has_the_place_in_line_that_it_has_once_it_may_start() -> None:
    """`late` came before `other` and waits for `r`; when that ends it is behind."""
    held = runs("r", "n0", limit=300)
    late = gang("late", gpus=2, at=0.0, after=(Predecessor(key=held.gang.key),))
    snapshot = cluster(node("n0", "rack-0"), running=[held])
    result = starts(snapshot, late, gang("other", gpus=2, at=5.0))
    assert result["other"].p50_at < result["late"].p50_at


def test_nobody_expects_the_places_of_a_gang_that_should_have_left() -> None:
    leaves = replace(runs("r", "n0", limit=300), leaving=True, leaves_by=NOW)
    late = replace(leaves, leaves_by=NOW - POLICY.overdue_seconds)
    site = cluster(node("n0"), running=[leaves])
    assert starts(site, gang("a", gpus=2))["a"].p90_at is not None
    hangs = starts(replace(site, admitted=(late,)), gang("a", gpus=2))
    assert hangs["a"].p50_at is None


def test_nobody_expects_the_places_of_a_pod_that_hangs() -> None:
    rest = replace(runs("r", "n0", limit=None), is_residual=True, preemptible=False)
    hanging = replace(rest, gang=replace(rest.gang, hanging=("team/r-0 on n0",)))
    site = cluster(node("n0"), running=[rest])
    assert starts(site, gang("a", gpus=2))["a"].p90_at is not None
    hangs = starts(replace(site, admitted=(hanging,)), gang("a", gpus=2))
    assert hangs["a"].p50_at is None
