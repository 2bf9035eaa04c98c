"""A pod that is told to stop while its gang trains: save first, then go.

A drain, an eviction or a kubelet that shuts down sends SIGTERM and waits for the grace period. All
ranks of the gang hold parts of the state, so the pod asks the leader, which asks everyone; when
this pod's rank has answered, the checkpoint is committed and nothing is lost with the pod. Its own
ranks stop there, and so nobody gets further before it is gone.
"""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

from drumline_trainer.agent.http.client import PeerUnreachableError, fetch
from drumline_trainer.agent.http.message import HttpRequest
from drumline_trainer.agent.protocol.leader_orders import NOTICE_PATH
from drumline_trainer.agent.state.notices import POD_NOTICE_PREFIX
from drumline_trainer.contract import SIGNATURE_HEADER, AgentPhase, Notice, sign

if TYPE_CHECKING:
    from drumline_trainer.agent.api.service import Service
    from drumline_trainer.agent.state.record_store import SignedRecord


async def save_before_termination(
    service: Service, signed: SignedRecord, *, seconds: float
) -> None:
    """Have the gang save, if it trains and has a place to save to, within these seconds."""
    settings = service.settings
    if service.status.phase is not AgentPhase.RUNNING or settings.checkpoint_folder is None:
        return
    notice = Notice(
        job_uid=settings.job_uid,
        id=f"{POD_NOTICE_PREFIX}{settings.pod_uid}",
        deadline=time.time() + seconds,
        leave=False,
    )
    try:
        async with asyncio.timeout(seconds):
            service.notices.accept(notice, ours=True)
            if await _asked(service, signed, notice):
                await service.notices.wait_for_answer(notice.id)
    except TimeoutError:
        pass  # the newest checkpoint counts


async def _asked(service: Service, signed: SignedRecord, notice: Notice) -> bool:
    """Tell the leader, or everyone if this pod leads; False if there is nobody to tell."""
    settings, body = service.settings, notice.encode()
    headers = {SIGNATURE_HEADER: sign(settings.token, b"notice", body)}
    request = HttpRequest(method="PUT", path=NOTICE_PATH, headers=headers, body=body)

    async def tell(address: str) -> bool:
        try:
            answer = await fetch(request, address=address, port=settings.port)
        except PeerUnreachableError:
            return False
        return answer.status == HTTPStatus.OK

    leader = signed.record.store_member
    if leader.index != settings.index:
        return await tell(leader.address)
    others = [member for member in signed.record.members if member.index != settings.index]
    return all(await asyncio.gather(*(tell(member.address) for member in others)))
