"""Snapshots between pods: the routes, and fetching a snapshot that this pod lacks.

PUT /v1/snapshots/RANK/STEP   a copy for safe keeping, sent by `replication`
GET /v1/snapshots/RANK/STEP   a rank that starts without its snapshot fetches it from a holder

The signature is over the description of the snapshot, which names the digest of its body: a file
whose header names another digest is rejected on arrival, and the rank that restores from it checks
every byte against the header.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from drumline_agent.base.settings import AgentSettings
from drumline_agent.http.client import PeerUnreachableError, download
from drumline_agent.http.message import (
    FILES_PATH,
    HttpError,
    HttpRequest,
    HttpResponse,
    RequestHead,
)
from drumline_agent.protocol.membership import NO_MEMBERSHIP, Membership
from drumline_agent.protocol.snapshot_info import SnapshotInfo
from drumline_agent.snapshots.catalog import SnapshotCatalog
from drumline_client.snapshot_file import SnapshotError, read_header
from drumline_contract import SIGNATURE_HEADER, ContractError, Member, sign, verify

SHARD_HEADER = "X-Drumline-Shard"
FETCH_TRIES = 3
_PATH = re.compile(re.escape(FILES_PATH) + r"([0-9]{1,9})/([0-9]{1,15})")


class FetchError(Exception):
    """A snapshot could not be fetched."""


def path_of(snapshot: SnapshotInfo) -> str:
    """Return the path of a snapshot in the API."""
    return f"{FILES_PATH}{snapshot.rank}/{snapshot.step}"


class SnapshotServer:
    """The receiving end of both routes."""

    def __init__(self, *, token: bytes, snapshots: SnapshotCatalog) -> None:
        self._token = token
        self._snapshots = snapshots
        self.membership: Callable[[], Membership] = lambda: NO_MEMBERSHIP
        """The membership that this pod is in now."""

    def begin(self, head: RequestHead) -> Path:
        """Return the path to which a copy is written.

        Raises:
            HttpError: the copy is not accepted.
        """
        snapshot = self._description(head)
        if snapshot.membership != self.membership():
            raise HttpError(HTTPStatus.CONFLICT, "a snapshot of another membership")
        if self._snapshots.folder is None:
            raise HttpError(HTTPStatus.NOT_FOUND, "this pod holds no snapshots")
        return self._snapshots.incoming_path(snapshot, copy=True)

    def finish(self, head: RequestHead, path: Path) -> HttpResponse:
        """Add a copy that has been written to `path`.

        Raises:
            HttpError: the copy is rejected.
        """
        snapshot = self._description(head)
        # The membership may have changed during the upload.
        if snapshot.membership != self.membership():
            path.unlink(missing_ok=True)
            raise HttpError(HTTPStatus.CONFLICT, "a snapshot of another membership")
        try:
            _check(path, snapshot)
        except SnapshotError as error:
            path.unlink(missing_ok=True)
            raise HttpError(HTTPStatus.BAD_REQUEST, str(error)) from None
        self._snapshots.commit_incoming(snapshot, copy=True)
        return HttpResponse(status=200, body=b"{}")

    def send(self, request: HttpRequest) -> HttpResponse:
        """Answer a GET.

        Raises:
            HttpError: there is no such snapshot.
        """
        match = _PATH.fullmatch(request.path)
        held = match and self._snapshots.find(int(match[1]), int(match[2]))
        if not held:
            raise HttpError(HTTPStatus.NOT_FOUND, "no such snapshot")
        snapshot, path = held
        try:
            file = path.open("rb")
        except OSError:  # its rank has removed it in the meantime
            raise HttpError(HTTPStatus.NOT_FOUND, "no such snapshot any more") from None
        return HttpResponse(
            status=200,
            content_type="application/octet-stream",
            headers={SHARD_HEADER: snapshot.to_json()},
            file=file,
            file_bytes=snapshot.bytes,
        )

    def _description(self, head: RequestHead) -> SnapshotInfo:
        text = head.headers.get(SHARD_HEADER.lower(), "")
        signature = head.headers.get(SIGNATURE_HEADER.lower(), "")
        if not verify(self._token, signature, b"snapshot", head.path.encode(), text.encode()):
            raise HttpError(HTTPStatus.UNAUTHORIZED, "wrong signature")
        try:
            snapshot = SnapshotInfo.from_json(text)
        except ContractError as error:
            raise HttpError(HTTPStatus.BAD_REQUEST, str(error)) from None
        # The signature covers path and description, so they must belong together.
        if head.path != path_of(snapshot) or head.content_length != snapshot.bytes:
            raise HttpError(HTTPStatus.BAD_REQUEST, "the description is of another file")
        return snapshot


async def fetch_snapshot(
    snapshot: SnapshotInfo, *, holder: Member, snapshots: SnapshotCatalog, settings: AgentSettings
) -> None:
    """Fetch the snapshot of a rank of this pod from another pod.

    Args:
        snapshot: step, rank and size.
        holder: the member that has it.
        snapshots: receives the snapshot.
        settings: settings of the agent.

    Raises:
        FetchError: the holder cannot be reached, or does not have that snapshot.
    """
    incoming = snapshots.incoming_path(snapshot, copy=False)
    try:
        await _download(snapshot, to=incoming, holder=holder, settings=settings)
    except FetchError as error:
        incoming.unlink(missing_ok=True)
        raise FetchError(
            f"rank {snapshot.rank}: cannot fetch the snapshot of step {snapshot.step}: {error}"
        ) from None
    snapshots.commit_incoming(snapshot, copy=False)


async def _download(
    snapshot: SnapshotInfo, *, to: Path, holder: Member, settings: AgentSettings
) -> None:
    """Download and check a snapshot; only a connection that fails is tried again."""
    path = path_of(snapshot)
    headers = {SIGNATURE_HEADER: sign(settings.token, b"get", path.encode())}
    reason = ""
    # Bounded, because a lost holder makes the leader choose another plan.
    for _ in range(FETCH_TRIES):
        try:
            answer = await download(
                HttpRequest(method="GET", path=path, headers=headers),
                to=to,
                size=snapshot.bytes,
                address=holder.address,
                port=settings.port,
            )
        except (PeerUnreachableError, OSError) as error:
            reason = str(error)
            continue
        # A definite answer. Repeating would not change it.
        if answer.status != HTTPStatus.OK:
            raise FetchError(f"member {holder.index} answered {answer.status}")
        try:
            _check(to, snapshot)
        except SnapshotError as error:
            raise FetchError(str(error)) from None
        return
    raise FetchError(reason)


def _check(path: Path, snapshot: SnapshotInfo) -> None:
    """Compare a file's header with its description. Raises SnapshotError where they differ."""
    header = read_header(path)
    taken = (header.rank, header.step, header.world_size, header.generation, header.attempt)
    promised = (snapshot.rank, snapshot.step, snapshot.world_size, *snapshot.membership)
    if (taken, header.sha256) != (promised, snapshot.sha256):
        raise SnapshotError(
            f"rank {snapshot.rank}, step {snapshot.step}: another snapshot has arrived"
        )
