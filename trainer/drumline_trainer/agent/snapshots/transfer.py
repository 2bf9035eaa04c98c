"""Snapshots on their way between pods.

PUT /v1/snapshots/RANK/STEP   a copy for safe keeping, sent to the partner
GET /v1/snapshots/RANK/STEP   a rank that starts without its snapshot gets it from whoever holds it

The partner of a pod is the next member on another node, so that losing a node loses no snapshot and
its only copy together. Of each rank the newest snapshot is sent; one that is replaced while it
waits for the one before is skipped. What travels is signed for by its description, which names the
digest of its body: a file whose header names another is refused where it arrives, and the rank that
restores from it checks every byte against the header.
"""

from __future__ import annotations

import asyncio
import re
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

from drumline_trainer.agent.base.events import AgentEvent, log
from drumline_trainer.agent.http.client import PeerUnreachableError, download, upload
from drumline_trainer.agent.http.message import FILES_PATH, HttpError, HttpRequest, HttpResponse
from drumline_trainer.agent.snapshots.catalog import SnapshotInfo
from drumline_trainer.contract import SIGNATURE_HEADER, ContractError, sign, verify
from drumline_trainer.rank_protocol.orders import Replicated
from drumline_trainer.rank_protocol.snapshot_file import SnapshotError, read_header

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from drumline_trainer.agent.base.settings import AgentSettings
    from drumline_trainer.agent.http.message import RequestHead
    from drumline_trainer.agent.processes.rank_process import RankProcess
    from drumline_trainer.agent.protocol.leader_orders import Membership
    from drumline_trainer.agent.snapshots.catalog import SnapshotCatalog
    from drumline_trainer.contract import GenerationRecord, Member

SHARD_HEADER = "X-Drumline-Shard"
FETCH_TRIES = 3
_PATH = re.compile(re.escape(FILES_PATH) + r"([0-9]{1,9})/([0-9]{1,15})")


def path_of(shard: SnapshotInfo) -> str:
    """The path of a snapshot in the API."""
    return f"{FILES_PATH}{shard.rank}/{shard.step}"


def partner_of(record: GenerationRecord, index: int) -> Member | None:
    """Who keeps the copies of a member's snapshots: the next one on another node, if any."""
    members = record.members
    here = next(at for at, member in enumerate(members) if member.index == index)
    for offset in range(1, len(members)):
        candidate = members[(here + offset) % len(members)]
        if candidate.node != members[here].node:
            return candidate
    return None


class SnapshotServer:
    """The receiving end of both routes."""

    def __init__(self, *, token: bytes, snapshots: SnapshotCatalog) -> None:
        self._token = token
        self._snapshots = snapshots
        self.membership: Callable[[], Membership] = lambda: (0, -1)
        """What this pod is part of now."""

    def begin(self, head: RequestHead) -> Path:
        """Where to write a copy. Raises HttpError if it is not wanted."""
        shard = self._shard(head)
        if (shard.generation, shard.attempt) != self.membership():
            raise HttpError(HTTPStatus.CONFLICT, "a snapshot of another membership")
        if self._snapshots.folder is None:
            raise HttpError(HTTPStatus.NOT_FOUND, "this pod holds no snapshots")
        return self._snapshots.incoming_path(shard, copy=True)

    def finish(self, head: RequestHead, path: Path) -> HttpResponse:
        """The copy is here."""
        shard = self._shard(head)
        if (shard.generation, shard.attempt) != self.membership():
            path.unlink(missing_ok=True)
            raise HttpError(HTTPStatus.CONFLICT, "a snapshot of another membership")
        try:
            _check(path, shard)
        except SnapshotError as error:
            path.unlink(missing_ok=True)
            raise HttpError(HTTPStatus.BAD_REQUEST, str(error)) from None
        self._snapshots.commit_incoming(shard, copy=True)
        return HttpResponse(status=200, body=b"{}")

    def send(self, request: HttpRequest) -> HttpResponse:
        """Answer a GET. Raises HttpError if there is no such snapshot."""
        match = _PATH.fullmatch(request.path)
        found = match and self._snapshots.find(int(match[1]), int(match[2]))
        if not found:
            raise HttpError(HTTPStatus.NOT_FOUND, "no such snapshot")
        shard, path = found
        try:
            file = path.open("rb")
        except OSError:  # its rank has dropped it meanwhile
            raise HttpError(HTTPStatus.NOT_FOUND, "no such snapshot any more") from None
        return HttpResponse(
            status=200,
            content_type="application/octet-stream",
            headers={SHARD_HEADER: shard.to_json()},
            file=file,
            file_bytes=shard.bytes,
        )

    def _shard(self, head: RequestHead) -> SnapshotInfo:
        text = head.headers.get(SHARD_HEADER.lower(), "")
        signature = head.headers.get(SIGNATURE_HEADER.lower(), "")
        if not verify(self._token, signature, b"snapshot", head.path.encode(), text.encode()):
            raise HttpError(HTTPStatus.UNAUTHORIZED, "wrong signature")
        try:
            shard = SnapshotInfo.from_json(text)
        except ContractError as error:
            raise HttpError(HTTPStatus.BAD_REQUEST, str(error)) from None
        if head.path != path_of(shard) or head.content_length != shard.bytes:
            raise HttpError(HTTPStatus.BAD_REQUEST, "the description is of another file")
        return shard


