"""Which connections an agent keeps when more come than it serves; pure.

Whoever reaches the agent's port can open connections and say nothing. So the connections of one
address are bounded, and where there are too many in all, a new one takes the place of the one that
has waited longest without a whole request, of the address with most of them. A crowd of one address
so displaces itself alone; the kubelet, the operator and the members, with a few connections each
and whole requests, are served.

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
class Seated(Generic[C]):
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
        total: so many may be open.
        reserve: so many more, for probes.
        of_address: so many of one address.
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

    def admit(self, connection: C, *, address: str) -> Seated[C] | Refused:
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
        return Seated(displaced, crowded)

    def has_request(self, connection: C) -> None:
        """Its request has arrived, or its right to a long body was checked: it stays."""
        address = self._addresses.get(connection)
        if address is not None:
            self._no_longer_waiting(connection, address)

    def remove(self, connection: C) -> None:
        """It is closed; without effect where it is not known (any more)."""
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
        """The oldest that waits of the address with most that wait.

        Never one of an address with fewer waiting connections than the new one's would have.
        """
        if not self._waiting:
            return None
        largest = max(self._waiting, key=lambda each: len(self._waiting[each]))
        own = len(self._waiting.get(address, {})) + 1
        if len(self._waiting[largest]) < own:
            return None
        return next(iter(self._waiting[largest]))
