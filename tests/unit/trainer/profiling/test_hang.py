from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline_agent.rank_protocol.placement import Placement
from drumline_trainer.profiling.flight_recorder import KEPT, FlightRecorder, write_dump
from drumline_trainer.profiling.hang import main, read_dumps, root_cause_ranks, summary
from tests.texts import missing


class Run:
    """Ranks that do as they are told, and leave their dumps in a folder."""

    def __init__(self, folder: Path, *, ranks: int) -> None:
        self.folder = folder
        self.now = 100.0
        self.recorders = [FlightRecorder(clock=lambda: self.now) for _ in range(ranks)]

    def all_do(self, *names: str, but: tuple[int, ...] = ()) -> None:
        """Phases are entered, collectives done."""
        for rank, recorder in enumerate(self.recorders):
            for name in names if rank not in but else ():
                if "/" not in name:
                    recorder.enter(name)
                    continue
                recorder.begin(name)
                recorder.end()

    def waits(self, *ranks: int, name: str) -> None:
        for rank in ranks:
            self.recorders[rank].begin(name)

    def summarized(self, *, without: tuple[int, ...] = ()) -> list[str]:
        self.now += 12.5
        for rank, recorder in enumerate(self.recorders):
            if rank not in without:
                placement = Placement(
                    rank=rank, world_size=len(self.recorders), generation=1, attempt=2
                )
                write_dump(recorder.to_dict(placement), self.folder)
        self.stands = read_dumps(self.folder / "flight" / "1.2")
        return summary(self.stands)


def test_who_is_one_collective_behind_keeps_the_others_waiting(tmp_path: Path) -> None:
    run = Run(tmp_path, ranks=4)
    run.all_do("forward", *["all_reduce/tp"] * 40)
    run.waits(2, name="all_reduce/tp")
    run.all_do("all_reduce/tp", but=(2,))
    run.waits(0, 1, 3, name="all_reduce/tp")
    blamed, behind, ahead = run.summarized()
    assert not missing(blamed, "rank 2")
    assert not missing(behind, "rank 2", "all_reduce #41", "axis tp", "step 0, forward", "12.5 s")
    assert not missing(ahead, "ranks 0, 1 and 3", "all_reduce #42", "axis tp", "12.5 s")


def test_the_chain_of_who_waits_for_whom_is_followed_over_axes(tmp_path: Path) -> None:
    """Rank 3 loads data; 2 waits for it over tp; 0 waits for 2 over dp, and 1 for 3."""
    run = Run(tmp_path, ranks=4)
    for rank, recorder in enumerate(run.recorders):
        tensor, data = ([0, 1], [2, 3])[rank // 2], ([0, 2], [1, 3])[rank % 2]
        recorder.peers = {"tp": tensor, "dp": data}
        recorder.enter("data")
    run.all_do("forward", but=(3,))
    run.waits(2, name="all_reduce/tp")
    run.waits(0, 1, name="all_reduce/dp")
    assert not missing(run.summarized()[0], "rank 3")


def test_stages_that_wait_for_one_that_computes(tmp_path: Path) -> None:
    run = Run(tmp_path, ranks=3)
    run.all_do("forward")
    run.all_do("recv/pp", "send/pp", but=(0, 1))
    run.waits(0, 2, name="recv/pp")
    assert not missing(run.summarized()[0], "rank 1")


def test_without_counted_collectives_the_phases_tell(tmp_path: Path) -> None:
    run = Run(tmp_path, ranks=3)
    run.all_do("data")
    run.all_do("forward", "backward", but=(1,))
    blamed, behind, ahead = run.summarized()
    assert not missing(blamed, "rank 1")
    assert not missing(behind, "rank 1", "data", "step 0", "12.5 s")
    assert not missing(ahead, "ranks 0 and 2", "backward", "step 0", "12.5 s")


def test_who_left_no_dump_is_waited_for(tmp_path: Path) -> None:
    run = Run(tmp_path, ranks=3)
    run.waits(0, 1, 2, name="all_reduce/dp")
    blamed, waiting, silent = run.summarized(without=(1,))
    assert not missing(blamed, "rank 1")
    assert not missing(waiting, "ranks 0 and 2", "all_reduce #1", "axis dp", "all_reduce/dp")
    assert not missing(silent, "rank 1")


def test_where_all_ranks_wait_together_no_rank_is_the_root_cause(tmp_path: Path) -> None:
    run = Run(tmp_path, ranks=2)
    run.all_do("backward")
    run.waits(0, 1, name="all_reduce/dp")
    assert run.summarized()[0].startswith("no rank is behind")
    assert root_cause_ranks(run.stands) == set()


def test_the_command_prints_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    run = Run(tmp_path, ranks=2)
    run.all_do("data")
    run.all_do("forward", but=(1,))
    summarized = run.summarized()
    capsys.readouterr()
    assert main([str(tmp_path / "flight" / "1.2")]) == 0
    assert capsys.readouterr().out.splitlines() == summarized


def test_the_newest_are_kept_with_their_times() -> None:
    now = 0.0
    recorder = FlightRecorder(clock=lambda: now)
    for _ in range(KEPT):
        recorder.enter("forward")
        now += 1
        recorder.begin("all_gather/fsdp")
        now += 2
        recorder.end()
    dump: dict[str, Any] = recorder.to_dict(Placement(rank=0, world_size=1))
    assert len(dump["newest"]) == KEPT
    last = {"name": "all_gather/fsdp", "number": KEPT, "began": now - 2, "ended": now}
    assert dump["newest"][-1] == last
    assert dump["newest"][-2]["ended"] is None, "the phase goes on"
    assert dump["begun"] == {"phases": KEPT, "fsdp": KEPT}
    assert any("to_dict" in frame for frame in dump["stack"])
