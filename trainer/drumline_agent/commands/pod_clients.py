"""The clients of a pod's ranks (`drumline_client`): their socket and their reports.

A client's report becomes its rank's heartbeat in this pod's status. It is also forwarded to the
leader, which has all ranks save at the same step. Messages of the leader go to every client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from drumline_agent.base.events import AgentEvent, log
from drumline_agent.base.settings import AgentSettings
from drumline_agent.commands.client_link import ClientLink
from drumline_agent.commands.client_socket import ClientSocket
from drumline_agent.commands.joined_clients import JoinedClient, JoinedClients
from drumline_agent.protocol.client_messages import ConnectionClosed
from drumline_agent.protocol.snapshot_info import MAX_SNAPSHOT_BYTES, SnapshotInfo
from drumline_agent.rank_protocol.placement import Placement
from drumline_agent.state.rank_status import RankStatusStore
from drumline_client.environment import AGENT_VARIABLE, SNAPSHOTS_VARIABLE, SnapshotPlace
from drumline_client.wire import (
    VERSION,
    ClientMessage,
    Hello,
    RestoreFailed,
    SnapshotWritten,
    StepReport,
    Welcome,
)
from drumline_contract import CLIENT_FOLDER, Launch

SPAN_SECONDS = 5.0
"""A rate is over at least this long."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class TokenRate:
    """Tokens per second out of the counters of a pod's ranks."""

    def __init__(self) -> None:
        self._begin: dict[int, StepReport] = {}
        self._rates: dict[int, float] = {}

    def handle(self, rank: int, report: StepReport) -> None:
        """Update the rate with a rank's report of its counter."""
        begin = self._begin.setdefault(rank, report)
        if report.tokens < begin.tokens:  # it has started again
            self._begin[rank] = report
        elif report.at - begin.at >= SPAN_SECONDS and report.tokens > 0:
            self._rates[rank] = (report.tokens - begin.tokens) / (report.at - begin.at)
            self._begin[rank] = report

    @property
    def tokens_per_second(self) -> float | None:
        """Sum over the ranks of this pod. None until one has counted for SPAN_SECONDS."""
        return sum(self._rates.values()) if self._rates else None


SOCKET_NAME: Final = "agent.sock"


