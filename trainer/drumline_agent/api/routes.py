"""Routes of the agent's HTTP API, and the signature that each requires.

GET  /healthz        the event loop runs (liveness); no signature
GET  /readyz         ranks can start at once (readiness); no signature
GET  /metrics        Prometheus; no signature
PUT  /v1/record      a generation record, signed by the operator over ("record", body)
GET  /v1/record      the current record, with its signature; signed over ("get", path)
GET  /v1/status      `contract.AgentStatus`; signed over ("get", path)
PUT  /v1/departures  another member has departed; signed over ("departure", body)

`GET /v1/status?since=VERSION&wait=SECONDS` answers once the version differs, at the latest after
that time. A trainer's pod has more routes, between agents and for notices and snapshots: see
`programs.gang_routes`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qs

from drumline_agent.api import departures, prometheus
from drumline_agent.api.departures import Departure, Departures
from drumline_agent.api.record_delivery import RECORD_PATH
from drumline_agent.http.message import HttpError, HttpRequest, HttpResponse
from drumline_agent.state.rank_status import RankStatusStore
from drumline_agent.state.record_store import RecordRejected, RecordStore
from drumline_contract import MAX_WAIT_SECONDS, SIGNATURE_HEADER, ContractError, verify

STATUS_PATH = "/v1/status"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The handler of a path, and what its callers sign."""

    signed_as: bytes
    """First part of what is signed; the second is the body, or the path of a GET."""
    answer: Callable[[HttpRequest], Awaitable[HttpResponse]]


class Api:
    """Answers requests from the state of the agent.

    Args:
        token: the job's token, which signs messages.
        records: holds the current record.
        status: status of this pod's ranks.
        departures: reports of members that ended their attempt.
    """

    def __init__(
        self, *, token: bytes, records: RecordStore, status: RankStatusStore, departures: Departures
    ) -> None:
        self._token = token
        self._records = records
        self._status = status
        self._departures = departures
        self.routes: dict[tuple[str, str], Route] = {}
        """Added by a program; by method and path, or prefix of the path up to a slash."""

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Route one request.

        Raises:
            HttpError: 401, 404, 405 and any status of a route.
        """
        path, _, query = request.path.partition("?")
        match request.method, path:
            # Unsigned: the kubelet's probes and Prometheus have no token.
            case "GET", "/healthz":
                return _text("ok")
            case "GET", "/readyz":
                return self._readiness()
            case "GET", "/metrics":
                return HttpResponse(
                    status=200,
                    body=prometheus.render(self._status),
                    content_type=prometheus.CONTENT_TYPE,
                )
            # Signed with the job's token: what the operator and other members read and write.
            case "GET", str(path) if path == STATUS_PATH:
                self._check(request, b"get", STATUS_PATH.encode())
                await self._wait_for_other_version(query)
                return HttpResponse(status=200, body=self._status.status.encode())
            case "GET", str(path) if path == RECORD_PATH:
                self._check(request, b"get", RECORD_PATH.encode())
                return self._current_record(request)
            case "PUT", str(path) if path == RECORD_PATH:
                return self._offer(request)
            case "PUT", departures.PATH:
                self._check(request, departures.SIGNED_AS, request.body)
                return self._record_departure(request.body)
            # Routes that a program of the agent adds, such as those of a gang.
            case _:
                return await self._answer_route(request)

    async def _answer_route(self, request: HttpRequest) -> HttpResponse:
        for (method, path), route in self.routes.items():
            below = path.endswith("/") and request.path.startswith(path)
            if request.method == method and (below or request.path == path):
                signed = request.body if method == "PUT" else request.path.encode()
                self._check(request, route.signed_as, signed)
                try:
                    return await route.answer(request)
                except ContractError as error:
                    raise HttpError(HTTPStatus.BAD_REQUEST, str(error)) from None
        raise HttpError(HTTPStatus.NOT_FOUND, f"no {request.method} {request.path}")

    async def _wait_for_other_version(self, query: str) -> None:
        """Hold a status request open until the version differs from the caller's."""
        since, wait = _long_poll(query)
        if since is None:
            return
        try:
            async with asyncio.timeout(wait):
                await self._status.wait_for_other_version(since)
        except TimeoutError:
            pass  # no other version: progress is reported all the same

    def _check(self, request: HttpRequest, *parts: bytes) -> None:
        signature = request.headers.get(SIGNATURE_HEADER.lower(), "")
        if not verify(self._token, signature, *parts):
            raise HttpError(HTTPStatus.UNAUTHORIZED, "wrong signature")

    def _readiness(self) -> HttpResponse:
        if self._status.ready:
            return _text("ready")
        return _text("starting", status=HTTPStatus.SERVICE_UNAVAILABLE)

    def _current_record(self, request: HttpRequest) -> HttpResponse:
        current = self._records.current
        if current is None:
            raise HttpError(HTTPStatus.NOT_FOUND, "no record yet")
        if request.headers.get("if-none-match") == f'"{current.generation}"':
            return HttpResponse(status=HTTPStatus.NOT_MODIFIED)
        return HttpResponse(
            status=200, body=current.body, headers={SIGNATURE_HEADER: current.signature}
        )

    def _offer(self, request: HttpRequest) -> HttpResponse:
        signature = request.headers.get(SIGNATURE_HEADER.lower(), "")
        answer = self._records.offer(request.body, signature=signature)
        state: dict[str, object] = {"generation": self._records.generation}
        if isinstance(answer, RecordRejected):
            return _json({**state, "error": answer.reason}, status=answer.status)
        return _json(state)

    def _record_departure(self, body: bytes) -> HttpResponse:
        try:
            self._departures.record(Departure.parse(body))
        except ContractError as error:
            raise HttpError(HTTPStatus.BAD_REQUEST, str(error)) from None
        return _json({})


def _long_poll(query: str) -> tuple[int | None, float]:
    values = parse_qs(query)
    try:
        since = values["since"][0] if "since" in values else None
        wait = float(values.get("wait", ["0"])[0])
        # `nan` would disorder the timers of the event loop. This order turns it into 0.
        wait = min(max(0.0, wait), MAX_WAIT_SECONDS)
        return (None if since is None else int(since)), wait
    except ValueError:
        raise HttpError(HTTPStatus.BAD_REQUEST, "since and wait are numbers") from None


def _text(text: str, *, status: int = 200) -> HttpResponse:
    return HttpResponse(status=status, body=text.encode(), content_type="text/plain")


def _json(value: dict[str, object], *, status: int = 200) -> HttpResponse:
    return HttpResponse(status=status, body=json.dumps(value).encode())
