"""A gang that loses ranks ends as if nothing had happened, in the same processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.rank_protocol.messages import Quiesced, RankMessage
from drumline_agent.rank_protocol.orders import Interrupt, Resume
from drumline_client.snapshot_file import snapshot_file
from drumline_contract import RestoreTier
from drumline_contract.config import TrainerConfig
from drumline_trainer.checkpoint.folder import CheckpointFolder
from drumline_trainer.metrics.losses import read_losses
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import train_rank
from tests.gloo.scale import RECOVERIES
from tests.gloo.standin import Fault, StandIn
from tests.gloo.stored import same_bits, trainer_state, whole_tensors

pytestmark = pytest.mark.extended(keep=1)

RANKS = 3


def config_of(folder: Path, **changes: Any) -> TrainerConfig:
    """Three ranks can share the batch; masks make the random state visible."""
    checkpoint = {"every_steps": 4, "keep": 5, "snapshot_every_steps": 1}
    asked = {"global_batch_size": 6, "model": {"dropout": 0.2}, "checkpoint": checkpoint}
    return small(folder, **{**asked, **changes})


WAITED_FOR = {"every_steps": 4, "keep": 5, "snapshot_every_steps": 1, "asynchronous": False}
"""So that it is certain which checkpoint there is when a rank is lost."""


@pytest.fixture(scope="session")
def undisturbed(gangs: GangStarter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in which nothing goes wrong."""
    folder = tmp_path_factory.mktemp("undisturbed")
    config = config_of(folder)
    gangs.run(train_rank, config, None, world_size=RANKS, checkpoint_folder=folder / "run")
    return folder / "run"


def assert_equal_runs(run: Path, undisturbed: Path) -> None:
    """Every loss, the final weights and moments, and the trainer's state, to the last bit."""
    assert read_losses(run / "metrics.jsonl") == read_losses(undisturbed / "metrics.jsonl")
    last = "step-00000010"
    assert same_bits(whole_tensors(run / last), whole_tensors(undisturbed / last))
    ours, theirs = trainer_state(run / last), trainer_state(undisturbed / last)
    for state in (ours, theirs):
        del state["config"]["data"]["source"]  # pyright: ignore[reportIndexIssue]
        del state["config"]["checkpoint"]  # pyright: ignore[reportIndexIssue]
    assert ours == theirs


def recovered(
    gangs: GangStarter,
    folder: Path,
    config: TrainerConfig,
    *faults: Fault,
    lost: Sequence[set[int]],
    undisturbed: Path,
    **module: str,
) -> list[Heartbeat]:
    """Train through the faults and return the heartbeats of the second attempt.

    The survivors keep their processes, and the run ends as an undisturbed one.
    """
    with StandIn(gangs, config, world_size=RANKS, folder=folder, **module) as gang:
        gang.start(list(faults))
        before = gang.pids
        assert [gang.recover() for _ in lost] == list(lost)
        survivors = set(before).difference(*lost)
        gang.finish()
        assert {n: gang.pids[n] for n in survivors} == {n: before[n] for n in survivors}
        beats = gang.beats(attempt=1)
    assert_equal_runs(folder, undisturbed)
    return beats


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="SIGKILL", rank=0, step=6, phase=Phase.BACKWARD),
        Fault(kind="SIGKILL", rank=1, step=6, phase=Phase.OPTIMIZER),
        Fault(kind="SIGSEGV", rank=2, step=5, phase=Phase.FORWARD),
        Fault(kind="exception", rank=1, step=7, phase=Phase.DATA),
        Fault(kind="SIGKILL", rank=2, step=8, phase=Phase.CHECKPOINT),
        Fault(kind="SIGKILL", rank=0, step=8, phase=Phase.CHECKPOINT),
        Fault(kind="SIGKILL", rank=1, step=9, phase=Phase.SNAPSHOT),
    ],
    ids=lambda fault: f"{fault.kind} of rank {fault.rank} in {fault.phase}",
)
def test_a_lost_rank_costs_nothing_but_time(
    gangs: GangStarter, tmp_path: Path, undisturbed: Path, fault: Fault
) -> None:
    folder, config, lost = tmp_path / "run", config_of(tmp_path), [{fault.rank}]
    beats = recovered(gangs, folder, config, fault, lost=lost, undisturbed=undisturbed)
    assert {beat.restored_from for beat in beats} >= {RestoreTier.MEMORY}


