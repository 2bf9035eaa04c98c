"""Watch every training gang: a long poll to its leader, and a verdict on silent members.

The leader of a gang is the agent with the lowest index that its agents know. It comes first in
`WatchedGang.members`. It hears from all members. Its status names silent members, faults that were
recovered in place, the state of a notice, and the training progress. When the leader fails to
answer twice in a row, the watch asks the next members. They report how long the leader has been
silent.

A member is *lost* when its peers have not heard from it for `lost_after_seconds` and our own
request to it fails too. It is also lost when its peers do not hear from it for three times as long,
whether or not it answers us. Without any answering peer, a member is lost after four times as long
without an answer to us, but only if the API server reports its node as not ready. So a partition
between the operator and a healthy gang loses no member. An agent that answers from a node whose
kubelet is dead is not lost.

    lost_after_seconds = 10, member 3 silent to its peers since t = 0
    t = 10  peers report 10 s; our request to member 3 fails     -> lost
    t = 10  peers report 10 s; member 3 answers us               -> doubted
    t = 40  peers report 40 s; member 3 still answers us         -> lost: its peers count

An agent's answer is tenant input. The contract bounds it. It is requested at most every
`PACE_SECONDS` and within the gang's `RequestAllowance`, and it can affect only its own job. A
request never waits for one about another gang.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from types import TracebackType
from typing import Self

from drumline.controller.agents.allowance import RequestAllowance
from drumline.controller.agents.client import AgentClient, AgentError
from drumline.telemetry import logs
from drumline_contract import AgentStatus, Progress

log = logs.get("drumline.controller.agents.watch")

WAIT_SECONDS = 2.0
"""Time for which a leader holds our request. A dead leader is noticed after it."""
REQUESTS_PER_SECOND = 250.0
"""Limit over all jobs. With more jobs than it can serve, every request waits longer."""
PACE_SECONDS = 0.1
"""Least time between two requests about one job. It grows with the number of jobs."""
RETRY_SECONDS = 0.25
IDLE_SECONDS = 0.5
"""Pause while no member has an address."""
TRIES = 2
"""Failed requests in a row after which a leader counts as not answering."""
NEXT_MEMBERS = 3
"""Number of members that are asked when the leader does not answer."""
LOOKS_AT_ONCE = 32
"""Members of one gang that are asked concurrently, in addition to the leader's long poll."""
LOG_SECONDS = 60.0
"""Least time between two log lines about one silent agent, which may answer every other request."""
CERTAIN_FACTOR = 4.0
"""Multiple of `lost_after_seconds` after which silence counts without a second witness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAddress:
    """Address of the agent of one member of a gang."""

    index: int
    pod_uid: str
    address: str
    pod_generation: int
    """Generation in which its pod was created."""
    node_ready: bool = True
    """True if the API server reports the node as ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedGang:
    """A gang to watch."""

    key: str
    uid: str
    token: bytes
    lost_after_seconds: float
    members: tuple[MemberAddress, ...]
    """In the order in which they are asked. Only members whose pod has an address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangReport:
    """The latest report of a gang's agents."""

    status: AgentStatus
    """Newest answer of the leader, or of the member that answered in its place."""
    lost: frozenset[str] = frozenset()
    """Uids of the pods that are lost by silence."""
    is_answered: bool = True
    """True if the status answers our last request, False for an older status."""


@dataclass(slots=True)
class _WatchState:
    """Memory of one gang between two requests."""

    gang: WatchedGang
    report: GangReport | None = None
    reporter: str = ""
    """Uid of the pod that gave the last answer. Versions of two agents do not compare."""
    failures: int = 0
    """Failed requests to the leader in a row."""
    unanswered_since: dict[str, float] = field(default_factory=dict[str, float])
    """Time since which a pod has not answered us, by uid."""
    joined_at: dict[str, float] = field(default_factory=dict[str, float])
    """Time at which a pod joined during the watch, by uid. It cannot be silent for longer."""
    logged_at: dict[str, float] = field(default_factory=dict[str, float])
    """Time at which a pod's silence was logged, by uid."""
    doubted_since: dict[str, float] = field(default_factory=dict[str, float])
    """Time since which a pod answers us although its peers do not hear it, by uid."""
    looks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LOOKS_AT_ONCE))
    allowance: RequestAllowance = field(default_factory=RequestAllowance)
    is_asked: bool = False
    """True if its first request was made."""


