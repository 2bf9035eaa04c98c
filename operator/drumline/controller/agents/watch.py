"""One eye on every gang that trains: a request to its leader that waits there for news.

The leader of a gang is the agent of the lowest index that its agents know of, and comes first in
`Gang.members`: it hears all members, and its status says who has fallen silent, which faults were
recovered in place, what became of a notice, how far training is. When the leader does not answer
twice in a row, the next members are asked, who say for how long they have not heard it.

A member is *lost* when its peers have not heard it for `lost_after_seconds` and a look of our own
fails too, or when they go on not to hear it for three times as long whatever our look says. Where
no peer is left to ask, four times as long without an answer to us counts, but only on a node that
the API server does not hear either: a partition between us and a healthy gang loses nobody. A node
whose kubelet is dead and whose agent answers is none of this.

What an agent says is tenant input: it is bounded by the contract, asked for at most `PACE_SECONDS`
apart, and can cost its own job alone.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from drumline.controller.agents.client import AgentClient, AgentError
from drumline.telemetry import logs
from drumline_trainer.contract import AgentStatus, Progress

log = logs.get("drumline.controller.agents.watch")

WAIT_SECONDS = 2.0
"""How long a leader holds our request; a dead one is noticed when that is over."""
REQUESTS_PER_SECOND = 250.0
"""With more jobs than this can watch, every request waits longer."""
PACE_SECONDS = 0.1
"""At least this long between two requests about one job, and longer the more jobs there are."""
RETRY_SECONDS = 0.25
IDLE_SECONDS = 0.5
"""While no member has an address."""
TRIES = 2
"""Failures in a row before a leader counts as not answering."""
DEPUTIES = 3
"""Members asked when the leader does not answer."""
CERTAIN_FACTOR = 4.0
"""Silence so many times longer than `lost_after_seconds` is believed without a second witness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAddress:
    """Where one member of a gang is to be asked."""

    index: int
    pod_uid: str
    address: str
    birth: int
    """Generation its pod was created in."""
    node_ready: bool = True
    """Whether the API server hears its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A gang to keep an eye on."""

    key: str
    uid: str
    token: bytes
    lost_after_seconds: float
    members: tuple[MemberAddress, ...]
    """In the order in which they are asked; only those that have a pod with an address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What is known of a gang from its agents."""

    status: AgentStatus
    """The newest answer of its leader, or of whoever answered for it."""
    lost: frozenset[str] = frozenset()
    """Uids of the pods that are lost by silence."""


@dataclass(slots=True)
class _Eye:
    """What is remembered of one gang between two requests."""

    gang: Gang
    heard: Heard | None = None
    reporter: str = ""
    """Uid of the pod that gave the last answer: versions of two agents do not compare."""
    failures: int = 0
    """Of the leader, in a row."""
    unanswered_since: dict[str, float] = field(default_factory=dict[str, float])
    """Pods that did not answer us, by uid."""
    joined_at: dict[str, float] = field(default_factory=dict[str, float])
    """Pods that came while we watched, by uid: they cannot have been silent for longer."""
    doubted_since: dict[str, float] = field(default_factory=dict[str, float])
    """Pods that their peers do not hear and that answered us, by uid."""