@pytest.mark.parametrize(
    "mutant", ["restored_step_off_by_one", "randomness_not_restored", "cursor_skips_a_batch"]
)
def test_the_comparison_sees_each_mutant(
    gangs: GangStarter, tmp_path: Path, undisturbed: Path, mutant: str
) -> None:
    folder = tmp_path / "run"
    module = f"tests.gloo.mutants.{mutant}"
    config = config_of(tmp_path)
    with StandIn(gangs, config, world_size=RANKS, folder=folder, module=module) as gang:
        gang.start([Fault(rank=1, step=6, phase=Phase.BACKWARD, kind="SIGKILL")])
        gang.recover()
        gang.finish()
    with pytest.raises(AssertionError):
        assert_equal_runs(folder, undisturbed)


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RESTORING, Phase.DATA])
def test_a_second_rank_is_lost_during_the_recovery(
    gangs: GangStarter, tmp_path: Path, undisturbed: Path, phase: Phase
) -> None:
    step = 6 if phase is Phase.DATA else 0  # a rank that is forked anew knows of no step yet
    faults = [
        Fault(rank=1, step=6, phase=Phase.BACKWARD, kind="SIGKILL"),
        Fault(rank=1, step=step, phase=phase, kind="SIGKILL", attempt=1),
    ]
    folder, config, lost = tmp_path / "run", config_of(tmp_path), [{1}, {1}]
    recovered(gangs, folder, config, *faults, lost=lost, undisturbed=undisturbed)


def test_two_ranks_are_lost_at_once(gangs: GangStarter, tmp_path: Path, undisturbed: Path) -> None:
    faults = [Fault(rank=r, step=6, phase=Phase.FORWARD, kind="SIGKILL") for r in (0, 2)]
    folder, config, lost = tmp_path / "run", config_of(tmp_path), [{0, 2}]
    recovered(gangs, folder, config, *faults, lost=lost, undisturbed=undisturbed)


def test_survivors_of_a_hung_rank_leave_when_told_and_it_need_not_be_dead(
    gangs: GangStarter, tmp_path: Path, undisturbed: Path
) -> None:
    """No word of the network says so when a node is gone: the others wait in their collective."""
    folder = tmp_path / "run"
    with StandIn(gangs, config_of(tmp_path), world_size=RANKS, folder=folder) as gang:
        gang.start([Fault(rank=1, step=6, phase=Phase.BACKWARD, kind="SIGSTOP")])
        before = gang.pids
        gang.ranks[1].hear(_at(6, Phase.BACKWARD))
        for survivor in (0, 2):
            gang.ranks[survivor].hear(_at(6, Phase.BACKWARD))
            gang.ranks[survivor].tell(Interrupt(generation=1, attempt=0))
            gang.ranks[survivor].hear(lambda word: isinstance(word, Quiesced))
        gang.ranks[1].process.kill()
        gang.ranks[1].process.join()
        gang.resume({1}, restore=gang.common_snapshot())
        gang.finish()
        assert (gang.pids[0], gang.pids[2]) == (before[0], before[2])
    assert_equal_runs(folder, undisturbed)


def test_a_rank_that_waits_for_others_to_join_leaves_when_told(
    gangs: GangStarter, tmp_path: Path, undisturbed: Path
) -> None:
    folder = tmp_path / "run"
    with StandIn(gangs, config_of(tmp_path), world_size=RANKS, folder=folder) as gang:
        gang.start([Fault(rank=1, step=6, phase=Phase.BACKWARD, kind="SIGKILL")])
        dead = gang.park()
        gang.resume(dead, restore=None, absent=dead)
        for survivor in (0, 2):
            gang.ranks[survivor].tell(Interrupt(generation=1, attempt=1))
            gang.ranks[survivor].hear(lambda word: isinstance(word, Quiesced) and word.attempt == 1)
        gang.resume(dead, restore=gang.common_snapshot())
        gang.finish()
    assert_equal_runs(folder, undisturbed)


def test_a_rank_that_waits_for_a_store_leaves_when_told(
    gangs: GangStarter, tmp_path: Path, undisturbed: Path
) -> None:
    folder = tmp_path / "run"
    with StandIn(gangs, config_of(tmp_path), world_size=RANKS, folder=folder) as gang:
        gang.start([Fault(rank=1, step=6, phase=Phase.BACKWARD, kind="SIGKILL")])
        dead = gang.park()
        gang.attempt += 1
        unreachable = replace(gang.placement(0), store_port=1)
        gang.ranks[0].tell(Resume(placement=unreachable))
        gang.ranks[0].tell(Interrupt(generation=1, attempt=1))
        gang.ranks[0].hear(lambda word: isinstance(word, Quiesced) and word.attempt == 1)
        gang.resume(dead, restore=gang.common_snapshot())
        gang.finish()
    assert_equal_runs(folder, undisturbed)


def test_without_snapshots_training_goes_on_from_the_checkpoint(
    gangs: GangStarter, tmp_path: Path, undisturbed: Path
) -> None:
    folder = tmp_path / "run"
    config = config_of(tmp_path, checkpoint=WAITED_FOR)
    with StandIn(gangs, config, world_size=RANKS, folder=folder, snapshots=False) as gang:
        gang.start(
            [
                Fault(rank=1, step=3, phase=Phase.DATA, kind="SIGKILL"),
                Fault(rank=2, step=6, phase=Phase.DATA, kind="SIGKILL", attempt=1),
            ]
        )
        assert [gang.recover(), gang.recover()] == [{1}, {2}]
        gang.finish()
        starts = [
            {(b.restored_from, b.restored_step) for b in gang.beats(attempt=n) if b.restored_from}
            for n in (1, 2)
        ]
    assert starts == [{(RestoreTier.INITIAL, 0)}, {(RestoreTier.STORAGE, 4)}]
    assert_equal_runs(folder, undisturbed)


