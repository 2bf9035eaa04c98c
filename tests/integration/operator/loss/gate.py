"""Every write of an operator passes a gate, which may end the operator there."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Never

from drumline.kube.errors import KubeError
from drumline.kube.kinds import EVENTS, GPU_POOLS, LEASES, PODS, TRAINING_QUEUES
from drumline.kube.request import Request

UNCOUNTED = frozenset({LEASES, EVENTS, GPU_POOLS, TRAINING_QUEUES})
"""Written by the clock, or for people alone: nothing follows from them."""


@dataclass(frozen=True, slots=True, order=True)
class Spot:
    """One write of a life: what it is about, and how many of its like came before."""

    method: str
    path: str
    """The corner's name is "~"."""
    nth: int

    def __str__(self) -> str:
        return f"{self.method} {self.path} #{self.nth + 1}"


class Flavor(StrEnum):
    """How an operator ends at a write."""

    BEFORE = "before"
    """The write is never sent."""
    AFTER = "after"
    """The write is committed, its answer is lost with the operator."""
    LATE = "late"
    """The write is under way when the operator ends, and committed after its successor has read
    the cluster and written: no clock protects from it."""
    TWICE = "twice"
    """As AFTER; and the successor ends before its first write."""


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """Where an operator ends, and how."""

    spot: Spot
    flavor: Flavor

    def __str__(self) -> str:
        return f"{self.flavor} {self.spot}"

    @property
    def pod(self) -> str | None:
        """Name of the pod that this write creates, if it creates one."""
        folder, _, name = self.spot.path.rpartition("/")
        return name if self.spot.method == "POST" and folder.endswith("/pods") else None


@dataclass(kw_only=True)
class Gate:
    """The writes of one corner's operators, in one life of its jobs."""

    corner: str
    due: dict[Spot, Point] = field(default_factory=dict[Spot, Point])
    """Where operators are still to end, in whichever order these writes come."""
    struck: list[Point] = field(default_factory=list[Point])
    """Where operators have ended."""
    writes: list[Spot] = field(default_factory=list[Spot])
    """As they were sent, answered or not."""
    under_way: int = 0
    """Writes that were sent and are not answered."""
    late: Request | None = None
    """What the last operator had under way, until it is committed; nobody ends before."""
    trouble: tuple[Spot, Callable[[], None]] | None = None
    """What is done once, as soon as one write was sent."""
    wrote: asyncio.Event = field(default_factory=asyncio.Event)
    """A write was committed since an operator began."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """The present operator has ended."""
    tell: Callable[[str], None] = lambda _: None
    """Hears of every write, and of an end."""
    _like: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    _ends_again: bool = False
    """The present operator ends before its first write."""

    def begin(self, points: Iterable[Point] = ()) -> None:
        """A new life, in which operators end at these points."""
        self.trouble, self.late, self._ends_again = None, None, False
        self.due = {point.spot: point for point in points}
        self.struck.clear()
        self.writes.clear()
        self._like.clear()

    async def pass_write(self, request: Request, send: Callable[[], Awaitable[bytes]]) -> bytes:
        """Send a write, if the operator lives on; what ends here never returns."""
        if self.ended.is_set():
            await never()
        if "dryRun" in request.query:
            return await send()  # nothing is written
        spot = self._note(request)
        if spot is not None and self._ends_before(spot):
            await self._end_unsent(request, spot)
        self.under_way += 1
        try:
            answer = await send()
        except KubeError:
            if self._ends_after(spot):
                await self._end(self._due(spot))
            raise
        finally:
            self.under_way -= 1
        if self._ends_after(spot):
            await self._end(self._due(spot))
        if spot is not None:
            self.wrote.set()
            if self.trouble is not None and spot == self.trouble[0]:
                cause, self.trouble = self.trouble[1], None
                cause()
        return answer

    def _ends_at(self, spot: Spot | None, *flavors: Flavor) -> bool:
        point = None if self.late is not None or self.ended.is_set() else self._due(spot)
        return point is not None and point.flavor in flavors

    def _ends_before(self, spot: Spot) -> bool:
        return self._ends_again or self._ends_at(spot, Flavor.BEFORE, Flavor.LATE)

    def _ends_after(self, spot: Spot | None) -> bool:
        return self._ends_at(spot, Flavor.AFTER, Flavor.TWICE)

    def _due(self, spot: Spot | None) -> Point | None:
        return None if spot is None else self.due.get(spot)

    async def _end_unsent(self, request: Request, spot: Spot) -> Never:
        """End before a write; it is not counted, for the successor sends it in its place."""
        self._like[spot.method, spot.path] -= 1
        point = None if self._ends_again else self._due(spot)
        if point is not None and point.flavor is Flavor.LATE:
            self.late = request
        await self._end(point)

    async def _end(self, point: Point | None) -> Never:
        """End at this point, or once more where the point before says so."""
        self._ends_again = point is not None and point.flavor is Flavor.TWICE
        if point is not None:
            del self.due[point.spot]
            self.struck.append(point)
        self.tell("--- the operator ends here")
        self.ended.set()
        await never()

    def _note(self, request: Request) -> Spot | None:
        if request.resource in UNCOUNTED:
            return None
        path = request.path.replace(self.corner, "~")
        if request.resource is PODS and request.method == "POST" and request.body is not None:
            path += "/" + json.loads(request.body)["metadata"]["name"]
        like = request.method, path
        spot = Spot(*like, self._like[like])
        self._like[like] += 1
        self.writes.append(spot)
        self.tell(str(spot))
        return spot


async def never() -> Never:
    """Wait until cancelled."""
    while True:
        await asyncio.Event().wait()
