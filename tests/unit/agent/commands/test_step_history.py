from __future__ import annotations

from dataclasses import replace
from typing import Any

from drumline_agent.commands.progress_lines import ProgressLine
from drumline_agent.commands.step_history import StepHistory, position
from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.rank_protocol.placement import Placement
from drumline_client.wire import StepReport
from drumline_contract import RestoreTier

PLACEMENT = Placement(rank=0, world_size=4, generation=1)


def test_the_restored_step_is_an_interval_before_the_first_that_is_shown() -> None:
    history = StepHistory()

    def shown(step: int) -> Heartbeat:
        return history.heartbeat(ProgressLine(step=step), PLACEMENT, now=0.0)

    assert history.heartbeat(None, PLACEMENT, now=0.0).phase is Phase.RUNNING
    assert [shown(step).restored_step for step in (10, 20, 30)] == [9, 9, 9]
    history.begin_attempt()
    assert history.heartbeat(None, PLACEMENT, now=0.0).phase is Phase.STARTING
    assert [shown(step).restored_step for step in (30, 40)] == [20, 20]


def test_steps_of_a_former_attempt_are_none_of_this_one() -> None:
    history = StepHistory()
    assert not history.shows_steps
    history.heartbeat(ProgressLine(step=1), PLACEMENT, now=0.0)
    assert history.shows_steps
    history.begin_attempt()
    assert not history.shows_steps


def test_the_rate_is_that_of_all_ranks() -> None:
    line = ProgressLine(step=1, tokens_per_second_of_a_rank=100.0)
    assert StepHistory().heartbeat(line, PLACEMENT, now=0.0).tokens_per_second == 400.0


def reported(history: StepHistory, step: int | None, **fields: Any) -> Heartbeat:
    report = StepReport(at=1.0, phase=fields.pop("phase", "training"), saves=True, step=step)
    return history.reported(
        replace(report, **fields),
        PLACEMENT,
        checkpoint_step=20,
        tokens_per_second=5.0,
        now=1.0,
    )


def test_a_clients_report_is_a_heartbeat() -> None:
    beat = reported(StepHistory(), 30, loss=0.5, total_steps=90)
    assert (beat.step, beat.total_steps, beat.loss) == (30, 90, 0.5)
    assert (beat.checkpoint_step, beat.tokens_per_second) == (20, 5.0)
    assert (beat.phase, beat.restored_step) == (Phase.FORWARD, 20)
    assert reported(StepHistory(), 30, phase="saving").phase is Phase.CHECKPOINT
    assert reported(StepHistory(), 10).restored_step == 9  # the checkpoint is of a run before


def test_a_client_that_has_reported_steps_will_do_so_again() -> None:
    history = StepHistory()
    assert reported(history, None).phase is Phase.RUNNING
    reported(history, 30)
    history.begin_attempt()
    assert reported(history, None).phase is Phase.STARTING


def test_a_rank_that_loads_data_is_behind_those_that_train() -> None:
    loads = StepReport(at=1.0, phase="data", saves=True, step=3)
    assert position(loads) < position(replace(loads, phase="training"))
    assert position(replace(loads, phase="training")) < position(replace(loads, step=4))


def test_a_restored_snapshot_is_what_the_attempt_began_with() -> None:
    beat = reported(StepHistory(), 24, restored_step=24, phase="restoring")
    assert (beat.restored_step, beat.restored_from) == (24, RestoreTier.MEMORY)
    assert reported(StepHistory(), 24).restored_from is None


def test_a_process_that_has_a_snapshot_to_restore_will_say_its_steps() -> None:
    placement = replace(PLACEMENT, restore_snapshot=24)
    assert StepHistory().heartbeat(None, placement, now=0.0).phase is Phase.STARTING
