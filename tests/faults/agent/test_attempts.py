"""Attempts within a generation: who is restarted, who is resumed, and when it is given up."""

from __future__ import annotations

import os
import signal

import pytest

from drumline_contract import ExitCode, FaultClass
from tests.faults.agent.gang import Gang
from tests.faults.agent.scripts import script
from tests.texts import missing

pytestmark = pytest.mark.extended(keep=2)

RESUMED = ["beat(3)", "hang(until=1)", "print(now().attempt, now().restore_snapshot)", "done(9)"]
STAGES = ("fault", "detected", "decided", "replaced", "joined", "restored", "first_step")


@pytest.mark.parametrize(
    ("death", "fault_class", "cause"),
    [
        (
            "raise ValueError('boom')",
            "Application",
            "rank 1: ValueError: boom [exit code 1 (APPLICATION)]",
        ),
        (
            "raise MemoryError('no room')",
            "OutOfMemory",
            "rank 1: MemoryError: no room [exit code 1",
        ),
        (
            "import os; os._exit(0)",
            "Application",
            "ended with exit code 0 before its work was done",
        ),
        ("import os; os.kill(os.getpid(), 9)", "Infrastructure", "rank 1: killed by SIGKILL"),
        ("import sys; sys.exit(0)", "Application", "rank 1: SystemExit: 0 [exit code 1"),
    ],
    ids=["exception", "out of memory", "exit 0", "SIGKILL", "sys.exit(0)"],
)
async def test_a_rank_that_dies_is_forked_again_and_its_peers_are_resumed(
    gang: Gang, death: str, fault_class: str, cause: str
) -> None:
    dies = ["beat(3)", f"if placement.attempt == 0:\n    {death}", "beat(3); done(9)"]
    await gang.start(1, ranks=2, variables=script(r0=RESUMED, r1=dies))
    await gang.push()
    before, after = await gang.pids(), await gang.pids()

    assert await gang.ended() == [0]
    assert (before[0] == after[0], before[1] == after[1]) == (True, False), gang.leader.text
    assert gang.leader.printed(0) == ["1 None"]
    [incident] = [event["incident"] for event in gang.leader.events("incident")]
    assert (incident["fault_class"], incident["culprit_rank"]) == (fault_class, 1)
    assert cause in incident["cause"]
    times = [incident[f"{name}_at"] for name in STAGES]
    assert times == sorted(times)


DIES_WHEN_INTERRUPTED = [
    "import threading",
    "beat(3)",
    "interrupted = threading.Event()",
    "control.on_interrupt = lambda _: interrupted.set()",
    "if placement.attempt == 0:\n    interrupted.wait()\n    raise MemoryError('no room')",
    "beat(3)",
]
FAILS_ONCE = ["beat(3)", "if placement.attempt == 0:\n    raise ValueError('boom')"]


async def test_a_second_fault_during_the_recovery_is_named_and_counted_in_its_own_class(
    gang: Gang,
) -> None:
    ranks = {"r0": [*FAILS_ONCE, "done(9)"], "r1": [*DIES_WHEN_INTERRUPTED, "done(9)"]}
    await gang.start(2, variables=script(**ranks))
    await gang.push()

    assert await gang.ended() == [0, 0]
    [incident] = [event["incident"] for event in gang.leader.events("incident")]
    assert (incident["fault_class"], incident["also"]) == ("Application", ["OutOfMemory"])
    assert (incident["attempt"], incident["culprit_rank"]) == (1, 0)
    assert "rank 0: ValueError: boom" in incident["cause"]
    assert "rank 1: MemoryError: no room" in incident["cause"]
    assert len(gang.leader.events("round_begun")) == 2


async def test_a_second_fault_whose_budget_is_used_up_ends_the_gang(gang: Gang) -> None:
    gang.record_fields = {"restarts_left": {"Application": 3, "OutOfMemory": 0}}
    ranks = {"r0": [*FAILS_ONCE, "hang()"], "r1": [*DIES_WHEN_INTERRUPTED, "hang()"]}
    await gang.start(2, variables=script(**ranks))
    await gang.push()

    assert await gang.ended() == [ExitCode.PEER_LOST, ExitCode.APPLICATION]
    report = gang.agents[1].report
    assert "MemoryError: no room" in report.error
    assert not missing(report.error, "OutOfMemory")
    assert (report.failed_rank, report.fault_class) == (1, FaultClass.OUT_OF_MEMORY)