class PodClients:
    """Clients of one pod, over all its attempts.

    Args:
        settings: settings of the agent.
        status: status of this pod's ranks.
        link: sends messages to the coordinator in the leader's agent.
    """

    def __init__(
        self, *, settings: AgentSettings, status: RankStatusStore, link: ClientLink
    ) -> None:
        """Prepare the socket; it is not open yet, so ranks that start before `open` find none."""
        self._settings = settings
        self._status = status
        self._link = link
        self._placements: Sequence[Placement] = ()
        self._rate = TokenRate()
        self._is_open = False
        self._path = settings.gang_folder / SOCKET_NAME
        self.joined = JoinedClients(welcome=self._welcome, on_said=self._said, ranks=self._ranks)
        self._socket = ClientSocket(
            self._path,
            ranks=max(settings.gpus, 1),
            on_message=self.joined.handle,
            on_closed=self.joined.closed,
        )
        self.checkpoint: tuple[int, str] | None = None
        """Step and path of the newest that the ranks have reported complete."""
        self.on_report: Callable[[int, StepReport], None] = lambda _, __: None
        """Called with the newest state of each rank."""
        self.on_snapshot: Callable[[int, SnapshotWritten | RestoreFailed], None] = lambda _, __: (
            None
        )
        """Called with each rank's messages about snapshots. They have no other receiver."""

    async def open(self) -> None:
        """Listen; without a socket the ranks run as they do without a client."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            await self._socket.open()
        except OSError as error:
            log(AgentEvent.CLIENT_SOCKET_FAILED, path=str(self._path), reason=str(error))
        else:
            self._is_open = True

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def begin_attempt(self, placements: Sequence[Placement]) -> None:
        """Close the connections of the attempt before, whose ranks have ended."""
        self._socket.hang_up()
        self.joined.begin_attempt()
        self._placements = placements
        self._rate = TokenRate()

    def variables(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the variables with which a rank finds the client and its agent."""
        if not self._is_open:
            return {}
        folders = [folder for folder in (inherited.get("PYTHONPATH"), CLIENT_FOLDER) if folder]
        variables = {AGENT_VARIABLE: str(self._path), "PYTHONPATH": ":".join(folders)}
        snapshots = self._snapshot_place()
        if snapshots is not None:
            variables[SNAPSHOTS_VARIABLE] = snapshots.encode()
        return variables

    def of(self, placement: Placement) -> list[JoinedClient]:
        """Return the clients of a process: its own, or those of the ranks that it started."""
        if self._launch is not Launch.PER_GPU:
            return self.joined.all
        client = self.joined.get(placement.rank)
        return [] if client is None else [client]

    def ended_well(self, placement: Placement) -> None:
        """Report that this process has ended with exit code 0."""
        per_gpu = self._launch is Launch.PER_GPU
        self.joined.ended_well(range(placement.rank, placement.rank + 1) if per_gpu else None)

    @property
    def tokens_per_second(self) -> float | None:
        """Rate of all pods, assuming that each has the rate of this one."""
        rate = self._rate.tokens_per_second
        if rate is None or not self._placements:
            return None
        first = self._placements[0]
        return rate * (first.world_size // first.local_world_size)

    def _snapshot_place(self) -> SnapshotPlace | None:
        """Return where the ranks of this attempt find their snapshots. None: they have none."""
        placement = self._placements[0] if self._placements else None
        if placement is None or placement.snapshot_folder is None:
            return None
        by_launcher, each = self._launch is Launch.PER_POD, self._settings.ranks_per_process
        return SnapshotPlace(
            folder=placement.snapshot_folder,
            generation=placement.generation,
            attempt=placement.attempt,
            restore_step=placement.restore_snapshot,
            world_size=placement.world_size * each if by_launcher else None,
            first_rank=placement.rank * each,
            ranks=len(self._placements) * each,
        )

    def _said(self, rank: int, message: ClientMessage | ConnectionClosed) -> None:
        if isinstance(message, (SnapshotWritten, RestoreFailed)):
            self.on_snapshot(rank, message)
            return
        if isinstance(message, StepReport):
            self._rate.handle(rank, message)
            if message.saves and not self._status.acknowledges_saves:
                self._status.acknowledges_saves = True
                self._status.publish()
            self.on_report(rank, message)
        self._link.to_leader(rank, message)

    def _welcome(self, hello: Hello) -> Welcome:
        settings, status = self._settings, self._status
        step, path = self.checkpoint or (None, "")
        if step is None and status.newest_checkpoint is not None:
            step = status.newest_checkpoint.step
        return Welcome(
            v=VERSION,
            job=settings.job,
            namespace=settings.namespace,
            generation=status.generation,
            attempt=status.attempt,
            restarts=status.generation - 1 + status.attempt,
            previous_world_size=self._previous_world_size(hello),
            checkpoint_step=step,
            checkpoint_path=path,
        )

    def _previous_world_size(self, hello: Hello) -> int | None:
        """Return the number of ranks before this generation.

        A launcher's ranks are taken to be as many per GPU as they are now.
        """
        first = self._placements[0] if self._placements else None
        if first is None or first.previous_ranks is None:
            return None
        if self._launch is Launch.PER_GPU:
            return first.previous_ranks
        gpus = first.world_size * max(self._settings.gpus, 1)
        return hello.world_size * first.previous_ranks // gpus

    def _ranks(self) -> range | None:
        if self._launch is not Launch.PER_GPU or not self._placements:
            return None
        first = self._placements[0].rank
        return range(first, first + len(self._placements))

    @property
    def _launch(self) -> Launch | None:
        return None if self._settings.launch is None else self._settings.launch.launch


def snapshot_info(
    message: SnapshotWritten, placement: Placement, *, rank: int, ranks_per_process: int = 1
) -> SnapshotInfo | None:
    """Describe a snapshot that a rank has written. None: the message is implausible.

    Args:
        message: message of the rank's client.
        placement: placement of its process, or of the launcher that started it.
        rank: rank that wrote the snapshot.
        ranks_per_process: number of ranks that a launcher starts.
    """
    fits = message.step >= 0 and 0 < message.bytes <= MAX_SNAPSHOT_BYTES
    if not fits or not _DIGEST.fullmatch(message.sha256):
        return None
    return SnapshotInfo(
        rank=rank,
        step=message.step,
        generation=placement.generation,
        attempt=placement.attempt,
        world_size=placement.world_size * ranks_per_process,
        bytes=message.bytes,
        sha256=message.sha256,
    )
