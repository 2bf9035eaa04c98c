"""Starts the processes of a pod's command: with the variables of an attempt, by a standby or not.

A standby imports as long as a rank does, on the same processors. So standbys are started once a
rank of the pod has shown a step, or some time after the ranks: in most programs only rank 0 does.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from drumline_agent.base.settings import AgentSettings
from drumline_agent.commands.command_process import (
    CommandNotStartedError,
    CommandProcess,
    rank_process,
    start_process,
)
from drumline_agent.commands.launch_environment import (
    command_line,
    launch_variables,
    thread_variables,
)
from drumline_agent.commands.launch_plan import LaunchPlan
from drumline_agent.commands.leftovers import MARK_VARIABLE, leftovers
from drumline_agent.commands.own_patterns import PatternReader
from drumline_agent.commands.pod_clients import PodClients
from drumline_agent.commands.process_activity import running_processes
from drumline_agent.commands.progress_lines import ProgressReader
from drumline_agent.commands.standby import RankStart, Standbys
from drumline_agent.processes.reaper import Reaper
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import Launch, launcher_of

STACKS_VARIABLE: Final = "PYTHONFAULTHANDLER"
"""Makes Python print its stacks when it is aborted (`stack_dump`). An image may set it empty."""


class CommandStarter:
    """Starts the processes of one pod, over all its attempts."""

    def __init__(
        self,
        *,
        plan: LaunchPlan,
        settings: AgentSettings,
        reaper: Reaper,
        clients: PodClients,
        inherited: Mapping[str, str],
    ) -> None:
        """Prepare the starter; no process runs yet.

        Args:
            plan: what to start.
            settings: settings of the agent.
            reaper: waits for the processes.
            clients: clients of the ranks that use one.
            inherited: environment of the image, which the processes inherit.
        """
        self._plan = plan
        self._settings = settings
        self._reaper = reaper
        self._clients = clients
        self._inherited = inherited
        self._standbys = Standbys(modules=plan.launch.preload, reaper=reaper)
        self._starts: dict[int, RankStart] = {}
        """Start parameters of the newest process of each slot."""
        self._timer: asyncio.TimerHandle | None = None
        self._mark = secrets.token_hex(16)

    async def start(
        self,
        placement: Placement,
        *,
        on_line: Callable[[CommandProcess, bytes], None],
        progress: ProgressReader | PatternReader,
    ) -> CommandProcess:
        """Start the process of a placement.

        Args:
            placement: rank, devices and addresses of the process.
            on_line: called for each line of output.
            progress: finds steps in the output.

        Raises:
            CommandNotStartedError: the image cannot run the command, or the command is a launcher
                that would be started for each GPU.
            OSError: the pod is out of processes, memory or descriptors.
        """
        # Fail before anything runs: N trainings would write the same files.
        self._check_launch(placement.world_size)
        slot, start = placement.local_rank, self._start_of(placement)
        # A standby saves the seconds of the imports. Without one the command starts as usual.
        standby = await self._standbys.take(slot, start)
        started = standby or await start_process(
            start.command, environment=start.environment, reaper=self._reaper
        )
        # New standbys follow once a step is shown, or after a while for programs that show none.
        if self._plan.launch.preload:
            self._starts[slot] = start
            self._set_timer()
        return rank_process(
            started,
            placement=placement,
            on_line=on_line,
            progress=progress,
            preloaded=standby is not None,
        )

    def trains(self) -> None:
        """Start the standbys. A process has shown a step, so processors are free for imports."""
        # Only the first step after a start counts.
        if self._timer is not None:
            self._cancel_timer()
            self._prepare()

    def close(self) -> None:
        """Start no more processes, and end the standbys."""
        self._cancel_timer()
        self._standbys.close()

    def leftovers(self) -> list[int]:
        """Return the remaining processes of ended ranks."""
        # Children that are watched: ranks that still run, and standbys.
        return leftovers(self._mark, kept=self._reaper.watched, processes=running_processes())

    def _set_timer(self) -> None:
        self._cancel_timer()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._settings.stepless_seconds, self._prepare)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _prepare(self) -> None:
        self._timer = None  # until ranks are started again
        for slot, start in self._starts.items():
            self._standbys.prepare(slot, start)

    def _check_launch(self, world_size: int) -> None:
        if self._plan.launch.launch is Launch.PER_POD or world_size == 1:
            return
        launcher = launcher_of(self._plan.command)
        if launcher:
            raise CommandNotStartedError(
                f"{launcher} starts ranks itself, and launch: PerGpu would start it {world_size}"
                " times, each with a training of its own; set template.launch to PerPod"
            )

    def _start_of(self, placement: Placement) -> RankStart:
        variables = launch_variables(
            placement,
            launch=self._plan.launch.launch,
            gpus=self._plan.gpus,
            gang_folder=self._settings.gang_folder,
        )
        # Later entries win: the placement's variables must override those of the image.
        environment = {
            STACKS_VARIABLE: "1",
            **self._inherited,
            **thread_variables(placement, self._inherited),
            **variables,
            **self._clients.variables(self._inherited),
            MARK_VARIABLE: self._mark,
        }
        return RankStart(
            command=command_line(self._plan.command, variables), environment=environment
        )
