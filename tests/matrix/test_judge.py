"""Each promise of a cell, broken alone, makes it red and is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline_contract import FaultClass, Incident, RestoreTier
from tests.matrix.cells import WORLD_SIZE, Cell, Fault, Moment, Role
from tests.matrix.diary import Diary, Entry, Line, Mark
from tests.matrix.judge import Result, Verdict, healthy, judge
from tests.matrix.stage import Observation
from tests.matrix.standin import Ending
from tests.matrix.strikes import STEPS

CELL = Cell(fault=Fault.SIGKILL, moment=Moment.FORWARD, role=Role.REMOTE)
HIT = 3
STRUCK_AT = 7.5
"""A step takes a second, and its number is when it ends."""
RESTORED = 6
RECOVERED_AT = 10.0
FINISHED = Ending(error="", exit_codes=(0, 0), generations=1, zombies_left=False)
LOSSES_FILE = b"".join(b'{"step": %d, "loss": %d.5}\n' % (s, s) for s in range(1, STEPS + 1))


def lines(rank: int, *, steps: range, first_at: float, attempt: int, pid: int) -> list[Line]:
    """One rank in one attempt: where it begins, and its steps."""
    common = {"rank": rank, "pid": pid, "membership": (1, attempt)}
    begun = Line(entry=Entry.BEGINS, time=first_at - 0.5, step=steps.start - 1, **common)
    return [
        begun,
        *(
            Line(
                entry=Entry.STEP,
                time=first_at + step - steps.start,
                step=step,
                loss=(step + 0.5).hex(),
                **common,
            )
            for step in steps
        ),
    ]


def undisturbed() -> Observation:
    output = [
        line
        for rank in range(WORLD_SIZE)
        for line in lines(rank, steps=range(1, STEPS + 1), first_at=1, attempt=0, pid=100 + rank)
    ]
    return Observation(
        ending=FINISHED,
        diary=Diary(lines=tuple(output)),
        mark=None,
        losses_file=LOSSES_FILE,
        weights={"w": b"\1"},
        incidents=(),
        output="",
        seconds=2.0,
    )


def incident(**changes: Any) -> Incident:
    return replace(
        Incident(
            generation=1,
            attempt=1,
            fault_class=FaultClass.INFRASTRUCTURE,
            cause="rank 3: killed by SIGKILL",
            culprit_rank=HIT,
            culprit_index=1,
            fault_at=STRUCK_AT,
            detected_at=8.2,
            decided_at=8.3,
            replaced_at=8.4,
            joined_at=8.5,
            restored_at=9.0,
            first_step_at=RECOVERED_AT,
            failed_step=7,
            restored_step=RESTORED,
            tier=RestoreTier.MEMORY,
        ),
        **changes,
    )


def recovered(**changes: Any) -> Observation:
    """A cell as it should be: seven steps, a death, and on from the sixth."""
    output = []
    for rank in range(WORLD_SIZE):
        output += lines(rank, steps=range(1, 8), first_at=1, attempt=0, pid=100 + rank)
        output += lines(
            rank,
            steps=range(RESTORED + 1, STEPS + 1),
            first_at=RECOVERED_AT,
            attempt=1,
            pid=200 if rank == HIT else 100 + rank,
        )
    diary = Diary(lines=tuple(sorted(output, key=lambda line: line.time)))
    whole = replace(
        undisturbed(),
        diary=diary,
        mark=Mark(time=STRUCK_AT, membership=(1, 0), step=7),
        incidents=(incident(),),
    )
    return replace(whole, **changes)


def verdict_on(seen: Observation, *, cell: Cell = CELL) -> Result:
    return judge(cell, seen, undisturbed=undisturbed())


def changed(seen: Observation, *, when: Any, **changes: Any) -> Diary:
    """The diary with some lines changed."""
    output = [replace(line, **changes) if when(line) else line for line in seen.diary.lines]
    return Diary(lines=tuple(sorted(output, key=lambda line: line.time)))


def test_a_recovery_that_keeps_its_promises_is_green_with_its_figures() -> None:
    result = verdict_on(recovered())
    assert result == Result(
        cell=CELL,
        verdict=Verdict.GREEN,
        recovery_seconds=RECOVERED_AT - STRUCK_AT,
        steps_lost=1,
        bitwise=True,
        tier="Memory",
        ledger_off_seconds=0.0,
        seconds=2.0,
    )


def test_an_undisturbed_run_is_one_to_compare_with() -> None:
    assert healthy(undisturbed())
    assert not healthy(replace(undisturbed(), weights=None))
    assert not healthy(replace(undisturbed(), ending=None))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        pytest.param({"mark": None}, "never struck", id="no fault"),
        pytest.param({"ending": None}, "did not end in time", id="hangs"),
        pytest.param({"ending": replace(FINISHED, error="x")}, "it failed: x", id="fails"),
        pytest.param({"weights": None}, "no final checkpoint", id="no weights"),
        pytest.param({"weights": {"w": b"\2"}}, "final weights differ", id="other weights"),
        pytest.param({"losses_file": LOSSES_FILE[:-20]}, "file of losses", id="losses missing"),
        pytest.param(
            {"ending": replace(FINISHED, generations=2)}, "2 generations", id="not in place"
        ),
        pytest.param(
            {"ending": replace(FINISHED, zombies_left=True)}, "replaced pod", id="a zombie"
        ),
        pytest.param({"incidents": ()}, "no closed incident", id="nothing in the ledger"),
        pytest.param(
            {"incidents": (incident(fault_class=FaultClass.HANG),)}, "Hang", id="other class"
        ),
        pytest.param(
            {"incidents": (incident(also=(FaultClass.HANG,)),)}, "Hang too", id="a second class"
        ),
        pytest.param(
            {"incidents": (incident(culprit_rank=0, culprit_index=0),)}, "blames", id="other rank"
        ),
        pytest.param(
            {"incidents": (incident(failed_step=8),)}, "says 2 steps lost, and 1", id="other steps"
        ),
        pytest.param({"incidents": (incident(joined_at=None),)}, "lacks joined", id="no phase"),
        pytest.param(
            {"incidents": (incident(joined_at=8.25),)}, "out of order", id="phases out of order"
        ),
        pytest.param(
            {"incidents": (incident(fault_at=STRUCK_AT - 0.6),)}, "+0.600 s", id="fault too early"
        ),
        pytest.param(
            {"incidents": (incident(fault_at=STRUCK_AT + 0.6),)}, "-0.600 s", id="clock off"
        ),
    ],
)
def test_one_broken_promise_is_red_and_named(broken: dict[str, Any], words: str) -> None:
    result = verdict_on(recovered(**broken))
    assert result.verdict is Verdict.RED
    assert any(words in failing for failing in result.failings), result.failings


def test_one_loss_that_differs_on_one_rank_is_red() -> None:
    seen = recovered()
    diary = changed(
        seen, when=lambda line: (line.rank, line.step) == (2, 9), loss=(9.5000001).hex()
    )
    result = verdict_on(replace(seen, diary=diary))
    assert (result.failings, result.bitwise) == (("the loss differs at steps [9]",), False)


def test_a_survivor_that_was_started_again_is_red() -> None:
    seen = recovered()
    diary = changed(seen, when=lambda line: line.rank == 0 and line.membership == (1, 1), pid=999)
    result = verdict_on(replace(seen, diary=diary))
    assert result.failings == ("rank 0 was not hit and is 2 processes",)


def test_a_rank_that_trains_on_after_it_was_replaced_is_red() -> None:
    seen = recovered()
    late = lines(2, steps=range(8, 9), first_at=RECOVERED_AT + 0.5, attempt=0, pid=102)
    diary = Diary(lines=tuple(sorted([*seen.diary.lines, *late], key=lambda line: line.time)))
    failings = verdict_on(replace(seen, diary=diary)).failings
    assert "rank 2 trained step 8 when it had been replaced" in failings


def test_a_step_that_the_gang_had_trained_is_not_stale() -> None:
    """Its rank was stopped between the last exchange of the step and writing it down."""
    seen = recovered()
    steps = [line for line in seen.diary.lines if line.membership == (1, 0) and line.step == 7]
    assert {line.rank for line in steps} > {2}
    diary = changed(
        seen,
        when=lambda line: (line.rank, line.membership, line.step) == (2, (1, 0), 7),
        time=RECOVERED_AT + 0.5,
    )
    assert verdict_on(replace(seen, diary=diary)).verdict is Verdict.GREEN


@pytest.mark.parametrize(
    ("error", "weights", "verdict"),
    [
        ("NonFiniteLossError: step 8: the loss is nan", None, Verdict.GREEN),
        ("rank 0: killed", None, Verdict.RED),
        ("NonFiniteLossError: step 8: the loss is nan", {"w": b"\1"}, Verdict.RED),
    ],
)
def test_a_job_that_must_fail_says_why_and_commits_nothing(
    error: str, weights: dict[str, bytes] | None, verdict: Verdict
) -> None:
    cell = Cell(fault=Fault.NOT_FINITE, moment=Moment.FORWARD, role=Role.RANK_0)
    ending = Ending(error=error, exit_codes=(1, 75), generations=1, zombies_left=False)
    result = verdict_on(recovered(ending=ending, weights=weights), cell=cell)
    assert (result.verdict, result.bitwise) == (verdict, None)


def test_a_lost_pod_may_take_one_generation_and_its_ranks_are_new() -> None:
    cell = Cell(fault=Fault.AGENT_KILLED, moment=Moment.FORWARD, role=Role.FOLLOWER)
    seen = recovered(
        ending=replace(FINISHED, generations=2, exit_codes=(0, -9, 0)),
        incidents=(incident(fault_class=FaultClass.INFRASTRUCTURE, culprit_rank=None),),
    )
    assert verdict_on(seen, cell=cell).failings == ()
    in_place = replace(seen, ending=FINISHED)
    assert verdict_on(in_place, cell=cell).failings == ("it took 1 generations",)
