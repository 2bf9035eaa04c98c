"""A loopback proxy before the API server that sees every write of the operator and may stop it.

Plain HTTP on the operator's side (its kubeconfig says so), TLS with the cluster's admin or with a
bearer token on the other. Reads and watches pass untouched. Each mutating request is noted, and a
`gate` is asked before and after it is forwarded: what it raises or kills is the test's choice.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from yarl import URL

from tests.patience import HANG_SECONDS

MUTATING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_HOP = frozenset({"host", "connection", "transfer-encoding", "content-length", "authorization"})


@dataclass(frozen=True, kw_only=True)
class Write:
    """One mutating request: method, path, what the server answered (0: it was never asked)."""

    method: str
    path: str
    code: int = 0

    @property
    def about(self) -> str:
        """Plural and subresource of what it is about, such as `pods` or `trainingjobs/status`."""
        parts = self.path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        if parts[0] == "namespaces" and len(parts) > 2:
            parts = parts[2:]
        return "/".join(part for place, part in enumerate(parts) if place != 1)


class NeverSentError(Exception):
    """Raised by a gate: this write does not reach the server."""


Gate = Callable[[Write], None]
"""Called in the proxy's thread before (code 0) and after each write was forwarded."""


class Proxy:
    """Runs in a thread of its own, so that a test may block; use as a context manager.

    Args:
        kubeconfig: of the API server behind it.
        folder: where the kubeconfig for the operator is written.
        token: speaks for the operator instead of the kubeconfig's certificate.
    """

    def __init__(self, kubeconfig: Path, folder: Path, *, token: str | None = None) -> None:
        config = json.loads(kubeconfig.read_text())
        self._cluster = config["clusters"][0]["cluster"]
        self._user = config["users"][0]["user"]
        self._token = token
        self.kubeconfig = folder / "proxied-kubeconfig"
        self.writes: list[Write] = []
        self.refused: list[str] = []
        """Requests the server answered with 403, reads too."""
        self.gate: Gate = lambda _: None
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._port = 0
        self._quiet = threading.Condition()
        self._under_way = 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60)
        cluster = {"server": f"http://127.0.0.1:{self._port}"}
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        self.kubeconfig.write_text(json.dumps(body))
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def of(self, namespace: str) -> list[Write]:
        """The writes to objects of one namespace.

        A watch may show a write before its answer has come back through here: what is under way is
        waited for.
        """
        with self._quiet:
            assert self._quiet.wait_for(lambda: self._under_way == 0, timeout=HANG_SECONDS)
        return [write for write in self.writes if f"/namespaces/{namespace}/" in write.path]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        # without the clean-up an exchange that is given up leaves its socket behind
        connector = aiohttp.TCPConnector(ssl=self._context(), limit=0, enable_cleanup_closed=True)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            self._session = session
            app = web.Application(client_max_size=1 << 26)
            app.router.add_route("*", "/{path:.*}", self._forward)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self._port = runner.addresses[0][1]
            self._ready.set()
            await self._stop.wait()
            await runner.cleanup()
            handlers = asyncio.all_tasks() - {asyncio.current_task()}
            for handler in handlers:  # of watches: each has a connection of the session's
                handler.cancel()
            await asyncio.gather(*handlers, return_exceptions=True)

    def _context(self) -> ssl.SSLContext:
        authority = base64.b64decode(self._cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        if self._token is None:
            with tempfile.NamedTemporaryFile() as pem:
                for part in ("client-certificate-data", "client-key-data"):
                    pem.write(base64.b64decode(self._user[part]))
                pem.flush()
                context.load_cert_chain(pem.name)
        return context

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        """A write's answer is held back until the gate has seen it: dying then, nobody gets it."""
        if request.method not in MUTATING or "dryRun" in request.query:
            return await self._stream(request)  # a dry run writes nothing
        self._count(1)
        try:
            return await self._write(request)
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._quiet:
            self._under_way += more
            self._quiet.notify_all()

    async def _write(self, request: web.Request) -> web.StreamResponse:
        try:
            self.gate(Write(method=request.method, path=request.path))
        except NeverSentError:
            return web.Response(status=502)
        async with self._asked(request) as answer:
            body = await answer.read()
            write = Write(method=request.method, path=request.path, code=answer.status)
        self.writes.append(write)
        self.gate(write)
        return web.Response(status=write.code, body=body, headers=_kept(answer.headers))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        async with self._asked(request) as answer:
            response = web.StreamResponse(status=answer.status, headers=_kept(answer.headers))
            await response.prepare(request)
            with suppress(ConnectionError, aiohttp.ClientError):  # one side went: so does the other
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
            return response

    @asynccontextmanager
    async def _asked(self, request: web.Request) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = _kept(request.headers)
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        origin = urlsplit(self._cluster["server"])
        async with self._session.request(
            request.method,
            URL(f"https://{origin.netloc}{request.raw_path}", encoded=True),
            data=await request.read(),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None),
        ) as answer:
            if answer.status == 403:
                self.refused.append(f"{request.method} {request.path}: {await answer.text()}")
            yield answer


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP}
