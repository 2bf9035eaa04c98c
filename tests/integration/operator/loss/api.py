"""The tests' own way to the API server on an event loop, and mirrors of what is stored there.

Independent of the operator's client and caches: what is checked here is the truth.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import aiohttp

from tests.kube import Json, path_of
from tests.patience import HANG_SECONDS

MOST_VERSIONS = 2000
"""An operator that writes for ever does not keep a test waiting for ever."""
LOOKS = 10
"""Silence is counted in so many parts: a process that the machine stops misses one of them."""


class Refused(Exception):  # noqa: N818 - an answer
    """The API server answered with an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class AsyncKube:
    """Requests as the cluster's admin; an async context manager."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.server: str = cluster["server"]
        self.context = ssl.create_default_context(
            cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
        )
        with tempfile.NamedTemporaryFile() as pem:
            for part in ("client-certificate-data", "client-key-data"):
                pem.write(base64.b64decode(user[part]))
            pem.flush()
            self.context.load_cert_chain(pem.name)
        self.session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self.context, limit=0, enable_cleanup_closed=True),
            read_bufsize=1 << 18,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        """The decoded answer.

        Raises:
            Refused: a status of 400 or more.
        """
        if method == "PATCH" and content_type == "application/json":
            content_type = "application/merge-patch+json"
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        while True:
            async with self.session.request(
                method, self.server + path, data=data, headers=headers, params=query
            ) as response:
                answer = await response.read()
                if response.status == 429:
                    await asyncio.sleep(1)
                    continue
                if response.status >= 400:
                    raise Refused(response.status, answer.decode(errors="replace")[:500])
                return json.loads(answer)

    async def create(self, manifest: Json, plural: str) -> Json:
        return await self.request(
            "POST", path_of(plural, manifest["metadata"].get("namespace")), manifest
        )

    async def patch(
        self,
        plural: str,
        name: str,
        body: Json,
        namespace: str | None = None,
        *,
        status: bool = False,
    ) -> Json:
        """Merge-patch an object, or its status; gone already is fine."""
        path = path_of(plural, namespace, name) + ("/status" if status else "")
        try:
            return await self.request("PATCH", path, {"status": body} if status else body)
        except Refused as error:
            if error.code != 404:
                raise
            return {}

    async def delete(
        self,
        plural: str,
        name: str,
        namespace: str | None = None,
        *,
        uid: str = "",
        grace: int | None = None,
    ) -> None:
        """Delete an object; gone already, or another of its name, is fine."""
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            await self.request("DELETE", path_of(plural, namespace, name), body)
        except Refused as error:
            if error.code not in {404, 409}:
                raise

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[Json]:
        timeout = aiohttp.ClientTimeout(total=None, sock_read=None)
        async with self.session.get(
            self.server + path, params={**query, "watch": "true"}, timeout=timeout
        ) as response:
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of one object, as the API server committed it."""

    number: int
    """Its resourceVersion: etcd counts all kinds together."""
    plural: str
    deleted: bool
    value: Json


@dataclass(kw_only=True)
class Mirror:
    """Everything a namespace holds of some kinds, and all that was ever committed there."""

    kube: AsyncKube
    namespace: str
    plurals: tuple[str, ...]
    on_version: Callable[[Version], None] = lambda _: None
    patience: float = HANG_SECONDS
    objects: dict[str, dict[str, Json]] = field(default_factory=dict[str, dict[str, Json]])
    """By plural and name."""
    history: list[Version] = field(default_factory=list[Version])
    created: Counter[str] = field(default_factory=Counter[str])
    """Objects ever created, by plural."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, ready: Callable[[], None]) -> None:
        """Watch until cancelled."""
        self.objects = {plural: {} for plural in self.plurals}
        async with asyncio.TaskGroup() as group:
            for plural in self.plurals:
                path = path_of(plural, self.namespace)
                answer = await self.kube.request("GET", path)
                assert not answer["items"] or plural == "secrets"
                group.create_task(self._follow(plural, path, answer["metadata"]["resourceVersion"]))
            ready()

    async def _follow(self, plural: str, path: str, version: str) -> None:
        while True:
            async for event in self.kube.watch(path, {"resourceVersion": version}):
                assert event["type"] in {"ADDED", "MODIFIED", "DELETED"}, event
                version = event["object"]["metadata"]["resourceVersion"]
                self._take(plural, event)

    def _take(self, plural: str, event: Json) -> None:
        value, deleted = event["object"], event["type"] == "DELETED"
        metadata = value["metadata"]
        if deleted:
            self.objects[plural].pop(metadata["name"], None)
        else:
            self.created[plural] += event["type"] == "ADDED"
            self.objects[plural][metadata["name"]] = value
        version = Version(
            number=int(metadata["resourceVersion"]), plural=plural, deleted=deleted, value=value
        )
        self.history.append(version)
        self.on_version(version)
        self.poke()

    def poke(self) -> None:
        """Whoever waits looks again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait(
        self,
        until: Callable[[], bool],
        *,
        seconds: float | None = None,
        what: Callable[[], object] = lambda: "",
    ) -> None:
        """Return once `until()` holds; it is asked after every version.

        However slow the machine is, it is not given up while something happens: only once no
        version came for `patience` seconds, if not said otherwise, or after `MOST_VERSIONS`.

        Raises:
            TimeoutError: with what `what()` says.
        """
        seconds = self.patience if seconds is None else seconds
        versions = quiet = 0
        while not until():
            try:
                async with asyncio.timeout(seconds / LOOKS):
                    await self._changed.wait()
                versions, quiet = versions + 1, 0
            except TimeoutError:
                quiet += 1
            if quiet == LOOKS:
                raise TimeoutError(f"nothing happened for {seconds:g} s: {what()}")
            if versions == MOST_VERSIONS:
                raise TimeoutError(f"not within {versions} versions: {what()}")

    def forget(self) -> None:
        """Begin the history anew, on an empty namespace."""
        self.history.clear()
        self.created.clear()
