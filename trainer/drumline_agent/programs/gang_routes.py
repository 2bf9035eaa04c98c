"""Routes of a trainer's pod, in addition to those of every agent (`api.routes`).

PUT  /v1/rounds               an order of the leader; signed over ("round", body)
PUT  /v1/beat                 a member's heartbeat; signed over ("beat", body)
PUT  /v1/faults               a fault of a member's rank; signed over ("fault", body)
PUT  /v1/clients              what its ranks' clients say; signed over ("clients", body)
PUT  /v1/notice               `contract.Notice`; signed over ("notice", body)
GET  /v1/snapshots/RANK/STEP  a snapshot held here; signed over ("get", path)
PUT  /v1/snapshots/RANK/STEP  a peer's snapshot; signed over ("snapshot", path, description)
"""

from __future__ import annotations

import json
from http import HTTPStatus

from drumline_agent.api.routes import Route
from drumline_agent.api.service import Service
from drumline_agent.http.message import FILES_PATH, HttpError, HttpRequest, HttpResponse
from drumline_agent.leader.leader import Leader
from drumline_agent.member.member import MemberAgent
from drumline_agent.protocol.client_messages import CLIENTS_PATH, parse_client_messages
from drumline_agent.protocol.encoding import encode
from drumline_agent.protocol.leader_orders import NOTICE_PATH, ROUNDS_PATH, parse_leader_order
from drumline_agent.protocol.member_reports import (
    FAULTS_PATH,
    MEMBER_HEARTBEAT_PATH,
    parse_fault,
    parse_member_heartbeat,
)
from drumline_agent.snapshots.transfer import SnapshotServer
from drumline_agent.state.notices import POD_NOTICE_PREFIX
from drumline_contract import SIGNATURE_HEADER, Notice


class GangRoutes:
    """Passes requests to the member, or to the leader while this agent leads.

    Args:
        service: settings, records and status of this agent.
        member: the agent of this pod's ranks.
        snapshot_server: serves snapshots to other pods.
    """

    def __init__(
        self, *, service: Service, member: MemberAgent, snapshot_server: SnapshotServer
    ) -> None:
        self._service = service
        self._member = member
        self._snapshot_server = snapshot_server
        self.leader: Leader | None = None
        service.api.routes.update(
            {
                ("PUT", ROUNDS_PATH): Route(signed_as=b"round", answer=self._round),
                ("PUT", MEMBER_HEARTBEAT_PATH): Route(signed_as=b"beat", answer=self._beat),
                ("PUT", FAULTS_PATH): Route(signed_as=b"fault", answer=self._fault),
                ("PUT", CLIENTS_PATH): Route(signed_as=b"clients", answer=self._clients),
                ("PUT", NOTICE_PATH): Route(signed_as=b"notice", answer=self._notice),
                ("GET", FILES_PATH): Route(signed_as=b"get", answer=self._snapshot),
            }
        )

    async def _round(self, request: HttpRequest) -> HttpResponse:
        answer = await self._member.obey(parse_leader_order(request.body))
        return HttpResponse(status=200, body=b"{}" if answer is None else encode(answer))

    async def _beat(self, request: HttpRequest) -> HttpResponse:
        heartbeat = parse_member_heartbeat(request.body)
        if self.leader is not None:
            self.leader.record_heartbeat(heartbeat)
        body = json.dumps({"generation": self._service.records.generation}).encode()
        return HttpResponse(status=200, body=body)

    async def _fault(self, request: HttpRequest) -> HttpResponse:
        fault = parse_fault(request.body)
        if self.leader is None:
            raise HttpError(HTTPStatus.CONFLICT, "this agent leads no gang")
        self.leader.report(fault)
        return HttpResponse(status=200, body=b"{}")

    async def _clients(self, request: HttpRequest) -> HttpResponse:
        messages = parse_client_messages(request.body)
        if self.leader is None:
            raise HttpError(HTTPStatus.CONFLICT, "this agent leads no gang")
        self.leader.clients.handle_member(messages)
        return HttpResponse(status=200, body=b"{}")

    async def _notice(self, request: HttpRequest) -> HttpResponse:
        notice = Notice.parse(request.body)
        if notice.job_uid != self._service.settings.job_uid:
            raise HttpError(HTTPStatus.FORBIDDEN, "notice of another job")
        self._reject_former_members(notice)
        if self._service.notices.accept(notice) and self.leader is not None:
            signature = request.headers[SIGNATURE_HEADER.lower()]
            self.leader.forward_notice(request.body, signature=signature)
        return HttpResponse(status=200, body=b"{}")

    def _reject_former_members(self, notice: Notice) -> None:
        """Reject a notice of a replaced pod, which holds no state that the gang would have to save.

        Raises:
            HttpError: the sender is not a present member.
        """
        sender = notice.id.removeprefix(POD_NOTICE_PREFIX)
        current = self._service.records.current
        if sender == notice.id or current is None:
            return
        if sender not in {member.pod_uid for member in current.record.members}:
            known = self._service.records.generation
            raise HttpError(
                HTTPStatus.CONFLICT, f"the notice is not of a member of generation {known}"
            )

    async def _snapshot(self, request: HttpRequest) -> HttpResponse:
        return self._snapshot_server.send(request)