async def test_a_fault_that_a_lost_leader_knew_is_reported_to_the_next(gang: Gang) -> None:
    once = "if placement.generation == 1:\n    "
    hangs = ["beat(3)", f"{once}hang()", "done(9)"]
    gate = gang.band.gate()
    fails = ["beat(3)", f"{once}{gate.line}\n    raise ValueError('boom')", "done(9)"]
    await gang.start(2, variables=script(r0=hangs, r1=fails))
    await gang.push()
    await gang.pids()
    gang.leader.process.send_signal(signal.SIGSTOP)
    gate.open()
    await gang.agents[1].event("rank_exited")
    await gang.replace(0)

    assert await gang.ended() == [0, 0]
    incidents = [event["incident"] for event in gang.leader.events("incident")]
    numbers = [
        (incident["generation"], incident["attempt"], incident["fault_class"])
        for incident in incidents
    ]
    assert numbers == [(1, 1, "Application"), (2, 0, "Infrastructure")]
    assert (incidents[0]["culprit_index"], incidents[0]["culprit_rank"]) == (1, 1)
    assert "rank 1: ValueError: boom" in incidents[0]["cause"]


async def test_a_budget_that_is_used_up_ends_the_gang(gang: Gang) -> None:
    gang.record_fields = {"restarts_left": {"Application": 1}}
    dies = ["beat(placement.attempt + 1)", "raise ValueError(f'boom at {placement.attempt}')"]
    await gang.start(2, variables=script(r0=["hang()"], r1=dies))
    await gang.push()

    assert await gang.ended() == [ExitCode.PEER_LOST, ExitCode.APPLICATION]
    report = gang.agents[1].report
    assert not missing(report.error, "rank 1", "ValueError", "boom", "APPLICATION", "Application")
    assert (report.failed_rank, report.fault_class) == (1, FaultClass.APPLICATION)
    assert len(gang.leader.events("round_begun")) == 2


async def test_the_same_error_at_the_same_step_is_not_tried_for_ever(gang: Gang) -> None:
    dies = ["beat(placement.attempt); beat(4)", "raise ValueError(f'nan at {id(placement)}')"]
    await gang.start(1, ranks=2, variables=script(r0=dies, r1=dies))
    await gang.push()

    assert await gang.ended() == [ExitCode.APPLICATION]
    assert not missing(gang.leader.report.error, "3 times", "step 4")
    assert len(gang.leader.events("round_begun")) == 3


async def test_attempts_that_finish_no_step_are_not_tried_for_ever(gang: Gang) -> None:
    dies = ["beat(0)", "raise ValueError('abc'[placement.attempt])"]
    await gang.start(1, ranks=1, variables=script(r0=dies))
    await gang.push()

    assert await gang.ended() == [ExitCode.APPLICATION]
    assert not missing(gang.leader.report.error, "3 attempts")


async def test_a_configuration_error_is_never_tried_again(gang: Gang) -> None:
    await gang.start(2, variables=script() | {"DRUMLINE_CONFIG": '{"stepz": 1}'})
    await gang.push()

    assert set(await gang.ended()) <= {ExitCode.CONFIG, ExitCode.PEER_LOST}
    assert len(gang.leader.events("round_begun")) == 1


async def test_a_rank_that_does_not_quiesce_is_killed_and_forked_again(gang: Gang) -> None:
    deaf = [
        "beat(3)",
        "import threading",
        "threading.Event().wait() if placement.attempt == 0 else done(9)",
    ]
    dies = ["beat(3)", "if placement.attempt == 0:\n    raise ValueError('boom')", "done(9)"]
    variables = script(r0=deaf, r1=dies) | {"DRUMLINE_QUIESCE_SECONDS": "1"}
    await gang.start(1, ranks=2, variables=variables)
    await gang.push()
    before, after = await gang.pids(), await gang.pids()

    assert await gang.ended() == [0]
    assert before[0] != after[0]
    assert gang.leader.events("rank_lingers")[0]["rank"] == 0


async def test_ranks_live_on_into_the_next_generation(gang: Gang) -> None:
    line = "beat(3); hang(until=0, generation=2); print('resumed', now().generation); done(9)"
    await gang.start(2, variables=script(r0=[line], r1=[line]))
    await gang.push()
    before = await gang.pids()
    await gang.renew([1])
    await gang.push()
    after = await gang.pids()

    assert await gang.ended() == [0, 0]
    assert before[0] == after[0]
    assert gang.leader.printed(0) == ["resumed 2"]
    incident = gang.leader.events("incident")[0]["incident"]
    assert (incident["generation"], incident["attempt"], incident["culprit_index"]) == (2, 0, 1)


