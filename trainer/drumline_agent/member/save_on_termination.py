"""SIGTERM while the gang trains: save a checkpoint first, then stop.

A drain, an eviction or a kubelet that shuts down sends SIGTERM and waits for the grace period. All
ranks of the gang hold parts of the state, so the pod sends a notice to the leader, which forwards
it to every member. When this pod's rank has answered, the checkpoint is committed and nothing is
lost with the pod. Its own ranks stop at that step, so no rank trains further before the pod ends.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from http import HTTPStatus

from drumline_agent.api.service import Service
from drumline_agent.http.client import PeerUnreachableError, fetch
from drumline_agent.http.message import HttpRequest
from drumline_agent.protocol.leader_orders import NOTICE_PATH
from drumline_agent.state.notices import POD_NOTICE_PREFIX
from drumline_agent.state.record_store import SignedRecord
from drumline_contract import SIGNATURE_HEADER, AgentPhase, Notice, sign


async def save_before_termination(
    service: Service, signed: SignedRecord, *, seconds: float
) -> None:
    """Make the gang save within `seconds`, if it trains and has a place for checkpoints.

    Args:
        service: settings, records and status of this agent.
        signed: the signed generation record.
        seconds: time until the pod must have saved.
    """
    settings = service.settings
    if service.status.phase is not AgentPhase.RUNNING or not settings.has_checkpoints:
        return
    notice = _own_notice(service, seconds=seconds)
    try:
        async with asyncio.timeout(seconds):
            service.notices.accept(notice, own=True)
            if await _notify_gang(service, signed, notice):
                await service.notices.wait_for_answer(notice.id)
    except TimeoutError:
        pass  # the newest checkpoint counts


async def announce_termination(service: Service, signed: SignedRecord, *, seconds: float) -> None:
    """Send the notice to end to every process of the gang, not only to those of this pod.

    Saving a sharded state needs all processes. A program that acknowledges saves has half of the
    time for the save, and gets no signal before. `Ranks.end` then limits this pod's processes.

    Args:
        service: settings, records and status of this agent.
        signed: the signed generation record.
        seconds: time until the processes are killed.
    """
    notice = _own_notice(service, seconds=seconds)
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds / 2):
            service.notices.accept(notice, own=True)
            if await _notify_gang(service, signed, notice):
                await service.notices.wait_for_answer(notice.id)


def _own_notice(service: Service, *, seconds: float) -> Notice:
    settings = service.settings
    return Notice(
        job_uid=settings.job_uid,
        id=f"{POD_NOTICE_PREFIX}{settings.pod_uid}",
        deadline=time.time() + seconds,
        leave=False,
    )


async def _notify_gang(service: Service, signed: SignedRecord, notice: Notice) -> bool:
    """Send the notice to the leader, or to all members if this pod leads. False on a failure."""
    settings, body = service.settings, notice.encode()
    headers = {SIGNATURE_HEADER: sign(settings.token, b"notice", body)}
    request = HttpRequest(method="PUT", path=NOTICE_PATH, headers=headers, body=body)

    async def send(address: str) -> bool:
        try:
            answer = await fetch(request, address=address, port=settings.port)
        except PeerUnreachableError:
            return False
        return answer.status == HTTPStatus.OK

    leader = signed.record.store_member
    if leader.index != settings.index:
        return await send(leader.address)
    followers = [member for member in signed.record.members if member.index != settings.index]
    return all(await asyncio.gather(*(send(member.address) for member in followers)))
