"""Copies of this pod's snapshots in the memory of a peer, so that a lost node loses no state.

The peer is the next member on another node. Of each rank the newest snapshot is sent; a snapshot
that is replaced by a newer one while it waits is skipped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus

from drumline_agent.base.events import AgentEvent, log
from drumline_agent.base.settings import AgentSettings
from drumline_agent.http.client import PeerUnreachableError, upload
from drumline_agent.http.message import HttpRequest
from drumline_agent.protocol.snapshot_info import SnapshotInfo
from drumline_agent.snapshots.catalog import SnapshotCatalog
from drumline_agent.snapshots.transfer import SHARD_HEADER, path_of
from drumline_contract import SIGNATURE_HEADER, GenerationRecord, Member, sign

OnCopied = Callable[[float], None]
"""Called with the seconds that the transfer took."""


def peer_of(record: GenerationRecord, index: int) -> Member | None:
    """Return the member that holds a member's copies. None: all are on one node."""
    members = record.members
    here = next(at for at, member in enumerate(members) if member.index == index)
    for offset in range(1, len(members)):
        candidate = members[(here + offset) % len(members)]
        # A copy on the same node would be lost together with the original.
        if candidate.node != members[here].node:
            return candidate
    return None


class Replicator:
    """Sends the newest snapshots of this pod's ranks to its peer."""

    def __init__(self, *, settings: AgentSettings, snapshots: SnapshotCatalog) -> None:
        self._settings = settings
        self._snapshots = snapshots
        self._peer: Member | None = None
        self._waiting: dict[int, tuple[SnapshotInfo, OnCopied]] = {}
        self._sending: dict[int, asyncio.Task[None]] = {}
        self._copied: set[int] = set()
        """Ranks with a copy of this attempt: only the first is logged."""

    def begin(self, record: GenerationRecord) -> None:
        """Begin an attempt. Snapshots that still wait are of the previous one and are dropped."""
        self._peer = peer_of(record, self._settings.index)
        self._waiting.clear()
        self._copied.clear()

    def offer(self, snapshot: SnapshotInfo, *, on_copied: OnCopied) -> None:
        """Send this snapshot next; `on_copied` is called once the peer has it."""
        if self._peer is None:
            return
        # Only the newest one waits: an older copy has no use.
        self._waiting[snapshot.rank] = snapshot, on_copied
        if snapshot.rank not in self._sending:
            task = asyncio.create_task(self._send_all(snapshot.rank))
            self._sending[snapshot.rank] = task
            task.add_done_callback(lambda _: self._sending.pop(snapshot.rank, None))

    def close(self) -> None:
        """Stop sending."""
        for task in self._sending.values():
            task.cancel()

    async def _send_all(self, rank: int) -> None:
        while rank in self._waiting and self._peer is not None:
            snapshot, on_copied = self._waiting.pop(rank)
            started = time.monotonic()
            # Not repeated: the next snapshot follows soon.
            if not await self._send(snapshot, to=self._peer):
                continue
            seconds = time.monotonic() - started
            if rank not in self._copied:
                self._copied.add(rank)
                log(
                    AgentEvent.SNAPSHOT_COPIED,
                    rank=rank,
                    step=snapshot.step,
                    seconds=round(seconds, 4),
                )
            on_copied(seconds)

    async def _send(self, snapshot: SnapshotInfo, *, to: Member) -> bool:
        path, text = path_of(snapshot), snapshot.to_json()
        signature = sign(self._settings.token, b"snapshot", path.encode(), text.encode())
        headers = {SIGNATURE_HEADER: signature, SHARD_HEADER: text}
        try:
            answer = await upload(
                HttpRequest(method="PUT", path=path, headers=headers),
                file=self._snapshots.path(snapshot.rank, snapshot.step),
                size=snapshot.bytes,
                address=to.address,
                port=self._settings.port,
            )
        except (PeerUnreachableError, OSError) as error:  # OSError: a newer one has replaced it
            reason = str(error)
        else:
            if answer.status == HTTPStatus.OK:
                return True
            reason = answer.body[:256].decode(errors="replace")
        log(
            AgentEvent.SNAPSHOT_NOT_COPIED,
            rank=snapshot.rank,
            step=snapshot.step,
            to=to.index,
            reason=reason,
        )
        return False