class Replicator:
    """Sends the newest snapshots of this pod's ranks to its partner."""

    def __init__(self, *, settings: AgentSettings, snapshots: SnapshotCatalog) -> None:
        self._settings = settings
        self._snapshots = snapshots
        self._partner: Member | None = None
        self._waiting: dict[int, tuple[RankProcess | None, SnapshotInfo]] = {}
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._copied: set[int] = set()
        """Ranks with a copy of this attempt: the first is worth a line in the log."""

    def begin(self, record: GenerationRecord) -> None:
        """A new attempt: what still waits is of the old one."""
        self._partner = partner_of(record, self._settings.index)
        self._waiting.clear()
        self._copied.clear()

    def offer(self, shard: SnapshotInfo, *, process: RankProcess | None) -> None:
        """Send this one next; `process` is told when it is there."""
        if self._partner is None:
            return
        self._waiting[shard.rank] = process, shard
        if shard.rank not in self._under_way:
            task = asyncio.create_task(self._send_all(shard.rank))
            self._under_way[shard.rank] = task
            task.add_done_callback(lambda _: self._under_way.pop(shard.rank, None))

    def close(self) -> None:
        """Stop sending."""
        for task in self._under_way.values():
            task.cancel()

    async def _send_all(self, rank: int) -> None:
        while rank in self._waiting and self._partner is not None:
            process, shard = self._waiting.pop(rank)
            started = time.monotonic()
            if not await self._send(shard, to=self._partner):
                continue
            seconds = time.monotonic() - started
            if rank not in self._copied:
                self._copied.add(rank)
                log(
                    AgentEvent.SNAPSHOT_COPIED,
                    rank=rank,
                    step=shard.step,
                    seconds=round(seconds, 4),
                )
            if process is not None:
                process.send_order(Replicated(step=shard.step, seconds=seconds))

    async def _send(self, shard: SnapshotInfo, *, to: Member) -> bool:
        path, text = path_of(shard), shard.to_json()
        signature = sign(self._settings.token, b"snapshot", path.encode(), text.encode())
        headers = {SIGNATURE_HEADER: signature, SHARD_HEADER: text}
        try:
            answer = await upload(
                HttpRequest(method="PUT", path=path, headers=headers),
                file=self._snapshots.path(shard.rank, shard.step),
                size=shard.bytes,
                address=to.address,
                port=self._settings.port,
            )
        except (
            PeerUnreachableError,
            OSError,
        ) as error:  # the file: a newer snapshot has replaced it
            reason = str(error)
        else:
            if answer.status == HTTPStatus.OK:
                return True
            reason = answer.body[:256].decode(errors="replace")
        log(
            AgentEvent.SNAPSHOT_NOT_COPIED,
            rank=shard.rank,
            step=shard.step,
            to=to.index,
            reason=reason,
        )
        return False


async def fetch_snapshot(
    shard: SnapshotInfo, *, holder: Member, snapshots: SnapshotCatalog, settings: AgentSettings
) -> str:
    """Get the snapshot of a rank of this pod from another one.

    Returns:
        Why it failed; empty if it is here.
    """
    path = path_of(shard)
    signature = sign(settings.token, b"get", path.encode())
    arrival = snapshots.incoming_path(shard, copy=False)
    reason = ""
    for _ in range(FETCH_TRIES):
        try:
            answer = await download(
                HttpRequest(method="GET", path=path, headers={SIGNATURE_HEADER: signature}),
                to=arrival,
                size=shard.bytes,
                address=holder.address,
                port=settings.port,
            )
        except (PeerUnreachableError, OSError) as error:
            reason = str(error)
            continue
        if answer.status != HTTPStatus.OK:
            reason = f"member {holder.index} answered {answer.status}"
            break
        try:
            _check(arrival, shard)
        except SnapshotError as error:
            reason = str(error)
            break
        snapshots.commit_incoming(shard, copy=False)
        return ""
    arrival.unlink(missing_ok=True)
    return f"rank {shard.rank}: no snapshot of step {shard.step} from elsewhere: {reason}"


def _check(path: Path, shard: SnapshotInfo) -> None:
    """Refuse a file that is not what its description promised. Raises SnapshotError."""
    header = read_header(path)
    taken = (header.rank, header.step, header.world_size, header.generation, header.attempt)
    promised = (shard.rank, shard.step, shard.world_size, shard.generation, shard.attempt)
    if (taken, header.sha256) != (promised, shard.sha256):
        raise SnapshotError(f"rank {shard.rank}, step {shard.step}: another snapshot has arrived")
