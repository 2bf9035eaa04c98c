"""The agent of a trainer pod: wait for a record, run its ranks, say how it ended, exit.

    warm up the zygote -> ready -> a record -> attempt -> Succeeded | Failed | Terminated -> exit
                                      ^-------- Superseded by a record of a higher generation

The exit code is the worst of the ranks' (contract.ExitCode; signals as 128 + n) and the termination
message is a `contract.FinalReport`. A store's agent exits only when no other member needs it.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drumline_trainer.agent import linux
from drumline_trainer.agent.events import Event, log
from drumline_trainer.agent.fanout import deliver_to_all, follow
from drumline_trainer.agent.gang import LocalGang, MembersLost, Verdict
from drumline_trainer.agent.reaper import Reaper
from drumline_trainer.agent.service import Service, first, serving
from drumline_trainer.agent.verdict import Failed, Succeeded, Superseded, Terminated, describe
from drumline_trainer.agent.zygote_client import ZygoteClient
from drumline_trainer.contract import AgentPhase, ExitCode, FinalReport

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from drumline_trainer.agent.record_book import SignedRecord
    from drumline_trainer.agent.settings import AgentSettings

TERMINATED_CODE = 128 + signal.SIGTERM
ATTEMPT = 0
FAREWELL_SECONDS = 5.0
"""How long a failed pod tries to tell the store's agent: the operator waits for its exit."""
GRACE_MARGIN_SECONDS = 5.0
"""Kept of the pod's grace period for killing, reporting and exiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the pod ends, in the words of its exit code and termination message."""

    verdict: Verdict
    error: str = ""

    @property
    def exit_code(self) -> int:
        """The pod's exit code."""
        match self.verdict:
            case Failed(exit_code=code):
                return code
            case Terminated():
                return TERMINATED_CODE
            case _:
                return ExitCode.OK

    @property
    def phase(self) -> AgentPhase:
        """The agent's last phase."""
        return AgentPhase.SUCCEEDED if self.exit_code == ExitCode.OK else AgentPhase.FAILED

    @property
    def failed_rank(self) -> int | None:
        """The local rank to blame, if there is one."""
        return self.verdict.rank if isinstance(self.verdict, Failed) else None


async def run(settings: AgentSettings) -> int:
    """Run one pod to its end. Returns the pod's exit code."""
    linux.adopt_orphans()
    reaper = Reaper()
    async with serving(settings) as service:
        zygote = ZygoteClient(module=settings.rank_module, reaper=reaper)
        try:
            ending = await _live(service, zygote)
        finally:
            await zygote.close()
        return _conclude(service, ending)


async def _live(service: Service, zygote: ZygoteClient) -> Ending:
    facts = await first(zygote.warm(), service.stopped(), zygote.ended())
    if isinstance(facts, Failed | Terminated):
        return _before_ranks(facts)
    service.board.ready = True
    log(Event.AGENT_READY, import_seconds=facts.seconds, zygote_threads=facts.threads)
    generation = service.book.generation
    while True:
        signed = await first(service.book.after(generation), service.stopped(), zygote.ended())
        if isinstance(signed, Failed | Terminated):
            return _before_ranks(signed)
        ending = await _attempt(service, zygote, signed)
        if not isinstance(ending.verdict, Superseded):
            return ending
        log(Event.GENERATION_SUPERSEDED, generation=signed.generation)
        generation = signed.generation


def _before_ranks(verdict: Failed | Terminated) -> Ending:
    match verdict:
        case Failed(reason=reason):
            return Ending(verdict=verdict, error=reason)
        case Terminated():
            return Ending(verdict=verdict, error="terminated before its ranks were started")


