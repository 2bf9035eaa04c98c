"""New nodes of offers, which hypothetical clusters of many cycles share.

A view of a cluster costs only what changed since its last use, and equal objects count as
unchanged. So a new node is one object as long as its offer stays the same. There may be thousands.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Final

from drumline_scheduler.model import Node, NodeOffer
from drumline_scheduler.resources import Resources

_FIELDS: Final = tuple(each.name for each in fields(Node))
_VALUES: Final = attrgetter(*_FIELDS)


@dataclass(slots=True, kw_only=True)
class OfferedNode:
    """A node of an offer."""

    node: Node
    """In service and empty, once it has come."""
    _absent: Node | None = None
    _promised: Node | None = None

    @property
    def absent(self) -> Node:
        """Its value before it comes: full, so no pod fits."""
        # Made on demand: most new nodes come. A node without room is cheaper than one out of
        # service, because the nodes that a gang may use stay the same.
        if self._absent is None:
            self._absent = _with(self.node, used=self.node.allocatable)
        return self._absent

    def promised(self, share: Resources) -> Node:
        """Return its value while it is set up: full, but this share becomes free."""
        known = self._promised
        if known is None or known.terminating != share:
            node = self.node
            known = self._promised = _with(node, used=node.allocatable, terminating=share)
        return known


class OfferedNodes:
    """The new nodes of all offers. Each is given out once in a cycle."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], list[OfferedNode]] = {}
        """Nodes by pool and zone of the offer."""
        self._given = Counter[tuple[str, str]]()
        """Number of these that were given out in this cycle."""

    def begin(self) -> None:
        """Begin a cycle. The nodes that it does not use are forgotten with the next one."""
        for place, nodes in self._made.items():
            del nodes[self._given[place] :]
        self._given.clear()

    def take(self, offer: NodeOffer, count: int) -> list[OfferedNode]:
        """Return further nodes of an offer."""
        place = (offer.pool, offer.zone)
        made, first = self._made.setdefault(place, []), self._given[place]
        if made and not _is_like(made[0].node, offer.node):
            made.clear()
        values = dict(zip(_FIELDS, _VALUES(offer.node), strict=True))
        for number in range(len(made), first + count):
            # A name that no real node can have, sorted behind all others.
            values["name"] = f"~{offer.pool}/{offer.zone}/{number:06d}"
            made.append(OfferedNode(node=Node(**values)))
        self._given[place] += count
        return made[first : first + count]


def _with(node: Node, **changes: Any) -> Node:
    """Return a node with changes. `replace` takes twice as long, and there are thousands."""
    return Node(**(dict(zip(_FIELDS, _VALUES(node), strict=True)) | changes))


def _is_like(made: Node, offered: Node) -> bool:
    """Return whether a node that was made is one of an offer."""
    return replace(made, name=offered.name) == offered
