"""Lives side by side, each in a corner of its own with operators of its own."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from drumline.kube.leader_election import LeaseTiming
from tests.integration.operator.loss.agents import AgentHost
from tests.integration.operator.loss.api import AsyncKube
from tests.integration.operator.loss.corner import GPUS, Corner, open_corner
from tests.integration.operator.loss.faults import Fault, FaultProxy
from tests.integration.operator.loss.gate import Flavor, Point, Spot
from tests.integration.operator.loss.incarnations import Connections, Operators, Surroundings
from tests.integration.operator.loss.journal import Journal, journal
from tests.integration.operator.loss.scenarios import LIVES
from tests.integration.operator.loss.truth import Limits, violations
from tests.integration.operator.loss.verdicts import CycleVerdicts, judged_cycles
from tests.kube import Json

CONVERGE_SECONDS = 300.0
EAGER = LeaseTiming(duration_seconds=9, renew_seconds=0.3, request_seconds=3.0)
"""A lease that is renewed many times in a life."""
MARKS = [
    pytest.mark.usefixtures("no_operator"),
    # the connections of operators that ended in mid-air are closed by nobody
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in.*(Transport.__del__|<socket)"
        ":pytest.PytestUnraisableExceptionWarning"
    ),
]
Picture = dict[str, Any]
Work = TypeVar("Work")


@dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """A life in which no operator ended."""

    picture: Picture
    points: tuple[Point, ...]
    """Every write of it with every way to end there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one life."""

    life: str
    case: str
    """What was done to it."""
    points: tuple[Point, ...] = ()
    """Where operators ended."""
    struck: bool = False
    """Whether what was meant to be done came to pass."""
    wrong: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    """What the operators logged, if something is wrong."""

    def __str__(self) -> str:
        return f"{self.life}: {self.case}: {'; '.join(self.wrong)}"


@dataclass(kw_only=True)
class Lane:
    """One corner and its operators."""

    corner: Corner
    operators: Operators
    proxy: FaultProxy
    """Not on the way, unless there is a fault."""
    journal: Journal
    verdicts: CycleVerdicts
    patience: float = CONVERGE_SECONDS
    """Until the end of a life is that of an undisturbed one."""

    async def observe(self, life: str) -> tuple[Undisturbed, Outcome]:
        """Live without a crash."""
        gate = self.operators.gate
        gate.begin()
        self._begin()
        await LIVES[life](self.corner)
        await self._rest()
        seen = picture(self.corner)
        spots = list(dict.fromkeys(gate.writes))
        outcome = await self._end(life, "undisturbed")
        points = tuple(Point(spot, flavor) for spot in spots for flavor in Flavor)
        return Undisturbed(picture=seen, points=points), outcome

    async def crash(self, life: str, points: Sequence[Point], expected: Picture) -> Outcome:
        """Live, and end an operator at each of these writes."""
        return await self._live(life, expected, points=points)

    async def distort(self, life: str, fault: Fault, expected: Picture) -> Outcome:
        """Live, and distort what is said about one kind."""
        lease = EAGER if fault.plural == "leases" else LeaseTiming()
        self.operators.surroundings = Surroundings(server=self.proxy.url, lease=lease)
        self.proxy.fault = fault
        self.operators.replace()
        outcome = await self._live(life, expected)
        self.proxy.fault = None
        return replace(outcome, case=str(fault), struck=fault.hits > 0)

    async def trouble(
        self,
        life: str,
        seen: Undisturbed,
        *,
        case: str,
        seed: int,
        surroundings: Surroundings,
        cause: Callable[[], None],
    ) -> Outcome:
        """Live in these surroundings, and cause trouble after one of the writes."""
        happened = asyncio.Event()

        def happen() -> None:
            happened.set()
            cause()

        self.operators.surroundings = surroundings
        self.operators.replace()
        spot = random.Random(seed).choice(seen.points).spot
        outcome = await self._live(life, seen.picture, trouble=(spot, happen))
        return replace(outcome, case=f"{case} after {spot}, seed {seed}", struck=happened.is_set())

    async def _live(
        self,
        life: str,
        expected: Picture,
        *,
        points: Sequence[Point] = (),
        trouble: tuple[Spot, Callable[[], None]] | None = None,
    ) -> Outcome:
        case = ", ".join(map(str, points))
        self.operators.gate.begin(points)
        self.operators.gate.trouble = trouble
        self._begin()
        try:
            await LIVES[life](self.corner)
            await self.corner.mirror.wait(
                lambda: picture(self.corner) == expected,
                seconds=self.patience,
                what=lambda: f"ends otherwise: {differences(expected, picture(self.corner))}",
            )
        except TimeoutError as error:
            return await self._end(life, case, str(error))
        return await self._end(life, case)

    def _begin(self) -> None:
        self.journal.begin(self.corner.name)
        self.verdicts.begin(self.corner.name)

    async def _rest(self) -> None:
        """The last writes of a life are there once the operator rests and nothing comes."""
        mirror, quiet = self.corner.mirror, False
        while not quiet:
            known = len(mirror.history)
            try:
                await mirror.wait(lambda known=known: len(mirror.history) > known, seconds=1.0)
            except TimeoutError:
                quiet = self.operators.rests

    async def _end(self, life: str, case: str, *wrong: str) -> Outcome:
        created = self.corner.mirror.created["pods"]
        try:
            await self.corner.clear()
        except TimeoutError as error:
            wrong = (*wrong, f"left behind: {error}")
            await self.corner.sweep()
        self.operators.forget_shared_objects()
        limits = Limits(gpus_per_node=GPUS, quota=self.corner.quota)
        points = tuple(self.operators.gate.struck)
        late = {point.pod for point in points if point.pod and point.flavor is Flavor.LATE}
        problems = [*wrong, *violations(self.corner.mirror.history, limits, late=late)]
        problems += self.verdicts.of(self.corner.name)
        if created != self.corner.mirror.created["pods"]:
            problems.append("pods were created after the end")
        for gang in self.corner.gangs.values():
            problems += gang.wrong
        if self.corner.refused:
            self.operators.replace()
        await self.corner.forget()
        return Outcome(
            life=life,
            case=case,
            points=points,
            struck=bool(points),
            wrong=tuple(problems),
            log=self.journal.of(self.corner.name) if problems else (),
        )


def picture(corner: Corner) -> Picture:
    """What a life left behind, without what differs from life to life."""
    return {
        "jobs": {name: canonical(job.get("status", {})) for name, job in corner.jobs.items()},
        "pods": {
            name: pod["status"].get("phase") for name, pod in corner.mirror.objects["pods"].items()
        },
        "children": {
            plural: dict(Counter(_job_of(child) for child in objects.values()))
            for plural, objects in corner.mirror.objects.items()
            if plural not in {"pods", "trainingjobs"}
        },
        "pods ever created": corner.mirror.created["pods"],
        "notices": sorted(
            len({notice.id for notice in gang.notices if not notice.withdraw})
            for gang in corner.gangs.values()
        ),
    }


def _job_of(child: Json) -> str:
    return child["metadata"].get("labels", {}).get("drumline.dev/job", "?")


KEPT = ("phase", "reason", "generation", "restarts", "ready", "checkpoint", "image")


def canonical(status: Json) -> Json:
    """A status without times, epochs, names of nodes and sentences."""
    places = status.get("assignment")
    return {
        **{key: status[key] for key in KEPT if key in status},
        "conditions": sorted(
            (each["type"], each["status"], each.get("reason"))
            for each in status.get("conditions", [])
        ),
        "budgets": sorted((each["faultClass"], each["used"]) for each in status.get("budgets", [])),
        "assignment": places
        and {
            **{
                key: each
                for key, each in places.items()
                if key not in {"prefix", "nodes", "gpuPool"}
            },
            "nodes": len(places["nodes"]),
        },
        "open": sorted(status.keys() & {"nominated", "disruption", "finishedAt", "startedAt"}),
    }


def differences(expected: Any, actual: Any, at: str = "") -> list[str]:
    """Where two pictures differ."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return [
            text
            for key in sorted({*expected, *actual}, key=str)
            for text in differences(expected.get(key), actual.get(key), f"{at}/{key}")
        ]
    return [] if expected == actual else [f"{at}: {expected} expected, {actual} there"]


