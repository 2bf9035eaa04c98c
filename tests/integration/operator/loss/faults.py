"""A proxy between an operator and the API server that distorts what is said about one kind.

What is distorted, and where, follows from a seed; each fault has a limited number of hits, so that
every life ends. Watches are distorted line by line. Events of one stream keep their order: neither
a server nor a network can change it; events of different kinds overtake one another (`LAGGING`).
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import aiohttp
from aiohttp import web
from yarl import URL

from tests.integration.operator.loss.gate import never

MUTATING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
HITS = 4
_HOP = frozenset({"host", "connection", "transfer-encoding", "content-length"})
_VERSIONS = re.compile(rb'("resourceVersion":\s*")(\d+)"')
LAG_SECONDS = 0.7
FUTURE = 1_000_000
"""A cluster that is restored counted so much further before."""


class Distortion(StrEnum):
    """What a client may have to live with."""

    UNSENT = "the connection is reset before the request is read"
    LOST_ANSWER = "the request is carried out, its answer is lost"
    CUT_ANSWER = "the request is carried out, its answer ends half-way"
    CONFLICT_AFTER_COMMIT = "the write is carried out, the answer is 409"
    ERROR_AFTER_COMMIT = "the write is carried out, the answer is 504"
    TOO_MANY_REQUESTS = "429, to be sent again after a second"
    INTERNAL_ERROR = "500"
    UNAVAILABLE = "503"
    CUT_WATCH = "a watch is reset in the middle of a line"
    ENDED_WATCH = "a watch ends after its first line"
    GONE = "a watch says that its version is gone"
    GONE_AT_ONCE = "a watch is answered with 410"
    NO_BOOKMARKS = "watches without bookmarks that end"
    DUPLICATED = "lines of a watch come twice, and again later"
    LAGGING = "the watch of this kind is later than all others"


ON_WRITES = tuple(Distortion)[:8]
ON_READS = (Distortion.UNSENT, Distortion.CUT_ANSWER, *tuple(Distortion)[5:])


@dataclass(kw_only=True)
class Fault:
    """A distortion of one kind; counts what it did."""

    plural: str
    distortion: Distortion
    seed: int
    hits: int = 0
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def __str__(self) -> str:
        return f"{self.plural}, seed {self.seed}: {self.distortion}"

    def strikes(self, *, often: float = 0.5) -> bool:
        """Whether this is where it happens."""
        if self.hits >= HITS or self.chance.random() > often:
            return False
        self.hits += 1
        return True


@dataclass(kw_only=True)
class FaultProxy:
    """See the module; `start` it in a task group.

    Args:
        session: to the API server, as its admin.
        server: its URL.
    """

    session: aiohttp.ClientSession
    server: str
    fault: Fault | None = None
    out: bool = False
    """Whether nothing gets through."""
    url: str = ""
    ahead: int = 0
    """How much higher all versions are than the API server's."""
    _cut: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until cancelled."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready()
        try:
            await never()
        finally:
            await runner.cleanup()

    async def break_down(self, seconds: float) -> None:
        """An outage: all streams are cut, and nothing gets through."""
        self.out = True
        self.cut_streams()
        await asyncio.sleep(seconds)
        self.out = False

    def restore(self) -> None:
        """From now on versions are lower than they were."""
        self.ahead = 0
        self.cut_streams()

    def cut_streams(self) -> None:
        cut, self._cut = self._cut, asyncio.Event()
        cut.set()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        fault = self.fault
        try:
            if self.out:
                return _abort(request)
            if fault is not None and f"/{fault.plural}" in request.path + "/":
                return await self._distorted(request, fault)
            return await self._plain(request)
        except (ConnectionError, aiohttp.ClientError):  # one side went: so does the other
            return _abort(request)

    async def _plain(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") == "true":
            return await self._stream(request, lambda lines: lines)
        status, body, headers = await self._forward(request)
        return web.Response(status=status, body=body, headers=headers)

    async def _distorted(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        watches = request.query.get("watch") == "true"
        writes = request.method in MUTATING
        match fault.distortion:
            case Distortion.UNSENT if fault.strikes():
                return _abort(request)
            case Distortion.TOO_MANY_REQUESTS if fault.strikes():
                return _refused(429, "TooManyRequests", {"Retry-After": "1"})
            case Distortion.INTERNAL_ERROR if fault.strikes():
                return _refused(500, "InternalError")
            case Distortion.UNAVAILABLE if fault.strikes():
                return _refused(503, "ServiceUnavailable")
            case Distortion.GONE_AT_ONCE if watches and fault.strikes():
                return _refused(410, "Expired")
            case _ if watches:
                return await self._stream(request, lambda lines: _distort(lines, fault))
            case (
                Distortion.LOST_ANSWER
                | Distortion.CUT_ANSWER
                | Distortion.CONFLICT_AFTER_COMMIT
                | Distortion.ERROR_AFTER_COMMIT
            ) if (writes or fault.distortion is Distortion.CUT_ANSWER) and fault.strikes():
                return await self._after_commit(request, fault.distortion)
            case _:
                return await self._plain(request)

    async def _after_commit(
        self, request: web.Request, distortion: Distortion
    ) -> web.StreamResponse:
        status, body, headers = await self._forward(request)
        match distortion:
            case Distortion.CONFLICT_AFTER_COMMIT if status < 300:
                reason = "AlreadyExists" if request.method == "POST" else "Conflict"
                return _refused(409, reason)
            case Distortion.ERROR_AFTER_COMMIT:
                return _refused(504, "Timeout")
            case Distortion.CUT_ANSWER:
                headers["Content-Length"] = str(len(body))
                response = web.StreamResponse(status=status, headers=headers)
                await response.prepare(request)
                await response.write(body[: len(body) // 2])
                _abort(request)
                return response
            case _:
                return _abort(request)

    async def _forward(self, request: web.Request) -> tuple[int, bytes, dict[str, str]]:
        async with self._asked(request) as answer:
            body = await answer.read()
            return answer.status, self._shown(body), _kept(answer.headers)

    async def _stream(
        self,
        request: web.Request,
        distort: Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]],
    ) -> web.StreamResponse:
        cut = self._cut
        async with self._asked(request) as answer:
            response = web.StreamResponse(status=answer.status, headers=_kept(answer.headers))
            await response.prepare(request)

            async def pump() -> None:
                async for line in distort(_lines(answer)):
                    await response.write(self._shown(line))

            pumping = asyncio.ensure_future(pump())
            cutting = asyncio.ensure_future(cut.wait())
            try:
                await asyncio.wait({pumping, cutting}, return_when=asyncio.FIRST_COMPLETED)
                if not pumping.done() or pumping.exception() is not None:
                    _abort(request)  # one side went: so does the other
                else:
                    await response.write_eof()
                return response
            finally:
                pumping.cancel()
                cutting.cancel()

    def _asked(self, request: web.Request) -> _Asked:
        return _Asked(self, request)

    def _shown(self, body: bytes) -> bytes:
        if not self.ahead:
            return body
        return _VERSIONS.sub(
            lambda version: b'%s%d"' % (version[1], int(version[2]) + self.ahead), body
        )

    def real(self, text: str) -> str:
        """A version as the API server counts it."""
        return str(int(text) - self.ahead) if int(text) > FUTURE and self.ahead else text


@dataclass
class _Asked:
    """The request as it goes on to the API server."""

    proxy: FaultProxy
    request: web.Request

    async def __aenter__(self) -> aiohttp.ClientResponse:
        proxy, request = self.proxy, self.request
        body = await request.read()
        url = URL(f"{proxy.server}{request.rel_url}", encoded=True)
        if proxy.ahead:
            body = re.sub(
                rb'(/metadata/resourceVersion","value":"|"resourceVersion":")(\d+)',
                lambda version: version[1] + proxy.real(version[2].decode()).encode(),
                body,
            )
            version = request.query.get("resourceVersion")
            if version:
                url = url.update_query(resourceVersion=proxy.real(version))
        self._answer = proxy.session.request(
            request.method,
            url,
            data=body,
            headers=_kept(request.headers),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return await self._answer.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        await self._answer.__aexit__(None, None, None)


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


async def _distort(lines: AsyncIterator[bytes], fault: Fault) -> AsyncIterator[bytes]:
    earlier: list[bytes] = []
    async for line in lines:
        match fault.distortion:
            case Distortion.CUT_WATCH if fault.strikes():
                yield line[: len(line) // 2]
                raise ConnectionResetError
            case Distortion.ENDED_WATCH if fault.strikes():
                yield line
                return
            case Distortion.GONE if fault.strikes():
                status = {"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired"}
                yield json.dumps({"type": "ERROR", "object": status}).encode() + b"\n"
                return
            case Distortion.NO_BOOKMARKS if b'"BOOKMARK"' in line[:40]:
                continue
            case Distortion.NO_BOOKMARKS if fault.strikes(often=0.2):
                yield line
                return
            case Distortion.DUPLICATED if fault.strikes(often=0.8):
                yield line
                for again in [line, *earlier[-3:]]:
                    yield again
            case Distortion.LAGGING:
                fault.hits += 1
                await asyncio.sleep(LAG_SECONDS * fault.chance.random())
                yield line
            case _:
                yield line
        earlier.append(line)


def _refused(code: int, reason: str, headers: dict[str, str] | None = None) -> web.Response:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {}}
    body = {**status, "code": code, "reason": reason, "message": f"a distortion: {reason}"}
    return web.json_response(body, status=code, headers=headers)


def _abort(request: web.Request) -> web.Response:
    """Reset the connection; what is returned goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP}
