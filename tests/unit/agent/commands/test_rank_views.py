"""The pause of a process that runs a user's command."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from drumline_agent.commands.client_socket import ClientConnection
from drumline_agent.commands.command_process import CommandProcess
from drumline_agent.commands.joined_clients import JoinedClient
from drumline_agent.commands.process_activity import ActivityWatch
from drumline_agent.commands.progress_lines import ProgressReader
from drumline_agent.commands.rank_views import RankViews
from drumline_agent.processes.output import LineReader, PrefixedOutput
from drumline_agent.processes.process_evidence import CpuWatch
from drumline_agent.rank_protocol.placement import Placement
from drumline_agent.state.work_pace import WorkPace
from drumline_client.wire import Hello, StepReport
from drumline_contract import Pause
from tests.unit.agent.state.test_work_pace import pace_of

PID = 2**22 + 1
"""Of no process."""
LEARNED = ((1, 0.0), (2, 2.0), (3, 4.0))


class Watched:
    """One process; what it has used of the processors is the test's to say."""

    def __init__(self, work: WorkPace) -> None:
        self.clients: list[JoinedClient] = []
        self.cpu_seconds = 0.0
        self.scanned: list[int] = []
        self.process = CommandProcess(
            placement=Placement(rank=0, world_size=1, generation=1),
            pid=PID,
            exited=asyncio.get_running_loop().create_future(),
            output=PrefixedOutput(""),
            output_reader=cast("LineReader", None),
            cpu=CpuWatch(PID),
            activity=ActivityWatch(begun_at=0.0),
            progress=cast("ProgressReader", None),
        )
        self.views = RankViews(
            clients_of=lambda _: self.clients,
            work_of=lambda _: work,
            watches_activity=False,
            running_processes=lambda: {PID: (1, self.cpu_seconds)},
            on_scan=lambda processes, _: self.scanned.extend(each.pid for each in processes),
        )

    def pause(self, *, now: float) -> Pause | None:
        (view,) = self.views.of([self.process], now=now)
        return view.pause

    def reports(self, phase: str, *, at: float) -> None:
        report = StepReport(at=at, phase=phase, saves=True, step=3)
        hello = Hello(v=1, rank=0, local_rank=0, world_size=1, pid=1)
        connection = cast("ClientConnection", None)
        self.clients = [JoinedClient(hello=hello, connection=connection, report=report)]


async def test_whoever_neither_steps_nor_prints_nor_uses_a_processor_pauses() -> None:
    watched = Watched(pace_of(*LEARNED))
    assert watched.pause(now=10.0) == Pause(seconds=0.0, usual_seconds=2.0)
    assert watched.pause(now=100.0) == Pause(seconds=90.0, usual_seconds=2.0)
    watched.process.activity.printed(at=105.0)
    assert watched.pause(now=110.0) == Pause(seconds=5.0, usual_seconds=2.0)


async def test_one_scan_of_processes_serves_all_its_users() -> None:
    watched = Watched(pace_of(*LEARNED))
    for now in (10.0, 11.0, 16.0, 17.0):
        watched.pause(now=now)
    assert watched.scanned == [PID, PID]  # at 10 s and 16 s, not with every view


async def test_a_process_that_computes_may_evaluate_on_its_gpus() -> None:
    watched = Watched(pace_of(*LEARNED))
    for now in range(10, 1000, 10):
        watched.cpu_seconds += 5.0
        assert watched.pause(now=float(now)) == Pause(seconds=0.0, usual_seconds=2.0)


async def test_a_process_without_steps_says_nothing_but_that_it_is_inactive() -> None:
    watched = Watched(WorkPace())
    watched.pause(now=10.0)
    assert watched.pause(now=100.0) == Pause(seconds=90.0, usual_seconds=0.0)


async def test_a_process_that_has_shown_steps_before_may_take_its_time_to_start() -> None:
    work = pace_of(*LEARNED)
    work.begin_attempt()
    assert Watched(work).pause(now=5_000.0) is None


@pytest.mark.parametrize("phase", ["starting", "restoring", "evaluating", "saving"])
async def test_a_phase_that_a_client_names_may_take_long(phase: str) -> None:
    watched = Watched(pace_of(*LEARNED))
    watched.pause(now=5.0)
    watched.reports(phase, at=6.0)
    assert watched.pause(now=5_000.0) == Pause(seconds=0.0, usual_seconds=2.0)


@pytest.mark.parametrize("phase", ["data", "training", "done"])
async def test_a_client_that_waits_for_data_or_has_done_its_work_pauses(phase: str) -> None:
    watched = Watched(pace_of(*LEARNED))
    watched.pause(now=5.0)
    watched.reports(phase, at=6.0)
    assert watched.pause(now=106.0) == Pause(seconds=100.0, usual_seconds=2.0)
