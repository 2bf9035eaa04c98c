"""A gang that loses ranks under NCCL's semantics ends as an undisturbed one under Gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.rank_protocol.messages import Quiesced
from drumline_agent.rank_protocol.orders import Interrupt
from drumline_contract.config import TrainerConfig
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import train_rank
from tests.gloo.standin import Fault, StandIn
from tests.gloo.test_recovery import RANKS, assert_equal_runs, config_of, recovered

pytestmark = pytest.mark.extended(keep=2, of="the stand-in for NCCL")

MODULE = "tests.gloo.nccl.rank"
SPINNING = "tests.gloo.nccl.spinning_rank"


def evaluated(folder: Path) -> TrainerConfig:
    """Held-out samples are looked at beside the training: no bit of it changes."""
    return config_of(folder, evaluation={"every_steps": 3, "samples": 3})


@pytest.fixture(scope="module")
def undisturbed(gangs: GangStarter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run over Gloo in which nothing goes wrong."""
    folder = tmp_path_factory.mktemp("undisturbed")
    config = evaluated(folder)
    gangs.run(train_rank, config, None, world_size=RANKS, checkpoint_folder=folder / "run")
    return folder / "run"


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="SIGKILL", rank=0, step=6, phase=Phase.BACKWARD),
        Fault(kind="SIGKILL", rank=1, step=6, phase=Phase.OPTIMIZER),
        Fault(kind="SIGKILL", rank=2, step=8, phase=Phase.CHECKPOINT),
        Fault(kind="exception", rank=1, step=6, phase=Phase.EVALUATION),
    ],
    ids=lambda fault: f"{fault.kind} of rank {fault.rank} in {fault.phase}",
)
def test_survivors_of_a_lost_rank_are_parked_and_go_on(
    gangs: GangStarter, tmp_path: Path, undisturbed: Path, fault: Fault
) -> None:
    """No watchdog ends them, and an abort's error is no failure of their own."""
    folder, config, lost = tmp_path / "run", evaluated(tmp_path), [{fault.rank}]
    recovered(gangs, folder, config, fault, lost=lost, undisturbed=undisturbed, module=MODULE)


def test_who_waits_burning_a_processor_hears_that_it_is_to_leave(
    gangs: GangStarter, tmp_path: Path, undisturbed: Path
) -> None:
    fault = Fault(kind="SIGKILL", rank=1, step=6, phase=Phase.BACKWARD)
    folder, config, lost = tmp_path / "run", evaluated(tmp_path), [{1}]
    recovered(gangs, folder, config, fault, lost=lost, undisturbed=undisturbed, module=SPINNING)


def test_another_rank_is_lost_while_all_restore(
    gangs: GangStarter, tmp_path: Path, undisturbed: Path
) -> None:
    """They wait in collectives of the restore; nothing of the second loss is theirs either."""
    faults = [
        Fault(kind="SIGKILL", rank=1, step=6, phase=Phase.BACKWARD),
        # a rank that is forked anew knows of no step while it restores
        Fault(kind="SIGKILL", rank=1, step=0, phase=Phase.RESTORING, attempt=1),
    ]
    folder, config, lost = tmp_path / "run", evaluated(tmp_path), [{1}, {1}]
    recovered(gangs, folder, config, *faults, lost=lost, undisturbed=undisturbed, module=MODULE)


def test_no_step_is_made_of_the_partial_sums_that_an_abort_leaves(
    gangs: GangStarter, tmp_path: Path, undisturbed: Path
) -> None:
    """The survivors wait for the totals of the seventh step: the wait ends without an error."""
    folder = tmp_path / "run"
    config = evaluated(tmp_path)
    with StandIn(gangs, config, world_size=RANKS, folder=folder, module=MODULE) as gang:
        gang.start([Fault(rank=1, step=6, phase=Phase.OPTIMIZER, kind="SIGSTOP")])
        for rank in gang.ranks.values():
            rank.hear(_in_the_totals)
        for survivor in (0, 2):
            gang.ranks[survivor].tell(Interrupt(generation=1, attempt=0))
            gang.ranks[survivor].hear(lambda word: isinstance(word, Quiesced))
            said = [w for w in gang.ranks[survivor].said if isinstance(w, Heartbeat)]
            assert max(beat.step for beat in said) == 6
        gang.ranks[1].process.kill()
        gang.ranks[1].process.join()
        gang.resume({1}, restore=gang.common_snapshot())
        gang.finish()
    assert_equal_runs(folder, undisturbed)


def _in_the_totals(word: object) -> bool:
    return isinstance(word, Heartbeat) and (word.step, word.phase) == (6, Phase.OPTIMIZER)
