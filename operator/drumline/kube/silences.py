"""Leave namespaces alone for a while whose requests are not answered in time.

Some requests are made one after the other, so those of other namespaces would wait.
"""

from __future__ import annotations

from collections.abc import Callable


class Silences:
    """The namespaces that are left alone.

    Args:
        seconds: how long.
        clock: monotonic seconds.
    """

    def __init__(self, *, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._until: dict[str, float] = {}

    def __contains__(self, namespace: str) -> bool:
        """Return whether a namespace is left alone now."""
        return self._clock() < self._until.get(namespace, 0.0)

    def add(self, namespace: str) -> None:
        """Leave a namespace alone from now on."""
        now = self._clock()
        self._until = {name: until for name, until in self._until.items() if now < until}
        self._until[namespace] = now + self._seconds
