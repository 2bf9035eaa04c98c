"""Between a client and an S3 server: what was asked, and requests or replies that get lost."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.object_store import BUCKET
from tools.cluster.ports import LOOPBACK

_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Fate(Enum):
    """What becomes of a request."""

    DONE = auto()
    LOST = auto()
    """The connection breaks before the server has heard it."""
    REPLY_LOST = auto()
    """The server does it, and the connection breaks."""
    BUSY = auto()
    """503 SlowDown; the server has not heard it."""
    PRETENDED = auto()
    """200; the server has not heard it."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One that a client has made."""

    method: str
    key: str
    """With the query, without the bucket."""
    conditional: bool
    range: str

    @property
    def writes(self) -> bool:
        """Whether it changes anything."""
        return self.method in {"PUT", "POST", "DELETE"}


@dataclass(kw_only=True)
class Proxy:
    """Counts requests and decides their fate."""

    port: int
    fate: Callable[[Request], Fate] = lambda _: Fate.DONE
    seen: list[Request] = field(default_factory=list[Request])
    sent_bytes: int = 0
    """To clients, of bodies."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def strike(self, number: int, fate: Fate, *, from_then_on: bool = False) -> None:
        """Let this be the fate of the request with that number among those that write, from 0."""
        counted = iter(range(1 << 20))

        def decide(request: Request) -> Fate:
            if not request.writes:
                return Fate.DONE
            now = next(counted)
            hit = now == number or (from_then_on and now > number)
            if hit and now > number:
                return Fate.LOST
            return fate if hit else Fate.DONE

        self.seen.clear()
        self.fate = decide


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, upstream: int) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.upstream = upstream
        self.proxy = Proxy(port=self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._upstream = http.client.HTTPConnection(LOOPBACK, self.server.upstream, timeout=120)

    def finish(self) -> None:
        self._upstream.close()
        super().finish()

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        names = {name.lower() for name in self.headers}
        request = Request(
            method=self.command,
            key=self.path.removeprefix(f"/{BUCKET}").lstrip("/"),
            conditional=not names.isdisjoint({"if-match", "if-none-match"}),
            range=self.headers.get("Range", ""),
        )
        proxy = self.server.proxy
        with proxy.lock:
            proxy.seen.append(request)
            fate = proxy.fate(request)
        match fate:
            case Fate.LOST:
                self.close_connection = True
            case Fate.BUSY:
                self._answer(503, {}, _BUSY)
            case Fate.PRETENDED:
                self._answer(200, {"ETag": '"pretended"'}, b"")
            case Fate.DONE:
                self._answer(*self._forward(body))
            case Fate.REPLY_LOST:
                self._forward(body)
                self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815 - the library's

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        upstream = self._upstream
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():  # signed, the host among them
            upstream.putheader(name, value)
        upstream.endheaders(body)
        answer = upstream.getresponse()
        reply = answer.read()
        return answer.status, dict(answer.getheaders()), reply

    def _answer(self, status: int, headers: dict[str, str], reply: bytes) -> None:
        self.send_response(status)
        length = str(len(reply))
        for name, value in headers.items():
            if name.lower() == "content-length":
                length = value  # of a HEAD: without a body
            elif name.lower() not in {"connection", "transfer-encoding", "server", "date"}:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        with self.server.proxy.lock:
            self.server.proxy.sent_bytes += len(reply)
        self.wfile.write(reply)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the library's
        pass


@contextmanager
def proxy_to(port: int) -> Generator[Proxy]:
    """A proxy to the server with that port."""
    server = _Server(port)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
