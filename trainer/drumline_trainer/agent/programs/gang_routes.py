"""Routes of a trainer's pod beside those that every agent has.

PUT  /v1/rounds               an order of the leader; signed over ("round", body)
PUT  /v1/beat                 a member lives; signed over ("beat", body)
PUT  /v1/faults               a member's rank has ended; signed over ("fault", body)
PUT  /v1/notice               `contract.Notice`; signed over ("notice", body)
GET  /v1/snapshots/RANK/STEP  a snapshot held here; signed over ("get", path)
PUT  /v1/snapshots/RANK/STEP  a copy to hold; signed over ("snapshot", path, description)
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING

from drumline_trainer.agent.api.routes import Route
from drumline_trainer.agent.http.message import FILES, HttpError, Request, Response
from drumline_trainer.agent.protocol.leader_orders import (
    NOTICE_PATH,
    ROUNDS_PATH,
    encode,
    parse_order,
)
from drumline_trainer.agent.protocol.member_reports import (
    BEAT_PATH,
    FAULTS_PATH,
    parse_beat,
    parse_fault,
)
from drumline_trainer.agent.state.notices import POD_ENDS
from drumline_trainer.contract import SIGNATURE_HEADER, Notice

if TYPE_CHECKING:
    from drumline_trainer.agent.api.service import Service
    from drumline_trainer.agent.leader.leader import Leader
    from drumline_trainer.agent.member.member import Member
    from drumline_trainer.agent.snapshots.transfer import SnapshotServer


class GangRoutes:
    """Hands requests on to the member, or to the leader while this agent is one."""

    def __init__(
        self, *, service: Service, member: Member, snapshot_server: SnapshotServer
    ) -> None:
        self._service = service
        self._member = member
        self._snapshot_server = snapshot_server
        self.leader: Leader | None = None
        service.api.routes.update(
            {
                ("PUT", ROUNDS_PATH): Route(signed_as=b"round", answer=self._round),
                ("PUT", BEAT_PATH): Route(signed_as=b"beat", answer=self._beat),
                ("PUT", FAULTS_PATH): Route(signed_as=b"fault", answer=self._fault),
                ("PUT", NOTICE_PATH): Route(signed_as=b"notice", answer=self._notice),
                ("GET", FILES): Route(signed_as=b"get", answer=self._snapshot),
            }
        )

    async def _round(self, request: Request) -> Response:
        inventory = await self._member.obey(parse_order(request.body))
        return Response(status=200, body=b"{}" if inventory is None else encode(inventory))

    async def _beat(self, request: Request) -> Response:
        beat = parse_beat(request.body)
        if self.leader is not None:
            self.leader.hear(beat)
        body = json.dumps({"generation": self._service.book.generation}).encode()
        return Response(status=200, body=body)

    async def _fault(self, request: Request) -> Response:
        fault = parse_fault(request.body)
        if self.leader is None:
            raise HttpError(HTTPStatus.CONFLICT, "this agent leads no gang")
        self.leader.report(fault)
        return Response(status=200, body=b"{}")

    async def _notice(self, request: Request) -> Response:
        notice = Notice.parse(request.body)
        if notice.job_uid != self._service.settings.job_uid:
            raise HttpError(HTTPStatus.FORBIDDEN, "notice of another job")
        self._refuse_strangers(notice)
        if self._service.notices.take(notice) and self.leader is not None:
            signature = request.headers[SIGNATURE_HEADER.lower()]
            self.leader.hand_on(request.body, signature=signature)
        return Response(status=200, body=b"{}")

    def _refuse_strangers(self, notice: Notice) -> None:
        """A pod that slept while it was replaced has nothing that the gang would have to save."""
        sender = notice.id.removeprefix(POD_ENDS)
        current = self._service.book.current
        if sender == notice.id or current is None:
            return
        if sender not in {member.pod_uid for member in current.record.members}:
            known = self._service.book.generation
            raise HttpError(HTTPStatus.CONFLICT, f"no member of generation {known} asks this")

    async def _snapshot(self, request: Request) -> Response:
        return self._snapshot_server.send(request)