@asynccontextmanager
async def lanes(kubeconfig: Path, *, count: int) -> AsyncIterator[list[Lane]]:
    with journal() as kept, judged_cycles() as verdicts:
        async with _lanes(kubeconfig, kept, verdicts, count=count) as among:
            yield among


@asynccontextmanager
async def _lanes(
    kubeconfig: Path, kept: Journal, verdicts: CycleVerdicts, *, count: int
) -> AsyncIterator[list[Lane]]:
    async with (
        AsyncKube(kubeconfig) as kube,
        Connections(kubeconfig) as connections,
        AgentHost() as host,
        asyncio.TaskGroup() as group,
    ):
        corners = await asyncio.gather(*(open_corner(kube, host, group) for _ in range(count)))
        among = [
            Lane(
                corner=corner,
                operators=Operators(connections, kube, corner),
                proxy=FaultProxy(session=kube.session, server=kube.server),
                journal=kept,
                verdicts=verdicts,
            )
            for corner in corners
        ]
        for lane in among:
            lane.corner.skip = lane.operators.skip
            lane.operators.gate.tell = partial(kept.note, lane.corner.name)
        running = [group.create_task(lane.operators.run()) for lane in among]
        for lane in among:
            ready = asyncio.Event()
            running.append(group.create_task(lane.proxy.run(ready.set)))
            await ready.wait()
        yield among
        for task in running:
            task.cancel()
        await asyncio.gather(*(corner.close() for corner in corners))