async def test_a_pod_that_was_replaced_while_it_was_away_ends_itself(gang: Gang) -> None:
    gate = gang.band.gate()
    line = f"beat(3); hang(until=0, generation=2); {gate.line}; done(9)"
    await gang.start(2, variables=script(r0=[line], r1=[line]))
    await gang.push()
    await gang.pids()
    zombie = gang.agents[1]
    os.kill(zombie.process.pid, signal.SIGSTOP)
    gang.generation = 2
    await gang.admit(1)
    await gang.push()
    await gang.pids()
    os.kill(zombie.process.pid, signal.SIGCONT)

    assert await zombie.ended() == ExitCode.PEER_LOST
    assert not missing(zombie.report.error, "member 1", "generation 2")
    gate.open()
    gate.open()
    assert await gang.ended() == [0, 0]


async def test_a_store_that_dies_is_replaced_by_another_attempt(gang: Gang) -> None:
    await gang.start(1, ranks=1, variables=script(r0=["beat(3); hang(until=1); done(9)"]))
    await gang.push()
    await gang.pids()
    zygote = children_of(gang.leader.process.pid)[0]
    store, *_ = children_of(zygote)
    os.kill(store, signal.SIGKILL)

    assert await gang.ended() == [0]
    incident = gang.leader.events("incident")[0]["incident"]
    assert not missing(incident["cause"], "SIGKILL")


def children_of(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:  # noqa: PTH123 - not a real file
        return sorted(map(int, file.read().split()))


async def test_orders_of_a_lower_membership_are_refused(gang: Gang) -> None:
    await gang.start(1, variables=script(r0=["beat(3)", "hang()"]))
    await gang.push()
    await gang.pids()

    assert await gang.order("prepare", generation=1, attempt=0) == 200, "answered as before"
    assert await gang.order("prepare", generation=2, attempt=0) == 409, "its record is not here"
    assert await gang.order("prepare", generation=1, attempt=1) == 200
    assert await gang.order("prepare", generation=1, attempt=0) == 409
    assert await gang.order("kill", generation=1, attempt=0, ranks=[0], reason="") == 409
    assert await gang.order("finish", generation=1) == 400


async def test_no_attempt_restores_less_than_an_earlier_attempt_saved(gang: Gang) -> None:
    """Also where the one before it ended without a word, and whatever the record says."""
    floor = "print('floor', now().acknowledged_step, now().acknowledged_digest)"
    saves = [
        floor,
        "if placement.attempt == 0: beat(9, checkpoint_step=7, checkpoint_digest='seven')",
        "if placement.attempt < 2: raise ValueError('ab'[placement.attempt])",
        "done(9)",
    ]
    gang.record_fields = {"restore_step": 4, "restore_digest": "four"}
    await gang.start(2, variables=script(r0=saves, r1=["hang(until=2)", floor, "done(9)"]))
    await gang.push()

    assert await gang.ended() == [0, 0]
    floors = [line for line in gang.leader.printed(0) if line.startswith("floor")]
    assert floors == ["floor 4 four", "floor 7 seven", "floor 7 seven"]
    assert gang.agents[1].printed(1) == ["floor 7 seven"]


async def test_where_the_storage_fails_the_gang_waits_says_so_and_goes_on(gang: Gang) -> None:
    gang.record_fields = {"restarts_left": {"Infrastructure": 1}}
    full = "if placement.attempt < 2:\n    raise OSError(28, 'No space left on device')"
    waits = ["beat(3)", "hang(until=2)", "done(9)"]
    await gang.start(1, ranks=2, variables=script(r0=[full, "beat(3); done(9)"], r1=waits))
    await gang.push()
    status = await gang.leader.status()
    while not status.waiting_for:
        status = await gang.leader.status(since=status.version)
    assert not missing(status.waiting_for, "rank 0", "OSError", "28")

    assert await gang.ended() == [0]
    incidents = [event["incident"] for event in gang.leader.events("incident")]
    assert {each["fault_class"] for each in incidents} == {"Infrastructure"}
    assert len(gang.leader.events("round_begun")) == 3
