"""The ranks of this pod that have joined through the client (`drumline_client`), in one attempt.

Messages of a rank are forwarded to the leader, and messages of the leader to every rank. An open
proposal to save is kept until its outcome, so that a rank that connects late or again gets it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from drumline_agent.commands.client_socket import ClientConnection
from drumline_agent.protocol.client_messages import MAX_CLIENT_RANKS, ConnectionClosed
from drumline_client.wire import (
    VERSION,
    AgentMessage,
    ClientMessage,
    Hello,
    JoinRefused,
    SaveAgreed,
    SaveProposal,
    SaveWithdrawn,
    StepReport,
    Welcome,
    WorkDone,
    encode,
)

SILENT_PHASES = frozenset(("starting", "restoring", "evaluating", "saving", "done"))
"""No step ends in them, for as long as they take."""


@dataclass(slots=True, kw_only=True)
class JoinedClient:
    """A rank and what it has reported last."""

    hello: Hello
    connection: ClientConnection
    report: StepReport | None = None

    @property
    def trains(self) -> bool:
        """True if silence of this rank means that it makes no progress."""
        return (
            self.report is not None
            and self.report.step is not None
            and self.report.phase not in SILENT_PHASES
        )

    def silent_seconds(self, *, now: float) -> float:
        """Return seconds since its training thread's last call; `now` is CLOCK_MONOTONIC."""
        return 0.0 if self.report is None else max(0.0, now - self.report.at)


class JoinedClients:
    """Joined clients by rank, with at most one connection each."""

    def __init__(
        self,
        *,
        welcome: Callable[[Hello], Welcome],
        on_said: Callable[[int, ClientMessage | ConnectionClosed], None],
        ranks: Callable[[], range | None],
    ) -> None:
        """Start without clients.

        Args:
            welcome: builds the answer to a rank that joins the present attempt.
            on_said: called with each rank's messages, and once its connection is closed.
            ranks: returns the ranks of this pod; None if the user's launcher assigns them.
        """
        self._welcome = welcome
        self._on_said = on_said
        self._ranks = ranks
        self._clients: dict[int, JoinedClient] = {}
        self._known: set[int] = set()
        """Ranks that have joined in this attempt, also those whose connection is closed."""
        self._proposal: SaveProposal | None = None
        self._agreed = False

    def begin_attempt(self) -> None:
        """Forget the ranks of the attempt before."""
        self._clients.clear()
        self._known.clear()
        self._proposal, self._agreed = None, False

    @property
    def all(self) -> list[JoinedClient]:
        """All clients, ordered by rank."""
        return [self._clients[rank] for rank in sorted(self._clients)]

    def get(self, rank: int) -> JoinedClient | None:
        """Return the connected client of a rank."""
        return self._clients.get(rank)

    def handle(self, connection: ClientConnection, message: ClientMessage) -> None:
        """Handle a message of a connected process.

        Raises:
            WireError: the message is too long to forward.
        """
        if isinstance(message, Hello):
            self._join(connection, message)
            return
        client = self._of(connection)
        if client is None:
            connection.close()  # it has not said who it is
            return
        encode(message)  # a foreign client's may be longer when it is passed on
        if isinstance(message, StepReport):
            client.report = message
        self._on_said(client.hello.rank, message)

    def closed(self, connection: ClientConnection) -> None:
        """Handle the end of a connection."""
        client = self._of(connection)
        if client is not None:
            del self._clients[client.hello.rank]
            self._on_said(client.hello.rank, ConnectionClosed())

    def ended_well(self, ranks: range | None) -> None:
        """Report that the processes of these ranks (None: all) have ended with exit code 0."""
        for rank in sorted(self._known):
            if ranks is None or rank in ranks:
                self._on_said(rank, WorkDone())

    def send(self, message: AgentMessage) -> None:
        """Send a message to every client."""
        # Remember the open proposal for ranks that connect later.
        match message:
            case SaveProposal():
                self._proposal, self._agreed = message, False
            case SaveAgreed(id=name) if self._proposal is not None and self._proposal.id == name:
                self._agreed = True
            case SaveWithdrawn(id=name) if self._proposal is not None and self._proposal.id == name:
                self._proposal = None
            case _:
                pass
        for client in self._clients.values():
            client.connection.send(message)

    @property
    def leaves(self) -> bool:
        """True if the ranks have agreed to save and leave."""
        return self._agreed and self._proposal is not None and self._proposal.leave

    def settled(self) -> None:
        """Forget an agreed proposal after its save: clients that connect later do not need it."""
        if self._agreed and not self.leaves:
            self._proposal, self._agreed = None, False

    def _join(self, connection: ClientConnection, hello: Hello) -> None:
        reason = self._objection(connection, hello)
        if reason:
            connection.refuse(JoinRefused(reason=reason))
            return
        self._clients[hello.rank] = JoinedClient(hello=hello, connection=connection)
        self._known.add(hello.rank)
        # The welcome comes first: the client rejects any other first message.
        connection.send(self._welcome(hello))
        self._on_said(hello.rank, hello)
        # A rank that joins late must take part in an open round, or the others wait for it.
        if self._proposal is not None:
            connection.send(self._proposal)
            if self._agreed:
                connection.send(SaveAgreed(id=self._proposal.id))

    def _objection(self, connection: ClientConnection, hello: Hello) -> str:
        """Return why this process may not join, or an empty text if it may."""
        here = self._ranks()
        present = self._clients.get(hello.rank)
        if hello.v != VERSION:
            return f"the agent speaks version {VERSION} of the protocol, the client {hello.v}"
        if not 0 <= hello.rank < hello.world_size <= MAX_CLIENT_RANKS:
            return f"rank {hello.rank} of {hello.world_size} is no rank"
        if here is not None and hello.rank not in here:
            return f"rank {hello.rank} is not of this pod, which has {here.start}..{here.stop - 1}"
        # A rank may connect again only after its old connection is gone.
        if self._of(connection) is not None or (present and not present.connection.closed):
            return f"rank {hello.rank} has joined already"
        return ""

    def _of(self, connection: ClientConnection) -> JoinedClient | None:
        for client in self._clients.values():
            if client.connection is connection:
                return client
        return None
