"""People's own scripts under every fault: what each costs, at each level of what they let us do.

A job takes one blow after the other and has to come, step by step and bit by bit, to what torchrun
alone comes to undisturbed. `make test` runs one job with two blows (SCRIPT_SEED picks it); all
of them with DRUMLINE_SCRIPTS=all, or those it names: `ddp-L1,fsdp2-L2:killed+spot`.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.scripts.blows import BLOWS, Cost, suffer
from tests.e2e.scripts.script_job import (
    PROGRAMS,
    SAVED_EVERY,
    SNAPSHOT_EVERY,
    Result,
    ScriptJob,
    begin,
    under_torchrun,
)
from tests.e2e.site import Site
from tests.seeds import seed_of

pytestmark = pytest.mark.extended

DAILY_BLOWS = ("killed", "deleted", "drained", "preempted", "spot")
"""The others take a node or the operator away for longer."""
UNDER_WAY = 2
"""Steps that rank 0 may finish between a blow and its effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """The blows that a job of a program takes, in this order."""

    program: str
    level: str
    blows: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.program}-{self.level}"


def sequences() -> list[Sequence]:
    """The sampled one, all, or those that are named."""
    wanted = os.environ.get("DRUMLINE_SCRIPTS", "")
    if wanted == "all":
        wanted = ",".join(
            f"{name}-{level}" for name, program in PROGRAMS.items() for level in program.levels
        )
    if wanted:
        return [named(text) for text in wanted.split(",")]
    drawn = random.Random(seed_of("SCRIPT_SEED"))
    name = drawn.choice([name for name, each in PROGRAMS.items() if not each.needs_libraries])
    level = drawn.choice(PROGRAMS[name].levels)
    return [Sequence(program=name, level=level, blows=tuple(drawn.sample(DAILY_BLOWS, 2)))]


def named(text: str) -> Sequence:
    """Of `fsdp2-L2:killed+spot`; without names all blows."""
    job, _, blows = text.partition(":")
    program, _, level = job.partition("-")
    return Sequence(program=program, level=level, blows=tuple(blows.split("+") if blows else BLOWS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What was seen of a job."""

    job: ScriptJob
    costs: dict[str, Cost]
    undisturbed: Result

    def bound(self, blow: str) -> int:
        """Steps that it may cost at this level."""
        if self.job.level != "L0" and BLOWS[blow].announced:
            return 0
        kept_every = SNAPSHOT_EVERY if self.job.level == "L2" else SAVED_EVERY
        return kept_every + UNDER_WAY

    def row(self) -> str:
        """Of the table in the docs: steps lost, and seconds until the script starts again."""
        cells = (f"{cost.steps_lost} ({cost.seconds:.1f} s)" for cost in self.costs.values())
        return f"| {self.job.program.what} | {self.job.level} | {' | '.join(cells)} |"


@pytest.fixture(scope="module", params=sequences(), ids=str)
def story(request: pytest.FixtureRequest, stage: Site, tmp_path_factory: pytest.TempPathFactory):  # noqa: ANN201 - a Story
    """A job's life with every blow of a sequence in it."""
    sequence: Sequence = request.param
    program = PROGRAMS[sequence.program]
    job = begin(stage, str(sequence).lower(), program=program, level=sequence.level)
    costs = {blow: suffer(job, BLOWS[blow]) for blow in sequence.blows}
    job.rehearsal.hurry()
    job.rehearsal.finish()
    folder = Path(tmp_path_factory.mktemp("undisturbed")) / "run"
    seen = Story(job=job, costs=costs, undisturbed=under_torchrun(folder, program=program))
    print(f"| script | level | {' | '.join(BLOWS[blow].what for blow in costs)} |")
    print(seen.row())
    return seen


def test_a_blow_costs_no_more_steps_than_the_level_allows(story: Story) -> None:
    lost = {blow: cost.steps_lost for blow, cost in story.costs.items()}
    print(story.row())
    assert {blow: steps for blow, steps in lost.items() if steps > story.bound(blow)} == {}
    assert all(steps >= 0 for steps in lost.values()), f"steps were left out: {lost}"


def test_no_pod_is_touched_where_only_a_rank_died(story: Story) -> None:
    costs = [cost for blow, cost in story.costs.items() if BLOWS[blow].keeps_pods]
    assert [cost.pods_after for cost in costs] == [cost.pods_before for cost in costs]
    assert [cost.containers_restarted for cost in costs] == [0] * len(costs)


def test_losses_and_weights_equal_those_under_torchrun_bit_for_bit(story: Story) -> None:
    assert story.job.result() == story.undisturbed
