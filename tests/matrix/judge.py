"""The verdict on a cell: what was seen, held against the undisturbed run. Pure.

A cell is green when the job ended as it must and nothing of what it promises was broken; every
broken promise is one sentence. The promises:

* the fault struck;
* the losses of all steps, each time they were trained, and the final weights are those of the
  undisturbed run to the last bit, and the file of losses is whole;
* a rank that was not hit is the same process from beginning to end, and one that was hit was
  started again once (but while they connect to each other: `CONNECTING`);
* ranks are recovered without the operator, pods by one new generation;
* the ledger has the fault: who, of which class, how many steps were lost; its phases are in order
  and add up to the wall clock within 1 % or 50 ms;
* whatever was replaced trains no step after that, and comes to its end.

A job that must fail says why, and commits nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from drumline_contract import ExitCode, FaultClass, Incident
from tests.matrix.cells import HANGS, RANKS_PER_POD, WORLD_SIZE, Cell, Fault, Moment, Role
from tests.matrix.diary import Mark
from tests.matrix.stage import Observation
from tests.matrix.strikes import OPENING, STEPS, strikes_of

CLOCK_SHARE = 0.1
CLOCK_SECONDS = 0.25
"""A killed process takes a while to be gone, and on a busy machine its parent to hear of it. By how
much the ledger was off is a figure of its own in the report."""
CONNECTING = (Moment.JOINING, Moment.STARTING, Moment.RECOVERING)
"""Gloo's own waiting for a peer that died while they connect cannot be called off: the agent starts
ranks again that have not left it after two seconds."""
LAST_SIGN_SECONDS = 1.25
"""How much earlier than its death the last sign of life of a pod may be: members ask their leader
once a second."""


class Verdict(StrEnum):
    """Of one cell."""

    GREEN = "green"
    RED = "red"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One entry of the matrix."""

    cell: Cell
    verdict: Verdict
    failings: tuple[str, ...] = ()
    recovery_seconds: float | None = None
    """From the fault to the first step finished after it; None where none had to be."""
    steps_lost: int | None = None
    """Steps that were finished when it struck and had to be done again."""
    bitwise: bool | None = None
    """Whether losses and weights are those of the undisturbed run; None where it must fail."""
    tier: str = ""
    """Where the state came from."""
    ledger_off_seconds: float | None = None
    """By how much the phases of the incident differ from the wall clock."""
    seconds: float = 0.0
    """How long the cell took."""


def judge(cell: Cell, seen: Observation, *, undisturbed: Observation) -> Result:
    """Hold the cell against its promises."""
    recovery = seen.diary.recovery(seen.mark) if seen.mark else None
    lost = seen.diary.steps_lost(seen.mark) if seen.mark else None
    incident = _incident_of(seen) if recovery else None
    numbers = list(_wrong_numbers(seen, undisturbed=undisturbed))
    failings = list(_failings(cell, seen, numbers=numbers))
    return Result(
        cell=cell,
        verdict=Verdict.RED if failings else Verdict.GREEN,
        failings=tuple(failings),
        recovery_seconds=recovery[1] - seen.mark.time if recovery and seen.mark else None,
        steps_lost=lost[1] if lost else None,
        bitwise=None if cell.must_fail else not numbers,
        tier=incident.tier or "" if incident else "",
        ledger_off_seconds=(
            _seconds_off(incident, wall_seconds=recovery[1] - seen.mark.time)
            if incident and recovery and seen.mark
            else None
        ),
        seconds=seen.seconds,
    )


def _failings(cell: Cell, seen: Observation, *, numbers: list[str]) -> Iterator[str]:
    if seen.mark is None:
        yield "the fault never struck"
    if seen.ending is None:
        yield f"it did not end in time ({seen.seconds:.0f} s)"
        return
    if cell.must_fail:
        yield from _wrong_failure(cell, seen)
        return
    if seen.ending.error:
        yield f"it failed: {seen.ending.error}"
    yield from numbers
    yield from _wrong_processes(cell, seen)
    yield from _wrong_generations(cell, seen)
    if seen.ending.zombies_left:
        yield "something of a replaced pod went on"
    if stale := seen.diary.stale_steps():
        yield f"rank {stale[0].rank} trained step {stale[0].step} when it had been replaced"
    if seen.mark is not None and cell.moment is not Moment.TEARDOWN and cell.role is not Role.ALL:
        yield from _wrong_ledger(cell, seen, mark=seen.mark)


