"""What the operator and the kubelets do for one gang, without a cluster.

The watch over silent agents is the operator's own (`controller.agents.watch`), and so is the way a
record travels (`controller.agents`). Decided here is only what `lifecycle` decides about lost pods:
survivors keep theirs, the lost ones are born anew into the next generation, on another address and
another node; a pod that gave up with a report fails the job.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from drumline.controller.agents.client import AgentClient, AgentError
from drumline.controller.agents.watch import AgentWatch, MemberAddress, WatchedGang
from drumline_contract import AgentPhase, ContractError, ExitCode, Progress
from tests.faults.agent.agents import JOB_UID, TOKEN, Agent
from tests.faults.agent.gang import Gang
from tests.matrix.cells import PODS, RANKS_PER_POD
from tests.matrix.diary import PIDS, read_mark
from tests.matrix.strikes import ACKNOWLEDGED, MAIN

LOST_AFTER_SECONDS = 5.0
LISTEN_SECONDS = 0.1
FAREWELL_SECONDS = 15.0
"""How long the other pods may take once one has finished its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the job ended."""

    error: str
    """Empty: it finished."""
    exit_codes: tuple[int, ...]
    """Of all pods, replaced ones included, in the order they were made."""
    generations: int
    zombies_left: bool
    """Whether something of a replaced pod ran on for long after the job was over."""


@dataclass(frozen=True, slots=True)
class PodReady:
    """A new pod can take ranks."""

    agent: Agent


@dataclass(frozen=True, slots=True)
class PodEnded:
    """A kubelet says that a pod has ended."""

    agent: Agent
    code: int


@dataclass(frozen=True, slots=True)
class News:
    """The watch has something new to say."""


Happening = PodReady | PodEnded | News


@dataclass(kw_only=True)
class StandIn:
    """Runs one job from its first record to its end."""

    gang: Gang
    variables: Mapping[str, str]
    unreported: tuple[int, ...] = ()
    """Pods of the first generation on nodes whose kubelet dies with them."""
    zombies: bool = False
    """Lost pods are paused, not dead: they wake up once they have been replaced."""
    away_seconds: float = 0.0
    """For how long after the fault nothing is decided."""
    forgets_checkpoints_from: int | None = None
    """A checkpoint of this step or a newer one is news that does not reach us in time."""
    hang_timeout_seconds: float | None = None
    """Of the job; None: the default."""
    listens: bool = False
    """Whether progress is heard all the time, not only beside news."""
    _ready: set[str] = field(default_factory=set)
    _acknowledged: tuple[int, str] | None = None
    _pushed: int = 0
    _paused: list[int] = field(default_factory=list)
    _happenings: asyncio.Queue[Happening] = field(default_factory=asyncio.Queue)

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        self._client = await self._stack.enter_async_context(AgentClient())
        self._watch = await self._stack.enter_async_context(
            AgentWatch(
                agents=self._client,
                enqueue=lambda _: self._happenings.put_nowait(News()),
                clock=time.monotonic,
            )
        )
        self._tasks = [asyncio.create_task(self._listen())] if self.listens else []
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._watch.unfollow(JOB_UID)
        await self._stack.aclose()
        await self.gang.band.stop()

    async def run(self) -> Ending:
        """Until every pod has ended, or the job has failed."""
        self.gang.ranks = RANKS_PER_POD
        if self.hang_timeout_seconds is not None:
            self.gang.record_fields["hang_timeout_seconds"] = self.hang_timeout_seconds
        for index in range(PODS):
            await self._admit(index)
        while True:
            happening = await self._happenings.get()
            await self._be_away()
            self._listen_to_progress()
            match happening:
                case PodReady(agent):
                    self._ready.add(agent.pod_uid)
                case PodEnded(agent, 0) if self._is_member(agent):
                    return await self._finish()
                case PodEnded(agent, code) if self._is_member(agent):
                    if error := gave_up(agent, code):
                        return await self._finish(error=error)
                    await self._replace({agent.index})
                case News():
                    await self._replace(self._lost())
                    self._wake_zombies()
                case _:
                    pass  # the end of a pod that is no member any more
            await self._push_when_all_are_ready()

    def _is_member(self, agent: Agent) -> bool:
        return self.gang.agents.get(agent.index) is agent

    def _lost(self) -> set[int]:
        heard = self._watch.report(JOB_UID)
        lost = heard.lost if heard is not None else frozenset()
        return {index for index, agent in self.gang.agents.items() if agent.pod_uid in lost}

    async def _be_away(self) -> None:
        mark = read_mark(self.gang.band.folder, MAIN) if self.away_seconds else None
        if mark is not None:
            await asyncio.sleep(max(0.0, mark.time + self.away_seconds - time.time()))

    async def _listen(self) -> None:
        """A checkpoint is no news, and a cell may wait until it is heard of."""
        while True:
            await asyncio.sleep(LISTEN_SECONDS)
            self._listen_to_progress()

    def _listen_to_progress(self) -> None:
        heard = self._watch.report(JOB_UID)
        progress = heard.status.progress if heard is not None else Progress()
        step, unknown_from = progress.checkpoint_step, self.forgets_checkpoints_from
        if step is not None and (unknown_from is None or step < unknown_from):
            self._acknowledged = (step, progress.checkpoint_digest)
            (self.gang.band.folder / ACKNOWLEDGED).write_text(str(step))

    async def _replace(self, lost: set[int]) -> None:
        if not lost:
            return
        self.gang.generation += 1
        for index in sorted(lost):
            if self.zombies:
                self._paused += self._processes_of(index)
            self.gang.former.append(self.gang.agents.pop(index))
            await self._admit(index)

    async def _admit(self, index: int) -> None:
        gang = self.gang
        variables = {**gang.variables, **self.variables}
        agent = await gang.band.start(index, variables=variables, generation=gang.generation)
        gang.agents[index], gang.births[index] = agent, gang.generation
        self._tasks.append(asyncio.create_task(self._report_ready(agent)))
        if gang.generation > 1 or index not in self.unreported:
            self._tasks.append(asyncio.create_task(self._report_end(agent)))

    async def _report_ready(self, agent: Agent) -> None:
        with suppress(AssertionError):  # it ended before
            await agent.event("agent_ready")
            self._happenings.put_nowait(PodReady(agent))

    async def _report_end(self, agent: Agent) -> None:
        code = await agent.process.wait()
        self._happenings.put_nowait(PodEnded(agent, code))

    async def _push_when_all_are_ready(self) -> None:
        gang = self.gang
        present = {agent.pod_uid for agent in gang.agents.values()}
        if self._pushed == gang.generation or not present <= self._ready:
            return
        if self._acknowledged is not None:
            step, digest = self._acknowledged
            gang.record_fields |= {"restore_step": step, "restore_digest": digest}
        try:
            await self._client.push(gang.record(), token=TOKEN)
        except AgentError:
            # the leader is gone: that it has ended, or is silent, is on its way to us
            asyncio.get_running_loop().call_later(0.5, self._happenings.put_nowait, News())
            return
        self._pushed = gang.generation
        self._follow()

    def _wake_zombies(self) -> None:
        """Once the gang trains without them."""
        heard = self._watch.report(JOB_UID)
        if heard is None or heard.status.phase is not AgentPhase.RUNNING:
            return
        if self._paused and heard.status.generation == self.gang.generation > 1:
            self._continue_zombies()

    def _continue_zombies(self) -> None:
        for pid in self._paused:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _follow(self) -> None:
        gang = self.gang
        self._watch.follow(
            WatchedGang(
                key="default/job",
                uid=JOB_UID,
                token=TOKEN,
                lost_after_seconds=LOST_AFTER_SECONDS,
                members=tuple(
                    MemberAddress(
                        index=index,
                        pod_uid=agent.pod_uid,
                        address=agent.address,
                        pod_generation=gang.births[index],
                        node_ready=index not in self.unreported or gang.births[index] > 1,
                    )
                    for index, agent in sorted(gang.agents.items())
                ),
            )
        )

    async def _finish(self, *, error: str = "") -> Ending:
        """Let the others end; after a failure delete them, as a failed job's pods are."""
        self._watch.unfollow(JOB_UID)
        self._continue_zombies()
        for agent in [*self.gang.former, *(self.gang.agents.values() if error else ())]:
            agent.process.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                for agent in self.gang.band.agents:
                    await agent.process.wait()
        return Ending(
            error=error,
            exit_codes=tuple(
                -99 if agent.process.returncode is None else agent.process.returncode
                for agent in self.gang.band.agents
            ),
            generations=self.gang.generation,
            zombies_left=any(map(_runs, self._paused)),
        )

    def _processes_of(self, index: int) -> list[int]:
        first = index * RANKS_PER_POD
        ranks = [f"rank-{rank}" for rank in range(first, first + RANKS_PER_POD)]
        folder = self.gang.band.folder / PIDS
        names = [f"agent-{index}", f"zygote-{index}", *ranks]
        return [int((folder / name).read_text()) for name in names if (folder / name).exists()]


def gave_up(agent: Agent, code: int) -> str:
    """Why this pod's end is the job's; empty where another pod may take its place."""
    try:
        report = agent.report
    except (OSError, ContractError):
        return ""  # it had no time for last words: killed, not failed
    if code == ExitCode.PEER_LOST:
        return ""
    return report.error or f"exit code {code}"


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
