"""Choice of the connections that a listener keeps when more arrive than it serves; pure.

Anyone who reaches a port can open connections and send nothing. So the connections of one address
are bounded. If there are too many in all, a new connection displaces a waiting one: the
oldest without a whole request, of the address that has most of them. A flood from one address thus
displaces only itself. The kubelet, the operator and the members have a few connections each and
send whole requests, so they are served.

    limits: 8 in all, 4 of an address; open: A A A A, B B, C, operator (its request is being
    answered); all but the operator's are waiting
    A asks for a fifth      -> refused: 4 of A
    the kubelet asks        -> A's oldest is displaced
    B asks for a third      -> A's next oldest is displaced
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class AdmittedConnection(Generic[C]):
    """The connection is kept."""

    displaced: C | None = None
    """To be closed for it."""
    crowded: bool = False
    """It takes a place of the reserve: only a probe is answered."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The connection is to be closed."""


@dataclass(slots=True, kw_only=True)
class ConnectionLimits(Generic[C]):
    """The connections of one listener.

    Args:
        total: maximum number of open connections.
        reserve: additional connections that only probes may use.
        of_address: maximum number per address.
    """

    total: int
    reserve: int
    of_address: int
    _addresses: dict[C, str] = field(default_factory=dict["C", str])
    _open: Counter[str] = field(default_factory=Counter[str])
    _waiting: dict[str, dict[C, None]] = field(default_factory=dict[str, "dict[C, None]"])
    """Without a whole request, by address, oldest first."""

    def __len__(self) -> int:
        return len(self._addresses)

    def admit(self, connection: C, *, address: str) -> AdmittedConnection[C] | Refused:
        """Take note of a new connection, unless it is refused. O(addresses)."""
        if self._open[address] >= self.of_address:
            return Refused()
        displaced = None
        crowded = len(self) >= self.total
        if crowded:
            displaced = self._displaced_by(address)
            if displaced is not None:
                self.remove(displaced)
                crowded = False
            elif len(self) >= self.total + self.reserve:
                return Refused()
        self._addresses[connection] = address
        self._open[address] += 1
        self._waiting.setdefault(address, {})[connection] = None
        return AdmittedConnection(displaced, crowded)

    def has_request(self, connection: C) -> None:
        """Keep a connection whose request has arrived, or that may send a long body."""
        address = self._addresses.get(connection)
        if address is not None:
            self._no_longer_waiting(connection, address)

    def waits_again(self, connection: C) -> None:
        """Take note of a connection whose request has been answered, and that may send another."""
        address = self._addresses.get(connection)
        if address is not None:
            self._waiting.setdefault(address, {})[connection] = None

    def remove(self, connection: C) -> None:
        """Remove a closed connection. An unknown one is ignored."""
        address = self._addresses.pop(connection, None)
        if address is None:
            return
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]
        self._no_longer_waiting(connection, address)

    def _no_longer_waiting(self, connection: C, address: str) -> None:
        waiting = self._waiting.get(address, {})
        waiting.pop(connection, None)
        if not waiting:
            self._waiting.pop(address, None)

    def _displaced_by(self, address: str) -> C | None:
        """Return the oldest waiting connection of the address with most waiting ones.

        None if that address has fewer waiting connections than the new one's would have.
        """
        if not self._waiting:
            return None
        largest = max(self._waiting, key=lambda each: len(self._waiting[each]))
        own = len(self._waiting.get(address, {})) + 1
        if len(self._waiting[largest]) < own:
            return None
        return next(iter(self._waiting[largest]))
