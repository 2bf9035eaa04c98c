"""Connection between the clients of a pod's ranks and the leader of its gang."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from drumline_agent.protocol.client_messages import ConnectionClosed
from drumline_agent.rank_protocol.orders import SaveNotice
from drumline_client.wire import ClientMessage


@dataclass(slots=True)
class ClientLink:
    """Functions of the link. They are set for each record, which may have another leader."""

    to_leader: Callable[[int, ClientMessage | ConnectionClosed], None] = lambda _, __: None
    """Forwards a rank's message to the leader."""
    request_save: Callable[[SaveNotice], None] = lambda _: None
    """Has the ranks agree to save, where this agent leads; elsewhere the leader does it."""
    withdraw_save: Callable[[str], None] = lambda _: None
    """Drops a request by its id, unless the ranks have agreed."""

    def cut(self) -> None:
        """Disconnect: no leader is known."""
        self.to_leader = lambda _, __: None
        self.request_save = lambda _: None
        self.withdraw_save = lambda _: None
