"""A client of the real control plane, a namespace for each test, and ways to disturb both."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from drumline.kube import credentials, errors, writes
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials
from drumline.kube.kinds import NAMESPACES, Resource
from tools.cluster import Cluster
from tools.cluster.process import Process, find, kill, spawn, wait_until
from tools.cluster.rest import Api

SERVICE_ACCOUNTS = Resource(
    group="", version="v1", plural="serviceaccounts", kind="ServiceAccount", namespaced=True
)


@pytest.fixture
def admin(control_plane: Cluster) -> Credentials:
    return credentials.from_kubeconfig(control_plane.kubeconfig)


@pytest.fixture
async def client(admin: Credentials) -> AsyncIterator[KubeClient]:
    async with KubeClient(admin) as client:
        yield client


async def make_namespace(client: KubeClient, **labels: str) -> str:
    """A namespace of one's own in which pods are accepted at once."""
    name = f"kube-{uuid.uuid4().hex[:8]}"
    body = {"metadata": {"name": name, "labels": labels}}
    await writes.create(client, NAMESPACES, body=body)
    with suppress(errors.AlreadyExists):  # else pods are refused until a controller makes it
        await writes.create(
            client, SERVICE_ACCOUNTS, namespace=name, body={"metadata": {"name": "default"}}
        )
    return name


@pytest.fixture
async def namespace(client: KubeClient) -> str:
    return await make_namespace(client)


class Gate:
    """A TCP proxy before the API server that can be shut: connections break, new ones fail."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._serving: set[asyncio.Task[None]] = set()
        self._port = 0

    async def open(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return f"https://127.0.0.1:{self._port}"

    async def shut(self) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, down: asyncio.StreamReader, up: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        ends = [up]
        try:
            reader, writer = await asyncio.open_connection(*self._target)
            ends.append(writer)
            await asyncio.gather(_pump(down, writer), _pump(reader, up))
        except OSError:
            pass  # nobody answers there: nor does the gate
        finally:
            for end in ends:
                end.transport.abort()
            self._serving.discard(task)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await source.read(1 << 16):
            target.write(chunk)
            await target.drain()
    target.close()


@pytest.fixture
async def gate(admin: Credentials) -> AsyncIterator[Gate]:
    url = urlsplit(admin.server)
    assert url.hostname
    assert url.port
    gate = Gate(url.hostname, url.port)
    yield gate
    await gate.shut()


@pytest.fixture
async def gated_client(admin: Credentials, gate: Gate) -> AsyncIterator[KubeClient]:
    server = await gate.open()
    async with KubeClient(dataclasses.replace(admin, server=server)) as client:
        yield client


def restart_api_server(cluster: Cluster) -> None:
    """Kill the API server and start it again with the same arguments; returns when it is ready."""
    argv = _command_line(_process(cluster, "kube-apiserver"))
    kill(cluster.folder, role_prefix="kube-apiserver")
    process = spawn(argv, folder=cluster.folder, role="kube-apiserver", netns=None)
    with Api(cluster.kubeconfig) as api:
        wait_until(
            lambda: api.answers("/readyz"),
            what="API server ready again",
            timeout_seconds=120,
            folder=cluster.folder,
            needs=[process],
        )


async def compact(cluster: Cluster, *, revision: str) -> None:
    """Make etcd forget every version before this one."""
    flags = dict(
        flag.split("=", 1) for flag in _command_line(_process(cluster, "etcd")) if "=" in flag
    )
    url = f"{flags['--listen-client-urls']}/v3/kv/compaction"
    body = {"revision": revision, "physical": True}
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        assert answer.status == 200, await answer.text()


def _process(cluster: Cluster, role: str) -> Process:
    return next(process for process in find(cluster.folder) if process.role == role)


def _command_line(process: Process) -> list[str]:
    raw = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    return [word.decode() for word in raw.rstrip(b"\0").split(b"\0")]