async def _attempt(service: Service, zygote: ZygoteClient, signed: SignedRecord) -> Ending:
    gang = LocalGang(
        settings=service.settings,
        record=signed.record,
        attempt=ATTEMPT,
        zygote=zygote,
        board=service.board,
    )
    async with asyncio.TaskGroup() as group:
        watchers = [group.create_task(watcher) for watcher in _watchers(service, gang, signed)]
        try:
            await gang.start()
            return await _end(service, gang, signed, verdict=await gang.watch())
        finally:
            for watcher in watchers:
                watcher.cancel()


def _watchers(
    service: Service, gang: LocalGang, signed: SignedRecord
) -> Iterator[Coroutine[Any, Any, None]]:
    """What goes on beside the ranks; whatever concerns them ends up in the gang's inbox."""
    settings, membership = service.settings, (signed.generation, ATTEMPT)

    async def stop() -> None:
        gang.inbox.put_nowait(await service.stopped())

    async def newer() -> None:
        gang.inbox.put_nowait(await _superseded(service, signed))

    async def failure_elsewhere() -> None:
        index, code = await service.departures.failure(membership)
        gang.inbox.put_nowait(MembersLost(f"member {index} left with {describe(code)}"))

    async def silence_of_the_store() -> None:
        reason = await follow(
            service.book,
            signed,
            token=settings.token,
            port=settings.port,
            lost_seconds=settings.peer_lost_seconds,
        )
        gang.inbox.put_nowait(MembersLost(reason))

    yield stop()
    yield newer()
    if gang.serves_store:
        yield deliver_to_all(signed, port=settings.port)
        yield failure_elsewhere()
    else:
        yield silence_of_the_store()


async def _end(
    service: Service, gang: LocalGang, signed: SignedRecord, *, verdict: Verdict
) -> Ending:
    match verdict:
        case Superseded():
            await gang.end()
            return Ending(verdict=verdict)
        case Succeeded():
            service.board.phase = AgentPhase.SUCCEEDED
            later = await first(
                _say_goodbye(service, gang, signed),
                service.stopped(),
                _superseded(service, signed),
            )
            await gang.end()
            return Ending(verdict=later if isinstance(later, Superseded) else verdict)
        case Terminated():
            log(Event.TERMINATION_REQUESTED, grace_seconds=service.settings.grace_seconds)
            if await gang.end(grace_seconds=_grace_for_ranks(service.settings.grace_seconds)):
                verdict = Succeeded()
        case Failed():
            await gang.end()
    ending = Ending(verdict=verdict, error=gang.explain(verdict))
    service.board.phase = ending.phase
    if not gang.serves_store:
        await service.depart(
            signed.record,
            attempt=ATTEMPT,
            exit_code=ending.exit_code,
            for_seconds=min(FAREWELL_SECONDS, service.settings.peer_lost_seconds),
        )
    return ending


async def _say_goodbye(service: Service, gang: LocalGang, signed: SignedRecord) -> None:
    if gang.serves_store:
        await service.others_departed(signed.record, attempt=ATTEMPT)
    else:
        await service.depart(
            signed.record,
            attempt=ATTEMPT,
            exit_code=ExitCode.OK,
            for_seconds=service.settings.peer_lost_seconds,
        )


async def _superseded(service: Service, signed: SignedRecord) -> Superseded:
    await service.book.after(signed.generation)
    return Superseded()


def _grace_for_ranks(grace_seconds: float) -> float:
    return max(grace_seconds - GRACE_MARGIN_SECONDS, grace_seconds / 2)


def _conclude(service: Service, ending: Ending) -> int:
    service.board.phase = ending.phase
    report = FinalReport(
        progress=service.board.progress, error=ending.error, failed_rank=ending.failed_rank
    )
    with suppress(OSError):  # outside of a pod there is no such file
        service.settings.termination_log.write_bytes(report.encode())
    event = Event.FINISHED if ending.exit_code == ExitCode.OK else Event.GANG_FAILED
    log(
        event,
        exit_code=ending.exit_code,
        step=report.progress.step,
        error=report.error,
        failed_rank=report.failed_rank,
    )
    return ending.exit_code
