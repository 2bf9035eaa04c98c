"""Everybody in line has an expected start, without a cycle."""

from __future__ import annotations

import pytest

from drumline_scheduler.decisions import Blocked, BlockReason
from drumline_scheduler.forecast.expected_starts import USUAL_SECONDS, ExpectedStart
from drumline_scheduler.forecast.rough_starts import UNKNOWN_WIDTH, WIDTH, rough_starts
from drumline_scheduler.model import Gang, Snapshot
from tests.unit.scheduler.builders import admitted, cluster, gang, node

HOUR = 3600.0


def in_line(*gangs: Gang, reason: BlockReason = BlockReason.INSUFFICIENT_GPUS) -> list[Blocked]:
    return [Blocked(key=each.key, uid=each.uid, reason=reason, message="") for each in gangs]


def full(*, limit: float | None, ran: float = 0.0) -> Snapshot:
    """A node of 8 GPUs that a gang holds."""
    held = admitted(gang("runs", gpus=8, max_runtime_seconds=limit), "n0", admitted_at=-ran)
    return cluster(node("n0"), running=[held])


def starts(
    snapshot: Snapshot, *gangs: Gang, known: dict[str, ExpectedStart] | None = None
) -> list[ExpectedStart]:
    return rough_starts(
        snapshot=snapshot,
        waiting={each.uid: each for each in gangs},
        line=in_line(*gangs),
        known=known or {},
        now=0.0,
    )


def test_the_line_takes_what_running_gangs_give_back() -> None:
    """A node for eight GPUs is given back in half of an hour's limit, so once in 30 minutes."""
    first, second = gang("first", gpus=8), gang("second", gpus=4)
    assert [(start.p50_at, start.p90_at) for start in starts(full(limit=HOUR), first, second)] == [
        (0.5 * HOUR, WIDTH * 0.5 * HOUR),
        (0.75 * HOUR, WIDTH * 0.75 * HOUR),
    ]


def test_it_is_counted_from_the_last_that_was_simulated() -> None:
    first, second = gang("first", gpus=8), gang("second", gpus=8)
    known = {first.uid: ExpectedStart(key=first.key, uid=first.uid, p50_at=HOUR, p90_at=None)}
    (start,) = starts(full(limit=HOUR), first, second, known=known)
    assert (start.uid, start.p50_at) == (second.uid, 1.5 * HOUR)


def test_behind_a_gang_of_unknown_length_the_band_is_wide_however_short_it_ran() -> None:
    (start,) = starts(full(limit=None, ran=21.0), gang("waits", gpus=8))
    assert start.p50_at == USUAL_SECONDS
    assert start.p90_at == UNKNOWN_WIDTH * USUAL_SECONDS


@pytest.mark.parametrize(
    "reason",
    [
        BlockReason.EXCEEDS_CLUSTER,
        BlockReason.WAITING_FOR_NODES,
        BlockReason.QUEUE_HELD,
        BlockReason.PREDECESSOR_FAILED,
    ],
)
def test_nobody_dates_what_does_not_come_by_itself(reason: BlockReason) -> None:
    stuck, waits = gang("stuck", gpus=64), gang("waits", gpus=8)
    line = [*in_line(stuck, reason=reason), *in_line(waits)]
    dated = rough_starts(
        snapshot=full(limit=HOUR),
        waiting={stuck.uid: stuck, waits.uid: waits},
        line=line,
        known={},
        now=0.0,
    )
    assert [(start.uid, start.p50_at) for start in dated] == [(waits.uid, 0.5 * HOUR)]


def test_those_before_count_though_only_one_is_asked_for() -> None:
    first, second = gang("first", gpus=8), gang("second", gpus=8)
    (start,) = rough_starts(
        snapshot=full(limit=HOUR),
        waiting={first.uid: first, second.uid: second},
        line=in_line(first, second),
        known={},
        now=0.0,
        asked={second.uid},
    )
    assert (start.uid, start.p50_at) == (second.uid, HOUR)


def test_where_nothing_runs_nothing_is_expected() -> None:
    assert starts(cluster(node("n0")), gang("waits", gpus=8)) == []