def _wrong_failure(cell: Cell, seen: Observation) -> Iterator[str]:
    assert seen.ending is not None
    words = {
        Fault.NOT_FINITE: r"loss is nan",
        Fault.SAME_ERROR: r"StruckError.*in a row",
        Fault.ACKNOWLEDGED_LOST: r"acknowledged step \d+",
    }[cell.fault]
    if not re.search(words, seen.ending.error):
        yield f"it should say {words!r} and says {seen.ending.error!r}"
    code = {Fault.ACKNOWLEDGED_LOST: ExitCode.CORRUPT_CHECKPOINT}.get(
        cell.fault, ExitCode.APPLICATION
    )
    if code not in seen.ending.exit_codes:
        yield f"no pod left with {code} ({code.name}): {seen.ending.exit_codes}"
    if seen.weights is not None:
        yield "it should have failed and committed its last checkpoint"


def _wrong_numbers(seen: Observation, *, undisturbed: Observation) -> Iterator[str]:
    """Losses and weights that are not those of the undisturbed run."""
    right, had = undisturbed.diary.losses(), seen.diary.losses()
    wrong = sorted(step for step, losses in had.items() if losses != right[step])
    if wrong:
        yield f"the loss differs at steps {wrong}"
    missing = sorted(right.keys() - had.keys())
    if missing:
        yield f"steps {missing} were never trained"
    if seen.weights is None:
        yield "there is no final checkpoint"
    elif seen.weights != undisturbed.weights:
        yield "the final weights differ"
    if _last_losses(seen.losses_file) != _last_losses(undisturbed.losses_file):
        yield "the file of losses differs"


def _last_losses(file: bytes) -> dict[int, float | None]:
    """Loss by step, the later line counts; a line that was cut by a death does not."""
    losses: dict[int, float | None] = {}
    for line in file.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        losses[entry["step"]] = entry["loss"]
    return losses


def _wrong_processes(cell: Cell, seen: Observation) -> Iterator[str]:
    if cell.moment is Moment.TEARDOWN or cell.fault is Fault.DISK_FULL:
        return  # there is nothing to go on with, or every rank fails to save
    if cell.moment in CONNECTING:
        return
    hit = _ranks_hit(cell)
    for rank in range(WORLD_SIZE):
        pids = seen.diary.pids(rank)
        if rank not in hit and len(pids) != 1:
            yield f"rank {rank} was not hit and is {len(pids)} processes"
        if rank in hit and len(pids) > 2:
            yield f"rank {rank} was hit once and is {len(pids)} processes"


def _ranks_hit(cell: Cell) -> set[int]:
    """Ranks whose process dies by a fault, or with its pod."""
    of_pods = {
        pod * RANKS_PER_POD + local for pod in cell.role.pods for local in range(RANKS_PER_POD)
    }
    opening = {
        rank for strike in strikes_of(cell) if strike.name == OPENING for rank in strike.ranks
    }
    return {*cell.role.ranks, *of_pods, *opening}


def _wrong_generations(cell: Cell, seen: Observation) -> Iterator[str]:
    assert seen.ending is not None
    allowed = {2} if cell.hits_pods else {1}
    if cell.moment is Moment.TEARDOWN:
        allowed = {1, 2}
    elif cell.role is Role.ALL:
        allowed = {2, 3}  # they need not be missed at the same time
    if seen.ending.generations not in allowed:
        yield f"it took {seen.ending.generations} generations"


