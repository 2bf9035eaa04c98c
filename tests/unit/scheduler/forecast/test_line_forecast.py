"""Every line has its own forecast, and a gang that cannot start has none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline.overview.jobs import CANNOT_START as SHOWN_AS_CANNOT_START
from drumline_scheduler import Gang, Queue, Snapshot
from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.forecast.expected_starts import LINE, MOST_GANGS, ExpectedStart, is_vague
from drumline_scheduler.forecast.line_forecast import line_forecast
from drumline_scheduler.forecast.lines import CANNOT_START, LineKey, Lines
from drumline_scheduler.model import Admitted
from tests.unit.scheduler.builders import BEST_EFFORT, admitted, cluster, gang, node, queue

NOW = 1000.0


def starts(snapshot: Snapshot, *pending: Gang) -> dict[str, ExpectedStart]:
    cycle = CycleInput(snapshot=snapshot, pending=pending, policy=BEST_EFFORT, now=NOW)
    forecast = line_forecast(cycle, blocked=decide(cycle).blocked)
    return {start.key.removeprefix("training/"): start for start in forecast.starts}


def crowd(number: int) -> list[Gang]:
    """Jobs of another queue, which come first and never start: its only holder has no end."""
    return [gang(f"crowd-{i}", gpus=8, queue="crowd", at=i, priority=9) for i in range(number)]


def two_queues() -> Snapshot:
    """Queues eta and crowd with a node each, of which another pod holds crowd's for ever."""
    ends = gang("a", gpus=8, queue="eta", max_runtime_seconds=120.0)
    stays = gang("deployment", gpus=8, queue="crowd", is_foreign=True)
    running = [
        admitted(ends, "n0", admitted_at=NOW),
        admitted(stays, "n1", is_foreign=True, is_residual=True),
    ]
    nodes = [node(f"n{i}", "rack", gpus=8) for i in range(3)]
    return cluster(*nodes, queues=(queue("eta", 8), queue("crowd", 8)), running=running)


@pytest.mark.parametrize("size", [42, 400])
def test_a_queue_of_its_own_is_forecast_by_its_own_line(size: int) -> None:
    waits = gang("b", gpus=8, queue="eta", at=1000.0, max_runtime_seconds=120.0)
    known = starts(two_queues(), *crowd(size), waits)
    p50, p90 = known["b"].p50_at, known["b"].p90_at
    assert p50 is not None
    assert p90 is not None
    assert NOW < p50 <= NOW + 120
    assert p90 <= NOW + 500


def test_behind_pods_without_an_end_no_start_is_known() -> None:
    assert set(starts(two_queues(), *crowd(3))) == set()


def held(snapshot: Snapshot) -> Snapshot:
    queues = tuple(replace(each, held=True) for each in snapshot.queues)
    return replace(snapshot, queues=queues)


def test_what_cannot_start_has_no_expected_start() -> None:
    waits, too_large = gang("b", gpus=8, queue="eta"), gang("c", nodes=9, gpus=8, queue="eta")
    assert set(starts(two_queues(), waits, too_large)) == {"b"}
    assert starts(held(two_queues()), waits, too_large) == {}


def full(limit: float | None, *, since: float) -> list[Admitted]:
    runs = gang("runs", gpus=8, max_runtime_seconds=limit)
    return [admitted(runs, "n0", admitted_at=since)]


def test_a_band_of_a_year_is_not_known() -> None:
    snapshot = cluster(node("n0", gpus=8), running=full(None, since=NOW - 30 * 86_400))
    (start,) = starts(snapshot, gang("waits", gpus=8)).values()
    assert (start.p50_at, start.p90_at) == (None, None)
    certain = cluster(node("n0", gpus=8), running=full(90 * 86_400, since=NOW))
    (start,) = starts(certain, gang("waits", gpus=8)).values()
    assert start.p50_at is not None


@pytest.mark.parametrize(
    ("early", "late", "vague"),
    [
        (60, 6 * 86_400, False),
        (60, 8 * 86_400, True),
        (2 * 86_400, 8 * 86_400, False),
        (16 * 86_400, 365 * 86_400, True),
    ],
)
def test_a_band_is_vague_if_it_is_wide_and_long(early: float, late: float, vague: bool) -> None:
    start = ExpectedStart(key="k", uid="u", p50_at=NOW + early, p90_at=NOW + late)
    assert is_vague(start, now=NOW) is vague


def queues_of(*names: str, pools: tuple[str, ...] = ("h100",)) -> tuple[Queue, ...]:
    return tuple(Queue(name=name, nominal=dict.fromkeys(pools, 8)) for name in names)


def test_the_lines_of_a_gang_are_those_of_its_root_and_its_pools() -> None:
    pools = ("a100", "h100")
    lab, team, alone = queues_of("lab", "team", "alone", pools=pools)
    queues = (lab, replace(team, parent="lab"), alone)
    lines = Lines(cluster(queues=queues, pools=pools))
    assert lines.of(gang("x", queue="team")) == (LineKey("lab", "a100"), LineKey("lab", "h100"))
    assert lines.of(gang("x", queue="alone", pool="h100")) == (LineKey("alone", "h100"),)
    assert lines.of(gang("x", queue="gone")) == ()


def test_the_places_of_the_forecast_go_to_the_lines_in_turn() -> None:
    names = [f"q{number}" for number in range(10)]
    lines = Lines(cluster(queues=queues_of(*names)))
    order = [gang(f"{name}-{i}", queue=name) for name in names for i in range(LINE + 5)]
    chosen = lines.heads(order, each=LINE, most=MOST_GANGS)
    assert len(chosen) == MOST_GANGS
    counts = {name: sum(each.queue == name for each in chosen) for name in names}
    assert set(counts.values()) == {MOST_GANGS // len(names)}
    assert [each.uid for each in chosen] == sorted(
        (each.uid for each in chosen), key=[each.uid for each in order].index
    )


def test_the_overview_knows_the_same_reasons() -> None:
    assert {str(reason) for reason in CANNOT_START} == SHOWN_AS_CANNOT_START


@pytest.mark.parametrize("quota", [8, 100])
def test_a_job_does_not_wait_for_itself(quota: int) -> None:
    """Pods of its earlier attempt hold its quota, or its node, until they are gone."""
    waits = gang("a", gpus=8, queue="eta")
    ending = replace(gang("a", gpus=8, queue="eta"), uid="uid-a/pods-0")
    held = admitted(ending, "n0", is_residual=True, preemptible=False)
    snapshot = cluster(node("n0", gpus=8), queues=(queue("eta", quota),), running=[held])
    cycle = CycleInput(snapshot=snapshot, pending=(waits,), policy=BEST_EFFORT, now=NOW)
    (blocked,) = decide(cycle).blocked
    assert "its own ending pods" in blocked.message
    assert waits.key not in blocked.message
    assert waits.key not in blocked.blockers
