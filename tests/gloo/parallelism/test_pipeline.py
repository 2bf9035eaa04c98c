"""Every schedule computes what the whole model computes on one device."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from drumline_contract.config import DataParallel, Schedule
from drumline_contract.layout import Layout
from drumline_contract.layout_validation import min_micro_batches
from tests.gloo.gang import GangStarter
from tests.gloo.parallelism.pipeline_ranks import (
    Case,
    Outcome,
    Refusal,
    run_cases,
)

pytestmark = pytest.mark.extended

EXACT = 1e-6


def layout(
    schedule: Schedule, *, ranks: int, shard: int = 1, per_rank: int | None = None
) -> Layout:
    """Over four ranks; those that no one else takes have copies."""
    return Layout(
        pipeline=ranks,
        data_parallel=DataParallel.FSDP if shard > 1 else DataParallel.DDP,
        shard=shard,
        replicate=4 // (ranks * shard),
        schedule=schedule,
        stages_per_rank=per_rank or (2 if schedule.interleaves else 1),
    )


def cases() -> list[Case]:
    """Fewest micro-batches and more, tied and not, copies and shards."""
    results: list[Case] = []
    for schedule in Schedule:
        for item in (layout(schedule, ranks=2), layout(schedule, ranks=4)):
            least = min_micro_batches(item)
            results.append(Case(layout=item, micro_batches=least, tied=True))
            more = max(least, item.pipeline) + item.pipeline // 2
            results.append(Case(layout=item, micro_batches=more))
        sharded = layout(schedule, ranks=2, shard=2)
        least = max(3, min_micro_batches(sharded))
        results.append(Case(layout=sharded, micro_batches=least, tied=True))
        results.append(Case(layout=sharded, micro_batches=least))
    for schedule in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE):
        # of four stages torch keeps the weights of three at a time
        many = layout(schedule, ranks=2, shard=2, per_rank=4)
        results.append(Case(layout=many, micro_batches=3))
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """By case, of every rank."""

    outcomes: dict[Case, list[Outcome]]
    refusals: dict[Case, list[Refusal]]


@pytest.fixture(scope="module")
def reports(gangs: GangStarter) -> Reports:
    """Of one gang: ranks start once."""
    safe = cases()
    split = [schedule for schedule in Schedule if schedule.splits_backward]
    unsafe = [Case(layout=layout(s, ranks=2, shard=2), micro_batches=4) for s in split]
    with gangs.gang(run_cases, safe, unsafe, world_size=4) as gang:
        result = Reports(
            outcomes={case: gang.results() for case in safe},
            refusals={case: gang.results() for case in unsafe},
        )
        assert gang.exit_codes() == [0] * 4
    return result


def test_loss_gradients_and_norm_are_those_of_the_plain_model(reports: Reports) -> None:
    wrong = {
        str(case): ranks
        for case, ranks in reports.outcomes.items()
        if not all(max(r.loss, r.gradients, r.norm) <= EXACT for r in ranks)
    }
    assert not wrong


def test_units_sharded_after_their_forward_are_refused(reports: Reports) -> None:
    texts = [rank.text for ranks in reports.refusals.values() for rank in ranks]
    assert all(re.match(r"FSDP2 unit layers\.\d is sharded after its forward", t) for t in texts)


def test_past_the_refusal_gradients_are_wrong_on_some_rank(reports: Reports) -> None:
    worst = [max(rank.gradients for rank in ranks) for ranks in reports.refusals.values()]
    assert len(worst) == 3
    assert min(worst) > 0.01
