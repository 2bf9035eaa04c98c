"""CSI drivers of nodes: the volumes that they can attach, and where a node reaches volumes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain

from drumline.kube.views import CsiDriverView, CsiNodeView


class CsiDrivers:
    """CSINodes and CSIDrivers as last seen. For one event loop.

    Args:
        changed: called with the nodes whose limits differ; returns whether a decision may change.
    """

    def __init__(self, *, changed: Callable[[Iterable[str]], bool]) -> None:
        self._changed = changed
        self.limited: frozenset[str] = frozenset()
        """CSI drivers that can attach a limited number of volumes to some node."""
        self._limits: dict[str, Mapping[str, int]] = {}
        """Limits by node and driver."""
        self._topology: dict[str, Mapping[str, tuple[str, ...]]] = {}
        """Labels of the drivers' topology by node and driver."""
        self._unattached: set[str] = set()
        """CSI drivers whose volumes several nodes can mount, because no node attaches them."""

    def on_node(self, old: CsiNodeView | None, new: CsiNodeView | None) -> bool:
        """Process an event and return whether it may change a decision."""
        view = new or old
        if view is None:
            return False
        before = self._limits.pop(view.name, {})
        self._topology.pop(view.name, None)
        if new is not None and new.topology:
            self._topology[new.name] = dict(new.topology)
        if new is not None and new.limits:
            self._limits[new.name] = dict(new.limits)
        if self._limits.get(view.name, {}) == before:
            return False
        self.limited = frozenset(chain.from_iterable(self._limits.values()))
        return self._changed((view.name,))

    def on_driver(self, old: CsiDriverView | None, new: CsiDriverView | None) -> bool:
        """Process an event and return whether it may change a decision."""
        before = len(self._unattached)
        if old is not None:
            self._unattached.discard(old.name)
        if new is not None and not new.attaches:
            self._unattached.add(new.name)
        return len(self._unattached) != before and self._changed(())

    def limits_of(self, node: str) -> Mapping[str, int]:
        """Return the number of volumes that a node can attach, by driver with a limit."""
        return self._limits.get(node, {})

    def topology_of(self, node: str, driver: str) -> tuple[str, ...] | None:
        """Return the labels of a driver's topology on a node. None if they are not known."""
        return self._topology.get(node, {}).get(driver)

    def attaches(self, driver: str) -> bool:
        """Return whether a node attaches volumes of a driver before it mounts them."""
        return driver not in self._unattached
