from __future__ import annotations

from drumline_trainer.agent.commands.progress_lines import ProgressLine
from drumline_trainer.agent.commands.step_history import StepHistory
from drumline_trainer.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_trainer.rank_protocol.placement import Placement

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


def test_the_rate_is_that_of_all_ranks() -> None:
    line = ProgressLine(step=1, tokens_per_second_of_a_rank=100.0)
    assert StepHistory().heartbeat(line, PLACEMENT, now=0.0).tokens_per_second == 400.0
