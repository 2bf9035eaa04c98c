"""A small API server in memory: lists, watches and writes, without validation or defaults."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web

from drumline.kube.credentials import Credentials, Token

Json = dict[str, Any]


class Target(NamedTuple):
    """What a path is about; `name` is empty for a collection."""

    plural: str
    namespace: str
    name: str


class FakeApi:
    """Objects by kind, and a stream of their events for every watch."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        """Method and path of every write."""
        self.lists = 0
        """Number of lists."""
        self.refusals: dict[str, tuple[int, str, str]] = {}
        """Code, reason and message with which creates of a kind are refused, by its plural."""
        self._objects: dict[str, dict[tuple[str, str], Json]] = defaultdict(dict)
        self._watches: dict[str, list[asyncio.Queue[bytes]]] = defaultdict(list)
        self._versions = itertools.count(1)
        self._version = 0
        self._changed = asyncio.Event()

    def objects(self, plural: str) -> list[Json]:
        """All objects of a kind."""
        return list(self._objects[plural].values())

    def put(self, plural: str, document: Json) -> Json:
        """Create or replace an object."""
        metadata = document["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        before = self._objects[plural].get(key)
        self._version = next(self._versions)
        uid = before["metadata"]["uid"] if before else f"{plural}-{self._version}"
        metadata.setdefault("uid", uid)
        metadata.setdefault("generation", 1)
        metadata.setdefault("creationTimestamp", "2023-11-14T22:13:20Z")
        metadata["resourceVersion"] = str(self._version)
        self._objects[plural][key] = document
        self._tell(plural, "MODIFIED" if before else "ADDED", document)
        return document

    def remove(self, plural: str, namespace: str, name: str) -> None:
        """Delete an object."""
        document = self._objects[plural].pop((namespace, name))
        self._version = next(self._versions)
        document["metadata"]["resourceVersion"] = str(self._version)
        self._tell(plural, "DELETED", document)

    async def until(self, condition: Callable[[], bool], *, seconds: float = 20) -> None:
        """Wait until a condition holds; it is asked again after every request and event."""
        async with asyncio.timeout(seconds):
            while not condition():
                await self._changed.wait()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Credentials]:
        """Serve on loopback; yields the way to get there."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            port = runner.addresses[0][1]
            yield Credentials(server=f"http://127.0.0.1:{port}", token=Token(lambda: None))
        finally:
            await runner.cleanup()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        target = _target(request.path)
        if request.method == "GET":
            if "watch" in request.query:
                return await self._watch(request, target.plural)
            if target.name:
                document = self._objects[target.plural].get((target.namespace, target.name))
                missing = {"code": 404, "reason": "NotFound"}
                return web.json_response(document or missing, status=200 if document else 404)
            self.lists += 1
            metadata = {"resourceVersion": str(self._version)}
            return web.json_response({"metadata": metadata, "items": self.objects(target.plural)})
        self.requests.append(f"{request.method} {request.path}")
        body = await request.json()
        answer = self._write(request, target, body)
        self._notify()
        return answer

    def _write(self, request: web.Request, target: Target, body: Any) -> web.Response:
        objects, key = self._objects[target.plural], (target.namespace, target.name)
        if request.method == "POST":
            if target.plural in self.refusals:
                code, reason, message = self.refusals[target.plural]
                refusal = {"code": code, "reason": reason, "message": message}
                return web.json_response(refusal, status=code)
            body["metadata"].setdefault("namespace", target.namespace)
            body["metadata"].setdefault("name", body["metadata"].get("generateName", "") + "x")
            if (target.namespace, body["metadata"]["name"]) in objects:
                return web.json_response({"code": 409, "reason": "AlreadyExists"}, status=409)
            if "dryRun" in request.query:
                return web.json_response(body, status=201)
            return web.json_response(self.put(target.plural, body), status=201)
        if request.method == "DELETE" and not target.name:
            uid = request.query["labelSelector"].partition("=")[2].partition(",")[0]
            for namespace, name in list(objects):
                if uid in objects[namespace, name]["metadata"]["labels"].values():
                    self.remove(target.plural, namespace, name)
            return web.json_response({})
        if key not in objects:
            return web.json_response({"code": 404, "reason": "NotFound"}, status=404)
        if request.method == "DELETE":
            self.remove(target.plural, *key)
            return web.json_response({})
        document = json.loads(json.dumps(objects[key]))
        if isinstance(body, list):  # our replace_status
            identity = [document["metadata"]["uid"], document["metadata"]["resourceVersion"]]
            if [body[0]["value"], body[1]["value"]] != identity:
                return web.json_response({"code": 409, "reason": "Conflict"}, status=409)
            document["status"] = body[2]["value"]
        return web.json_response(self.put(target.plural, document))

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        response = web.StreamResponse()
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        since = int(request.query["resourceVersion"])
        for document in self.objects(plural):
            if int(document["metadata"]["resourceVersion"]) > since:
                lines.put_nowait(_line("ADDED", document))
        self._watches[plural].append(lines)
        await response.prepare(request)
        try:
            while True:
                await response.write(await lines.get())
        finally:
            self._watches[plural].remove(lines)

    def _tell(self, plural: str, change: str, document: Json) -> None:
        for lines in self._watches[plural]:
            lines.put_nowait(_line(change, document))
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _line(change: str, document: Json) -> bytes:
    return json.dumps({"type": change, "object": document}).encode() + b"\n"


def _target(path: str) -> Target:
    segments = path.strip("/").split("/")
    rest = segments[2:] if segments[0] == "api" else segments[3:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    return Target(rest[0], namespace, rest[1] if len(rest) > 1 else "")