class AgentWatch:
    """Watches gangs; an async context manager that ends its requests with it.

    Args:
        agents: the way to the agents.
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
        self._eyes: dict[str, _Eye] = {}
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
        for uid in list(self._eyes):
            self.leave(uid)
        await self._group.__aexit__(kind, error, trace)

    def follow(self, gang: Gang) -> None:
        """Keep an eye on a gang, or take note of its members as they are now."""
        eye = self._eyes.get(gang.uid)
        if eye is None:
            self._eyes[gang.uid] = _Eye(gang=gang)
            self._tasks[gang.uid] = self._group.create_task(self._watch(self._eyes[gang.uid]))
            return
        if _leader(gang) != _leader(eye.gang):
            eye.failures = 0
        before = {member.pod_uid for member in eye.gang.members}
        now = {member.pod_uid for member in gang.members}
        eye.joined_at |= dict.fromkeys(now - before, self._clock())
        for memory in (eye.joined_at, eye.unanswered_since, eye.doubted_since):
            for uid in memory.keys() - now:
                del memory[uid]
        eye.gang = gang

    def leave(self, uid: str) -> None:
        """Look away from a gang."""
        self._eyes.pop(uid, None)
        task = self._tasks.pop(uid, None)
        if task is not None:
            task.cancel()

    def heard(self, uid: str) -> Heard | None:
        """What is known of a gang; None before the first answer."""
        eye = self._eyes.get(uid)
        return eye.heard if eye is not None else None

    def progress(self, uid: str) -> Progress | None:
        """How far a gang said last that it is."""
        heard = self.heard(uid)
        return heard.status.progress if heard is not None else None

    def __len__(self) -> int:
        return len(self._eyes)

    async def _watch(self, eye: _Eye) -> None:
        unheard = sum(other.heard is None for other in self._eyes.values())
        await asyncio.sleep(unheard / REQUESTS_PER_SECOND)  # an operator starts with all at once
        while True:
            if not eye.gang.members:
                await asyncio.sleep(IDLE_SECONDS)
                continue
            started = self._clock()
            try:
                await self._look(eye)
            except Exception:  # whatever one tenant's agent answered, the others are watched
                log.exception("agent_look_failed", job=eye.gang.key)
                eye.failures += 1
            pace = PACE_SECONDS if eye.failures == 0 else RETRY_SECONDS
            pace = max(pace, len(self._eyes) * PACE_SECONDS / REQUESTS_PER_SECOND)
            await asyncio.sleep(max(0.0, started + pace - self._clock()))

    async def _look(self, eye: _Eye) -> None:
        """One request to the leader, and what follows from its answer or its silence."""
        gang = eye.gang
        answer = await self._ask(eye, gang.members[0], wait=True)
        eye.failures = 0 if answer is not None else eye.failures + 1
        if answer is None and eye.failures < TRIES:
            return
        if answer is None:
            answer = await self._ask_deputies(eye)
        if answer is None:
            lost = await self._unheard_by_all(eye)
        else:
            lost = await self._lost(eye, answer)
        self._publish(eye, answer, lost)

    async def _ask_deputies(self, eye: _Eye) -> AgentStatus | None:
        """Whoever answers of those next in line, and of some far from them: racks die whole."""
        members = eye.gang.members
        far = [members[len(members) * part // 4] for part in (1, 2, 3)]
        chosen = dict.fromkeys([*members[1 : 1 + DEPUTIES], *far])
        chosen.pop(members[0], None)
        answers = await asyncio.gather(*(self._ask(eye, one, wait=False) for one in chosen))
        return next((answer for answer in answers if answer is not None), None)

    async def _lost(self, eye: _Eye, answer: AgentStatus) -> frozenset[str]:
        """Of the silent members those that count as lost, each looked at once more."""
        by_index = {member.index: member for member in eye.gang.members}
        silent = [
            (by_index[one.index], one.seconds)
            for one in answer.silent
            # else its place was taken by a pod that this agent does not know
            if one.index in by_index and by_index[one.index].birth <= answer.generation
        ]
        verdicts = await asyncio.gather(*(self._is_lost(eye, *one) for one in silent))
        lost = {one.pod_uid for (one, _), gone in zip(silent, verdicts, strict=True) if gone}
        for uid in eye.doubted_since.keys() - {member.pod_uid for member, _ in silent}:
            del eye.doubted_since[uid]
        others = len(eye.gang.members) - 1
        if (
            len(lost) == others > 1
            and lost <= eye.doubted_since.keys()
            and answer.index in by_index
        ):
            # all the others answer us: it is the one that hears none of them that is cut off
            return frozenset({by_index[answer.index].pod_uid})
        return frozenset(lost)

    async def _is_lost(self, eye: _Eye, member: MemberAddress, seconds: float) -> bool:
        """Whether a member that its peers have not heard for so long is lost.

        Against our own look its peers' word counts only once it has stood for long: a leader that
        was frozen itself finds all others silent when it wakes up.
        """
        limit, now = eye.gang.lost_after_seconds, self._clock()
        joined_at = eye.joined_at.get(member.pod_uid)
        known = seconds if joined_at is None else min(seconds, now - joined_at)
        if known < limit:
            return False
        asked = member is eye.gang.members[0] and eye.failures > 0
        if asked or await self._ask(eye, member, wait=False) is None:
            return True
        doubted_since = eye.doubted_since.setdefault(member.pod_uid, now)
        return now >= doubted_since + (CERTAIN_FACTOR - 1) * limit

    async def _unheard_by_all(self, eye: _Eye) -> frozenset[str]:
        """Nobody is left to ask: members on nodes that nobody hears either."""
        gang = eye.gang
        suspects = [member for member in gang.members if not member.node_ready]
        answers = await asyncio.gather(*(self._ask(eye, one, wait=False) for one in suspects))
        due = self._clock() - CERTAIN_FACTOR * gang.lost_after_seconds
        return frozenset(
            member.pod_uid
            for member, answer in zip(suspects, answers, strict=True)
            if answer is None and eye.unanswered_since.get(member.pod_uid, due + 1.0) <= due
        )

    async def _ask(self, eye: _Eye, member: MemberAddress, *, wait: bool) -> AgentStatus | None:
        """What this member says; None, and remembered, where it says nothing of use."""
        known = eye.heard.status if eye.heard and eye.reporter == member.pod_uid else None
        try:
            answer = await self._agents.status(
                member.address,
                token=eye.gang.token,
                since=known.version if known is not None and wait else None,
                wait_seconds=self._patience(eye) if wait else 0.0,
            )
        except AgentError as error:
            return self._unanswered(eye, member, why=str(error))
        if (answer.job_uid, answer.pod_uid) != (eye.gang.uid, member.pod_uid):
            return self._unanswered(eye, member, why="its address belongs to another pod now")
        eye.unanswered_since.pop(member.pod_uid, None)
        return answer

    def _unanswered(self, eye: _Eye, member: MemberAddress, *, why: str) -> None:
        if member.pod_uid not in eye.unanswered_since:
            eye.unanswered_since[member.pod_uid] = self._clock()
            log.info("agent_silent", job=eye.gang.key, index=member.index, why=why)

    def _patience(self, eye: _Eye) -> float:
        """How long to wait for news: shorter where a silent member is about to be lost.

        The jobs' requests are spread by their uids, so that they do not come in one beat.
        """
        spread = 0.8 + 0.2 * (zlib.crc32(eye.gang.uid.encode()) % 100) / 100
        wait = max(WAIT_SECONDS, len(self._eyes) / REQUESTS_PER_SECOND) * spread
        silent = eye.heard.status.silent if eye.heard else ()
        limit = eye.gang.lost_after_seconds
        left = [limit - one.seconds for one in silent if one.seconds < limit]
        return min([wait, *(max(PACE_SECONDS, each) for each in left)])

    def _publish(self, eye: _Eye, answer: AgentStatus | None, lost: frozenset[str]) -> None:
        before = eye.heard
        status = answer or (before.status if before else None)
        if answer is not None:
            eye.reporter = answer.pod_uid
        if status is None:
            return
        eye.heard = Heard(status=status, lost=lost)
        if before is None or _news(before) != _news(eye.heard):
            self._enqueue(eye.gang.key)


def _leader(gang: Gang) -> str | None:
    return gang.members[0].pod_uid if gang.members else None


def _news(heard: Heard) -> tuple[object, ...]:
    """What a job is to be looked at anew for; progress is none of it."""
    status = heard.status
    return (status.generation, status.phase, status.incidents, status.notice, heard.lost)
