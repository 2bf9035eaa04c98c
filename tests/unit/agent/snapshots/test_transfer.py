"""Snapshots over real connections: what is taken, what is refused, what a cut leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from drumline_agent.http.client import PeerUnreachableError, download, upload
from drumline_agent.http.message import HttpError, HttpRequest, HttpResponse
from drumline_agent.http.server import HttpServer
from drumline_agent.protocol.snapshot_info import SnapshotInfo
from drumline_agent.snapshots.catalog import SnapshotCatalog
from drumline_agent.snapshots.transfer import (
    SHARD_HEADER,
    FetchError,
    SnapshotServer,
    fetch_snapshot,
    path_of,
)
from drumline_client.snapshot_file import SnapshotHeader
from drumline_contract import SIGNATURE_HEADER, Member, sign
from tests.unit.agent.settings_builder import agent_settings

PORT = 29400
TOKEN = b"token"
HEADER = SnapshotHeader(
    rank=3,
    step=42,
    world_size=4,
    generation=2,
    attempt=1,
    config="c",
    trainer={},
    body_bytes=3_000_000,
    sha256="d",
)
BODY = HEADER.encode() + random.Random(0).randbytes(HEADER.body_bytes)
SHARD = SnapshotInfo(
    rank=3, step=42, generation=2, attempt=1, world_size=4, bytes=len(BODY), sha256="d"
)


class Holder:
    """A pod that holds copies."""

    def __init__(self, folder: Path) -> None:
        self.address = "127.{}.{}.1".format(*random.sample(range(1, 255), 2))
        self.snapshots = SnapshotCatalog(folder / "held")
        self.server = SnapshotServer(token=TOKEN, snapshots=self.snapshots)
        self.server.membership = lambda: (2, 1)
        self.file = folder / "file"
        self.file.write_bytes(BODY)

    async def answer(self, request: HttpRequest) -> HttpResponse:
        return self.server.send(request)

    async def send(self, shard: SnapshotInfo, *, token: bytes = TOKEN, path: str = "") -> int:
        path, text = path or path_of(shard), shard.to_json()
        signature = sign(token, b"snapshot", path.encode(), text.encode())
        headers = {SIGNATURE_HEADER: signature, SHARD_HEADER: text}
        request = HttpRequest(method="PUT", path=path, headers=headers)
        answer = await upload(
            request, file=self.file, size=len(BODY), address=self.address, port=PORT
        )
        return answer.status

    async def get(self, path: str, *, to: Path, size: int) -> int:
        request = HttpRequest(method="GET", path=path)
        answer = await download(request, to=to, size=size, address=self.address, port=PORT)
        return answer.status


@pytest.fixture
async def holder(tmp_path: Path) -> AsyncIterator[Holder]:
    holder = Holder(tmp_path)
    async with HttpServer(holder.answer, address=holder.address, port=PORT, uploads=holder.server):
        yield holder


def left_behind(holder: Holder) -> list[Path]:
    folder = holder.snapshots.folder
    assert folder is not None
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_what_was_sent_can_be_fetched(holder: Holder, tmp_path: Path) -> None:
    assert await holder.send(SHARD) == 200
    assert holder.snapshots.all == (SHARD,)

    back = tmp_path / "back"
    assert await holder.get(path_of(SHARD), to=back, size=len(BODY)) == 200
    assert back.read_bytes() == BODY
    assert await holder.get(path_of(replace(SHARD, step=41)), to=back, size=9) == 404
    with pytest.raises(PeerUnreachableError, match="where 9 were expected"):
        await holder.get(path_of(SHARD), to=back, size=9)


@pytest.mark.parametrize(
    ("shard", "token", "status"),
    [
        (SHARD, b"another", 401),
        (replace(SHARD, attempt=0), TOKEN, 409),
        (replace(SHARD, generation=3), TOKEN, 409),
        (replace(SHARD, bytes=7), TOKEN, 400),
        (replace(SHARD, sha256="e"), TOKEN, 400),
        (replace(SHARD, step=43), TOKEN, 400),
    ],
    ids=["signature", "lower", "higher", "size", "digest", "step"],
)
async def test_what_is_not_of_this_membership_is_refused(
    holder: Holder, shard: SnapshotInfo, token: bytes, status: int
) -> None:
    answered: int | None
    try:
        answered = await holder.send(shard, token=token)
    except PeerUnreachableError:  # it had closed before it took the body
        answered = None
    assert answered in (status, None)
    assert (holder.snapshots.all, left_behind(holder)) == ((), [])


async def test_a_copy_that_is_cut_off_leaves_nothing(holder: Holder) -> None:
    text, path = SHARD.to_json(), path_of(SHARD)
    signature = sign(TOKEN, b"snapshot", path.encode(), text.encode())
    headers = {SIGNATURE_HEADER: signature, SHARD_HEADER: text}
    head = HttpRequest(method="PUT", path=path, headers=headers)
    reader, writer = await asyncio.open_connection(holder.address, PORT)
    writer.write(head.encode(host="a", body_bytes=len(BODY)) + BODY[:1000])
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    assert (holder.snapshots.all, left_behind(holder)) == ((), [])


def test_a_snapshot_that_its_rank_has_dropped_is_not_there(tmp_path: Path) -> None:
    holder = Holder(tmp_path)
    holder.snapshots.add_own(SHARD)
    with pytest.raises(HttpError, match="any more"):
        holder.server.send(HttpRequest(method="GET", path=path_of(SHARD)))


@pytest.mark.parametrize("asked", [SHARD, replace(SHARD, sha256="e"), replace(SHARD, attempt=0)])
async def test_only_what_was_asked_for_is_fetched(
    holder: Holder, tmp_path: Path, asked: SnapshotInfo
) -> None:
    await holder.send(SHARD)
    member = Member(index=1, pod_uid="p", address=holder.address, host="h", ranks=1, node="n")
    mine = SnapshotCatalog(tmp_path / "mine")

    right = asked == SHARD
    fetched = (
        contextlib.nullcontext()
        if right
        else pytest.raises(FetchError, match="another snapshot has arrived")
    )
    with fetched:
        await fetch_snapshot(
            asked, holder=member, snapshots=mine, settings=agent_settings(port=PORT)
        )
    assert mine.all == ((SHARD,) if right else ())
    assert mine.path(3, 42).exists() == right