def test_one_damaged_snapshot_sends_all_ranks_to_the_checkpoint(
    gangs: GangStarter, tmp_path: Path, undisturbed: Path
) -> None:
    folder = tmp_path / "run"
    config = config_of(tmp_path, checkpoint=WAITED_FOR)
    with StandIn(gangs, config, world_size=RANKS, folder=folder) as gang:
        gang.start([Fault(rank=1, step=6, phase=Phase.BACKWARD, kind="SIGKILL")])
        dead = gang.park()
        step = gang.common_snapshot()
        assert step is not None
        file = snapshot_file(gang.snapshots, rank=2, step=step)
        body = bytearray(file.read_bytes())
        body[-1] ^= 1
        file.write_bytes(body)
        gang.resume(dead, restore=step)
        gang.finish()
        restored = {b.restored_from for b in gang.beats(attempt=1)}
    assert restored == {None, RestoreTier.STORAGE}
    assert_equal_runs(folder, undisturbed)


def test_a_rank_of_an_older_attempt_meets_nobody(
    gangs: GangStarter, tmp_path: Path, undisturbed: Path
) -> None:
    """It knows where the store is and has a rank's number; only its attempt is over."""
    folder = tmp_path / "run"
    with StandIn(gangs, config_of(tmp_path), world_size=RANKS, folder=folder) as gang:
        gang.start([Fault(rank=1, step=6, phase=Phase.BACKWARD, kind="SIGKILL")])
        dead = gang.park()
        gang.resume(dead, restore=gang.common_snapshot(), absent={0})
        late = replace(gang.placement(0), attempt=0, restore_snapshot=5)
        stale = gang.forked(late)
        gang.ranks[0].tell(Resume(placement=gang.placement(0, restore=gang.common_snapshot())))
        gang.finish()
        assert stale.process.is_alive()
        stale.tell(Interrupt(generation=1, attempt=0))
        parked = stale.hear(lambda _: True)  # the first that it has to say
        assert isinstance(parked, Quiesced)
        stale.end()
    assert_equal_runs(folder, undisturbed)


def test_who_lost_the_checkpoint_folder_parks_and_commits_nothing(
    gangs: GangStarter, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    config = config_of(tmp_path, steps=1_000_000)
    with StandIn(gangs, config, world_size=RANKS, folder=folder) as gang:
        gang.start()
        gang.hear(_at(6, Phase.DATA))
        checkpoints = CheckpointFolder(path=folder, owner="job", membership=(2, 0))
        checkpoints.claim()
        committed = checkpoints.steps()
        for rank in gang.ranks.values():
            parked = rank.hear(lambda word: isinstance(word, Quiesced))
            assert isinstance(parked, Quiesced)
            assert "StaleMembershipError" in parked.reason
        assert checkpoints.steps() == committed


def test_many_recoveries_leave_nothing_behind(gangs: GangStarter, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    # allocators take memory by hundreds of kilobytes: a model, with its moments, is 1.5 MB
    model = {"hidden_size": 64, "ffn_size": 192}
    endless = {"steps": 1_000_000, "checkpoint": {"every_steps": 1_000_000}, "model": model}
    held: list[dict[str, int]] = []
    with StandIn(gangs, config_of(tmp_path, **endless), world_size=2, folder=folder) as gang:
        gang.start()
        for attempt in range(RECOVERIES + 1):
            gang.hear(partial(_two_steps_on, attempt=attempt))
            if attempt in (10, RECOVERIES):  # by the tenth every cache is full
                held.append(held_by(gang.ranks[0].process.pid))
            assert gang.interrupt() == set()
            gang.resume(set(), restore=gang.common_snapshot())
    (early, late), counted = held, RECOVERIES - 10
    assert late["descriptors"] <= early["descriptors"] + 1  # the file of a snapshot
    assert late["threads"] <= early["threads"] + 1  # that writes it
    more = late["memory"] - early["memory"]
    print(f"{RECOVERIES} recoveries, nobody was late; {more:,} bytes more after the last {counted}")
    assert more < counted * 400_000


def held_by(pid: int | None) -> dict[str, int]:
    """Open descriptors, threads and bytes of memory of its own of a process.

    Pages of libraries that are used for the first time are none.
    """
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return {
        "descriptors": len(list((process / "fd").iterdir())),
        "threads": int(status["Threads"]),
        "memory": int(status["RssAnon"].split()[0]) * 1024,
    }


def _two_steps_on(word: RankMessage, *, attempt: int) -> bool:
    if not isinstance(word, Heartbeat) or word.restored_step is None:
        return False
    return word.attempt == attempt and word.step >= word.restored_step + 2


def _at(step: int, phase: Phase) -> Callable[[RankMessage], bool]:
    return lambda word: isinstance(word, Heartbeat) and (word.step, word.phase) == (step, phase)
