"""Every schedule computes what the whole model computes on one device."""

from __future__ import annotations

from drumline_trainer.config import DataParallel, Schedule
from drumline_trainer.layout import Layout
from drumline_trainer.legality import least_micro_batches
from tests.gloo.gang import GangStarter
from tests.gloo.parallelism.pipeline_ranks import (
    Case,
    Outcome,
    refuse_and_miscompute,
    run_cases,
)

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
    found: list[Case] = []
    for schedule in Schedule:
        for one in (layout(schedule, ranks=2), layout(schedule, ranks=4)):
            least = least_micro_batches(one)
            found.append(Case(layout=one, micro_batches=least, tied=True))
            more = max(least, one.pipeline) + one.pipeline // 2
            found.append(Case(layout=one, micro_batches=more))
        sharded = layout(schedule, ranks=2, shard=2)
        least = max(3, least_micro_batches(sharded))
        found.append(Case(layout=sharded, micro_batches=least, tied=True))
        found.append(Case(layout=sharded, micro_batches=least))
    for schedule in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE):
        # of four stages torch keeps the weights of three at a time
        many = layout(schedule, ranks=2, shard=2, per_rank=4)
        found.append(Case(layout=many, micro_batches=3))
    return found


def test_loss_gradients_and_norm_are_those_of_the_plain_model(gangs: GangStarter) -> None:
    wanted = cases()
    with gangs.gang(run_cases, wanted, world_size=4) as gang:
        outcomes: list[list[Outcome]] = [gang.results() for _ in wanted]
        assert gang.exit_codes() == [0] * 4
    wrong = {
        str(case): ranks
        for case, ranks in zip(wanted, outcomes, strict=True)
        if not all(max(r.loss, r.gradients, r.norm) <= EXACT for r in ranks)
    }
    assert not wrong


def test_units_sharded_after_their_forward_are_refused_where_they_would_be_wrong(
    gangs: GangStarter,
) -> None:
    split = [schedule for schedule in Schedule if schedule.splits_backward]
    wanted = [Case(layout=layout(s, ranks=2, shard=2), micro_batches=4) for s in split]
    with gangs.gang(refuse_and_miscompute, wanted, world_size=4) as gang:
        for _ in wanted:
            refusals = gang.results()
            assert all("FSDP2 unit layers." in refusal for refusal in refusals)
            errors: list[float] = gang.results()
            assert max(errors) > 0.01  # what the refusal is for
        assert gang.exit_codes() == [0] * 4
