"""The processes of a pod as the detection of hangs sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from drumline_agent.commands.command_process import CommandProcess
from drumline_agent.commands.joined_clients import SILENT_PHASES, JoinedClient
from drumline_agent.commands.process_activity import process_tree
from drumline_agent.commands.step_history import position
from drumline_agent.protocol.member_reports import RankView
from drumline_agent.rank_protocol.placement import Placement
from drumline_agent.state.work_pace import WorkPace
from drumline_contract import Pause

NEVER_SECONDS = 1e12
"""Patience with a rank whose silence means nothing."""
LONG_PHASES = SILENT_PHASES - {"done"}
"""A process that has done its work and stays holds its GPUs for nothing."""


class RankViews:
    """Views of the processes of one pod."""

    def __init__(
        self,
        *,
        clients_of: Callable[[Placement], Sequence[JoinedClient]],
        work_of: Callable[[int], WorkPace],
        watches_activity: bool,
        running_processes: Callable[[], Mapping[int, tuple[int, float]]],
        on_scan: Callable[[Sequence[CommandProcess], Mapping[int, tuple[int, float]]], None],
    ) -> None:
        """Prepare the views, with unlimited patience.

        Args:
            clients_of: returns the clients of a process.
            work_of: returns the known pauses of a rank.
            watches_activity: whether a process without a client hangs if it neither prints nor uses
                a
                processor; otherwise its silence has no meaning.
            running_processes: returns parent and processor seconds of each process, by process id.
            on_scan: called with each result of that, and the running processes of the command.
        """
        self._clients_of = clients_of
        self._work_of = work_of
        self._watches_activity = watches_activity
        self._running_processes = running_processes
        self._on_scan = on_scan
        self.patience_seconds = NEVER_SECONDS
        """Seconds for which a rank may make no step, or (watched) show no activity."""

    def of(self, processes: Iterable[CommandProcess], *, now: float) -> tuple[RankView, ...]:
        """Return the view of each process; `now` is a time of the monotonic clock."""
        processes = list(processes)
        self._read_processors(processes, now=now)
        return tuple(self._view(process, now=now) for process in processes)

    def _read_processors(self, processes: Sequence[CommandProcess], *, now: float) -> None:
        due = [process for process in processes if process.alive and process.activity.due(now=now)]
        # A scan of /proc costs a file per process, so it runs every few seconds only.
        if not due:
            return
        running = self._running_processes()
        for process in due:
            tree = process_tree(process.pid, running)
            process.activity.used(sum(running[pid][1] for pid in tree), at=now)
        self._on_scan(due, running)

    def _view(self, process: CommandProcess, *, now: float) -> RankView:
        """Return one view. Printed steps are not compared with those of other ranks."""
        clients = self._clients_of(process.placement)
        steps = bool(clients) and all(client.trains for client in clients)
        behind = [position(client.report) for client in clients if client.report is not None]
        # 1. Clients report steps: ranks can be compared, and silence means no progress.
        if steps:
            silent = min(client.silent_seconds(now=now) for client in clients)
            patience = self.patience_seconds
        else:
            # 2. Printed steps only: the process is judged by itself, or not at all.
            silent, patience = process.activity.silent_seconds(now=now), NEVER_SECONDS
            if self._watches_activity:
                patience = process.activity.patience_seconds(least=self.patience_seconds)
        return RankView(
            rank=process.placement.rank,
            position=min(behind) if steps else (0, 0, 0),
            silent_seconds=silent,
            patience_seconds=patience,
            evidence=process.cpu.read(now=now),
            done=process.done,
            pause=self._pause(process, clients, now=now),
        )

    def _pause(
        self, process: CommandProcess, clients: Sequence[JoinedClient], *, now: float
    ) -> Pause | None:
        """Return how long the process shows no work. None: it has not shown a step in this attempt.

        A process that prints or uses a processor may evaluate on its GPUs, so it is not idle. A
        process that has never shown a step is not idle either. If other ranks show steps, it must
        at least be inactive.
        """
        work, inactive = self._work_of(process.placement.rank), process.activity
        idle = inactive.silent_seconds(now=now)
        pause = work.pause(now=now)
        # 1. Steps are expected but none is shown yet: it may be compiling.
        if pause is None and (clients or work.usual_seconds > 0):
            return None
        # 2. A program that never shows steps: only its activity counts.
        if pause is None:
            return Pause(seconds=idle, usual_seconds=0.0)
        # 3. Otherwise it is idle only if every sign is missing.
        reports = [client.report for client in clients if client.report is not None]
        if any(report.phase in LONG_PHASES for report in reports):
            idle = 0.0
        idle = min([idle, *(max(0.0, now - report.at) for report in reports)])
        return replace(pause, seconds=min(idle, pause.seconds))