def judge(outcomes: Iterable[Outcome]) -> None:
    """Assert that nothing is wrong; print what the operators logged where it is."""
    bad = [outcome for outcome in outcomes if outcome.wrong]
    for outcome in bad:
        print(outcome, *outcome.log, sep="\n    ")
    assert not bad, "\n".join(map(str, bad))


async def share(
    among: Sequence[Lane], work: Iterable[Work], do: Callable[[Lane, Work], Awaitable[None]]
) -> None:
    """Do all work, each lane one after the other."""
    waiting = list(work)

    async def go_on(lane: Lane) -> None:
        while waiting:
            await do(lane, waiting.pop())

    await asyncio.gather(*map(go_on, among))


async def observe_all(
    among: Sequence[Lane], lives: Iterable[str], *, known: dict[str, Undisturbed]
) -> dict[str, Undisturbed]:
    """Every life, undisturbed; those that are not `known` are lived, and known from then on."""

    async def observe(lane: Lane, life: str) -> None:
        known[life], outcome = await lane.observe(life)
        assert not outcome.wrong, str(outcome)

    chosen = list(lives)
    await share(among, [life for life in chosen if life not in known], observe)
    return {life: known[life] for life in chosen}


Where = tuple[str, Point]
"""A life, and a point of it."""


@dataclass(kw_only=True)
class Campaign:
    """Crash points that are worked through."""

    among: Sequence[Lane]
    undisturbed: dict[str, Undisturbed]
    outcomes: list[Outcome] = field(default_factory=list[Outcome])

    @property
    def points(self) -> list[Where]:
        return [(life, point) for life, seen in self.undisturbed.items() for point in seen.points]

    def sample(self, size: int, *, seed: int) -> list[Where]:
        return random.Random(seed).sample(self.points, min(size, len(self.points)))

    async def run(self, points: Iterable[Where], *, in_one_life: int = 1) -> None:
        """End operators at these points; one that does not come has a second life to itself.

        An operator that ended before it may have changed the writes that follow.
        """

        async def crash(lane: Lane, where: tuple[str, Sequence[Point]]) -> None:
            life, among = where
            expected = self.undisturbed[life].picture
            self.outcomes.append(await lane.crash(life, among, expected))

        chosen = list(points)
        await share(self.among, self._lives(chosen, at_most=in_one_life), crash)
        await share(self.among, self._lives(self._missed(chosen), at_most=1), crash)

    def _missed(self, points: Iterable[Where]) -> list[Where]:
        """Return the points of these at which no operator has ended."""
        struck = {(outcome.life, point) for outcome in self.outcomes for point in outcome.points}
        return [where for where in points if where not in struck]

    def _lives(
        self, points: Iterable[Where], *, at_most: int
    ) -> Iterator[tuple[str, Sequence[Point]]]:
        """The points of each life in their order, dealt out so that those of one life lie apart."""
        chosen = set(points)
        for life, seen in self.undisturbed.items():
            its = [point for point in seen.points if (life, point) in chosen]
            lives = math.ceil(len(its) / at_most)
            yield from ((life, its[first::lives]) for first in range(lives))