class AgentWatch:
    """Watch of gangs. An async context manager that cancels its requests when it exits.

    Args:
        agents: client for the agents.
        enqueue: called with a job's key when there is news about it.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        agents: AgentClient,
        enqueue: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._agents = agents
        self._enqueue = enqueue
        self._clock = clock
        self._states: dict[str, _WatchState] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for uid in list(self._states):
            self.unfollow(uid)
        await self._group.__aexit__(kind, error, trace)

    def follow(self, gang: WatchedGang) -> None:
        """Watch a gang, or update its members if it is watched already."""
        state = self._states.get(gang.uid)
        if state is None:
            self._states[gang.uid] = _WatchState(gang=gang)
            self._tasks[gang.uid] = self._group.create_task(self._watch(self._states[gang.uid]))
            return
        # The failures belong to the leader that caused them. A new leader starts without any.
        if _leader(gang) != _leader(state.gang):
            state.failures = 0
        before = {member.pod_uid for member in state.gang.members}
        now = {member.pod_uid for member in gang.members}
        # Remember when pods joined: peers may report a silence that began before this pod existed.
        state.joined_at |= dict.fromkeys(now - before, self._clock())
        memories = (state.joined_at, state.unanswered_since, state.logged_at, state.doubted_since)
        # Forget pods that left, so that memory stays bounded by the gang's size.
        for memory in memories:
            for uid in memory.keys() - now:
                del memory[uid]
        state.gang = gang

    def unfollow(self, uid: str) -> None:
        """Stop watching a gang."""
        self._states.pop(uid, None)
        task = self._tasks.pop(uid, None)
        if task is not None:
            task.cancel()

    def report(self, uid: str) -> GangReport | None:
        """Return the latest report of a gang, or None before the first answer."""
        state = self._states.get(uid)
        return state.report if state is not None else None

    def status(self, uid: str) -> AgentStatus | None:
        """Return the latest status that a gang's agents sent, or None before the first."""
        report = self.report(uid)
        return report.status if report is not None else None

    def progress(self, uid: str) -> Progress | None:
        """Return the progress that a gang reported last, or None before the first."""
        status = self.status(uid)
        return status.progress if status is not None else None

    def __len__(self) -> int:
        return len(self._states)

    async def _watch(self, state: _WatchState) -> None:
        # A new leader starts to watch all gangs at the same time: spread the first requests.
        # Gangs whose agents were asked and stay silent do not count: they must delay no other.
        before = sum(not each.is_asked for each in self._states.values()) - 1
        await asyncio.sleep(before / REQUESTS_PER_SECOND)
        while True:
            if not state.gang.members:
                await asyncio.sleep(IDLE_SECONDS)
                continue
            started = self._clock()
            state.is_asked = True
            # One poll. A failed request is a value here, only faults of our own raise.
            try:
                await self._poll(state)
            except Exception:  # a bad answer of one tenant must not end the watch of all gangs
                log.exception("agent_poll_failed", job=state.gang.key)
                state.failures += 1
            # Pace: at least `PACE_SECONDS`, longer after failures and with many gangs.
            pace = PACE_SECONDS if state.failures == 0 else RETRY_SECONDS
            pace = max(pace, len(self._states) * PACE_SECONDS / REQUESTS_PER_SECOND)
            now = self._clock()
            members, gangs = len(state.gang.members), len(self._states)
            # Pay for the requests. A gang without tokens waits for its own bucket only.
            earned = state.allowance.delay(now, members=members, gangs=gangs)
            await asyncio.sleep(max(earned, started + pace - now))

    async def _poll(self, state: _WatchState) -> None:
        """Poll the leader once, and publish the result of its answer or silence."""
        # Phase 1: ask the leader. One failed request may be a lost packet, so wait for a second.
        gang = state.gang
        answer = await self._ask(state, gang.members[0], wait=True)
        state.failures = 0 if answer is not None else state.failures + 1
        if answer is None and state.failures < TRIES:
            return
        # Phase 2: the leader is silent. Its peers know for how long.
        if answer is None:
            answer = await self._ask_other_members(state)
        # Phase 3: the verdict on silent members, with a witness or without one.
        if answer is None:
            lost = await self._lost_without_witness(state)
        else:
            lost = await self._lost(state, answer)
        self._publish(state, answer, lost)

    async def _ask_other_members(self, state: _WatchState) -> AgentStatus | None:
        """Return the first answer of the next members and of members far from them.

        Members far apart are asked because racks often fail as a whole.
        """
        members = state.gang.members
        far = [members[len(members) * part // 4] for part in (1, 2, 3)]
        chosen = dict.fromkeys([*members[1 : 1 + NEXT_MEMBERS], *far])
        chosen.pop(members[0], None)
        answers = await asyncio.gather(*(self._ask(state, member, wait=False) for member in chosen))
        return next((answer for answer in answers if answer is not None), None)

    async def _lost(self, state: _WatchState, answer: AgentStatus) -> frozenset[str]:
        """Return uids of silent members that are lost, after one more request to each."""
        # Phase 1: the members that the answering agent reports as silent.
        by_index = {member.index: member for member in state.gang.members}
        silent = [
            (by_index[member.index], member.seconds)
            for member in answer.silent
            # A pod of a later generation is not known to the answering agent.
            if member.index in by_index
            and by_index[member.index].pod_generation <= answer.generation
        ]
        # Phase 2: ask each of them ourselves. Doubts about members that are heard again end.
        verdicts = await asyncio.gather(
            *(self._is_lost(state, member, seconds) for member, seconds in silent)
        )
        lost = {
            member.pod_uid for (member, _), is_lost in zip(silent, verdicts, strict=True) if is_lost
        }
        for uid in state.doubted_since.keys() - {member.pod_uid for member, _ in silent}:
            del state.doubted_since[uid]
        # Phase 3: the case in which the answering member itself is cut off.
        peers = len(state.gang.members) - 1
        all_answer_us = len(lost) == peers > 1 and lost <= state.doubted_since.keys()
        if all_answer_us and answer.index in by_index:
            # Every peer answers us: the member that hears none of them is the one cut off.
            return frozenset({by_index[answer.index].pod_uid})
        return frozenset(lost)

    async def _is_lost(self, state: _WatchState, member: MemberAddress, seconds: float) -> bool:
        """Return whether a member is lost that its peers have not heard for `seconds`.

        If the member answers us, the peers' report counts only after `CERTAIN_FACTOR` times the
        limit. A leader that was frozen reports all other members as silent when it resumes.
        """
        # A pod that joined a moment ago cannot have been silent for as long as its predecessor.
        limit, now = state.gang.lost_after_seconds, self._clock()
        joined_at = state.joined_at.get(member.pod_uid)
        known = seconds if joined_at is None else min(seconds, now - joined_at)
        if known < limit:
            return False
        # The leader was asked by this very poll. A second request would only cost time.
        asked = member is state.gang.members[0] and state.failures > 0
        if asked or await self._ask(state, member, wait=False) is None:
            return True
        # It answers us, but not its peers: doubt it until the peers have insisted for long enough.
        doubted_since = state.doubted_since.setdefault(member.pod_uid, now)
        return now >= doubted_since + (CERTAIN_FACTOR - 1) * limit

    async def _lost_without_witness(self, state: _WatchState) -> frozenset[str]:
        """Return the uids of silent members on nodes that are not ready, after a longer silence.

        For a gang in which no member answers.
        """
        gang = state.gang
        # A member on a ready node is kept: the partition may be between the operator and the gang.
        suspects = [member for member in gang.members if not member.node_ready]
        answers = await asyncio.gather(
            *(self._ask(state, member, wait=False) for member in suspects)
        )
        due = self._clock() - CERTAIN_FACTOR * gang.lost_after_seconds
        return frozenset(
            member.pod_uid
            for member, answer in zip(suspects, answers, strict=True)
            if answer is None and state.unanswered_since.get(member.pod_uid, due + 1.0) <= due
        )

    async def _ask(
        self, state: _WatchState, member: MemberAddress, *, wait: bool
    ) -> AgentStatus | None:
        """Return the status of a member, or None, remembered, without a usable answer."""
        members, gangs = len(state.gang.members), len(self._states)
        # Pay before the request: a request that fails costs as much as one that is answered.
        state.allowance.take(1, self._clock(), members=members, gangs=gangs)
        try:
            answer = await self._request(state, member, wait=wait)
        except AgentError as error:
            return self._unanswered(state, member, why=str(error))
        # Addresses are reused. An answer of another pod says nothing about this one.
        if (answer.job_uid, answer.pod_uid) != (state.gang.uid, member.pod_uid):
            return self._unanswered(state, member, why="its address belongs to another pod now")
        state.unanswered_since.pop(member.pod_uid, None)
        return answer

    async def _request(
        self, state: _WatchState, member: MemberAddress, *, wait: bool
    ) -> AgentStatus:
        token = state.gang.token
        if not wait:
            async with state.looks:
                return await self._agents.status(member.address, token=token)
        # `since` is valid for the agent that issued the version only.
        known = state.report.status if state.report and state.reporter == member.pod_uid else None
        return await self._agents.status(
            member.address,
            token=token,
            since=known.version if known is not None else None,
            wait_seconds=self._patience(state),
        )

    def _unanswered(self, state: _WatchState, member: MemberAddress, *, why: str) -> None:
        uid, now = member.pod_uid, self._clock()
        if uid in state.unanswered_since:
            # Keep the time of the first failure: the length of the silence is counted from it.
            return
        state.unanswered_since[uid] = now
        if now >= state.logged_at.get(uid, -inf) + LOG_SECONDS:
            state.logged_at[uid] = now
            log.info("agent_silent", job=state.gang.key, index=member.index, why=why)

    def _patience(self, state: _WatchState) -> float:
        """Return the seconds for which the leader may hold our request.

        It is shorter when a silent member is about to be lost. The job's uid spreads it, so that
        the requests of all jobs do not coincide.
        """
        spread = 0.8 + 0.2 * (zlib.crc32(state.gang.uid.encode()) % 100) / 100
        wait = max(WAIT_SECONDS, len(self._states) / REQUESTS_PER_SECOND) * spread
        # Ask again as soon as the next silent member reaches the limit.
        silent = state.report.status.silent if state.report else ()
        limit = state.gang.lost_after_seconds
        remaining = [limit - member.seconds for member in silent if member.seconds < limit]
        return min([wait, *(max(PACE_SECONDS, seconds) for seconds in remaining)])

    def _publish(
        self, state: _WatchState, answer: AgentStatus | None, lost: frozenset[str]
    ) -> None:
        before = state.report
        # Without an answer the last status stays, marked as not answered.
        status = answer or (before.status if before else None)
        if answer is not None:
            state.reporter = answer.pod_uid
        if status is None:
            return
        state.report = GangReport(status=status, lost=lost, is_answered=answer is not None)
        if before is None or _news(before) != _news(state.report):
            self._enqueue(state.gang.key)


def _leader(gang: WatchedGang) -> str | None:
    return gang.members[0].pod_uid if gang.members else None


def _news(report: GangReport) -> tuple[object, ...]:
    """Return the parts of a report whose change wakes the reconciler.

    Only the layout counts in the progress, because a step counter changes with every answer.
    """
    status = report.status
    return (
        *(status.generation, status.phase, status.incidents, status.notice),
        *(status.waiting_for, status.remark, status.progress.layout, report.lost),
        status.pause is not None and status.pause.is_idle,
    )