def _wrong_ledger(cell: Cell, seen: Observation, *, mark: Mark) -> Iterator[str]:
    recovery, incident = seen.diary.recovery(mark), _incident_of(seen)
    if recovery is None:
        yield "no step was finished after the fault"
        return
    if incident is None:
        yield "the ledger has no closed incident"
        return
    expected = _class_of(cell)
    if incident.fault_class is not expected:
        yield f"the ledger says {incident.fault_class}, not {expected}: {incident.cause}"
    also = {
        str(each) for incident in seen.incidents for each in incident.also if each is not expected
    }
    if also and not any(strike.name == OPENING for strike in strikes_of(cell)):
        yield f"the ledger charges {', '.join(sorted(also))} too: {incident.cause}"
    if not _is_blamed(cell, incident):
        yield f"the ledger blames rank {incident.culprit_rank} of pod {incident.culprit_index}"
    lost = seen.diary.steps_lost(mark) or (0, 0)
    # a fault in a recovery ends with the same restore: the steps are those of the first
    said = max(incident.failed_step - incident.restored_step for incident in seen.incidents)
    # who is stopped, or kept from speaking, may have finished a step that nobody was told of
    untold = 1 if cell.fault in HANGS else 0
    if not lost[0] - untold <= said <= lost[1]:
        yield f"the ledger says {said} steps lost, and {lost[1]} were"
    patience = LAST_SIGN_SECONDS if cell.hits_pods else 0.0
    yield from _wrong_clock(
        incident, wall_seconds=recovery[1] - mark.time, last_sign_seconds=patience
    )


def _is_blamed(cell: Cell, incident: Incident) -> bool:
    match cell.fault:
        case Fault.DISK_FULL:
            return True  # nobody's: all ranks fail to save
        case Fault.LINK_LOST:
            return incident.culprit_rank is None and incident.cause.endswith("the network")
        case Fault.KERNEL_STUCK:
            words = f"the device of rank {incident.culprit_rank} did not come to"
            return incident.culprit_rank in cell.role.ranks and words in incident.cause
        case _:
            return (
                incident.culprit_rank in cell.role.ranks or incident.culprit_index in cell.role.pods
            )


def _wrong_clock(
    incident: Incident, *, wall_seconds: float, last_sign_seconds: float
) -> Iterator[str]:
    times = {
        "fault": incident.fault_at,
        "detected": incident.detected_at,
        "decided": incident.decided_at,
        "replaced": incident.replaced_at,
        "joined": incident.joined_at,
        "restored": incident.restored_at,
        "first step": incident.first_step_at,
    }
    lacking = [name for name, time in times.items() if time is None]
    if lacking:
        yield f"the ledger lacks {', '.join(lacking)}"
    known = [time for time in times.values() if time is not None]
    if known != sorted(known):
        yield f"the ledger's times are out of order: {times}"
    off = _seconds_off(incident, wall_seconds=wall_seconds) or 0.0
    tolerance = CLOCK_SECONDS + CLOCK_SHARE * wall_seconds
    if not -tolerance <= off <= tolerance + last_sign_seconds:
        yield f"the ledger's phases are off the wall clock by {off:+.3f} s of {wall_seconds:.3f} s"


def _seconds_off(incident: Incident, *, wall_seconds: float) -> float | None:
    """The sum of all phases, from the fault to the first step, less the wall clock."""
    if incident.first_step_at is None:
        return None
    return incident.first_step_at - incident.fault_at - wall_seconds


FROM_OUTSIDE = frozenset(
    {Fault.SIGKILL, Fault.SIGTERM, Fault.OPERATOR_AWAY, Fault.SNAPSHOT_CORRUPT, Fault.DISK_FULL}
)
"""A rank is killed, or the storage has no space: not the program's doing."""


def _class_of(cell: Cell) -> FaultClass:
    if cell.hits_pods:
        return FaultClass.INFRASTRUCTURE
    if cell.fault is Fault.OUT_OF_MEMORY:
        return FaultClass.OUT_OF_MEMORY
    if cell.fault in FROM_OUTSIDE:
        return FaultClass.INFRASTRUCTURE
    return FaultClass.HANG if cell.fault in HANGS else FaultClass.APPLICATION


def _incident_of(seen: Observation) -> Incident | None:
    """The one of the main fault: the last, as nothing else happens after it."""
    if seen.mark is None:
        return None
    after = [
        incident
        for incident in seen.incidents
        if (incident.generation, incident.attempt) > seen.mark.membership
    ]
    return after[-1] if after else None


def healthy(seen: Observation) -> bool:
    """Whether the undisturbed run is one to compare with."""
    return (
        seen.ending is not None
        and not seen.ending.error
        and seen.weights is not None
        and seen.diary.losses().keys() == set(range(1, STEPS + 1))
        and all(len(losses) == 1 for losses in seen.diary.losses().values())
        and len(_last_losses(seen.losses_file)) == STEPS
    )
