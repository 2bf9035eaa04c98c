"""An exception on one gang takes no forecast from the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from drumline_scheduler import CycleInput, Policy, decide
from drumline_scheduler.admission import Admission
from drumline_scheduler.decisions import GangFault
from drumline_scheduler.forecast.cluster import ForecastCluster
from drumline_scheduler.forecast.expected_starts import ExpectedStart, expected_starts
from drumline_scheduler.forecast.isolation import OnFault, ignored
from drumline_scheduler.forecast.lines import CANNOT_START, Lines
from drumline_scheduler.forecast.rough_starts import rough_starts
from drumline_scheduler.overdue_gangs import staying
from tests.property.planted_faults import (
    CallSite,
    Place,
    PlantedError,
    cycle_of,
    first_gang,
    first_held,
    planted,
    some_world,
    traced,
)
from tests.unit.scheduler.builders import after, cluster, gang, racks, run

pytestmark = pytest.mark.extended(keep=4)

ADMIT = Place(owner=Admission, method="admit", uids=first_gang)
WORLDS = (7, 26, 36, 131, 199)
"""Worlds with running gangs that end, grow and are preempted in a forecast."""


def test_a_forecast_tries_a_bad_job_no_more_often_than_one_cycle() -> None:
    snapshot = cluster(*racks(count=1, nodes=2))
    bad, good = gang("bad", at=0), [gang(f"g{i}", gpus=2, at=1.0 + i) for i in range(4)]
    with planted(ADMIT, bad.uid) as raised:
        starts = expected_starts(
            CycleInput(snapshot=snapshot, pending=(bad, *good), policy=Policy(), now=0.0), samples=8
        )
    assert {start.uid for start in starts} == {each.uid for each in good}
    assert raised[bad.uid] == 2


BETWEEN_CYCLES = [
    Place(owner=Lines, method="of", uids=first_gang),
    Place(owner=ForecastCluster, method="_hold", uids=first_held),
]


@pytest.mark.parametrize("place", BETWEEN_CYCLES, ids=str)
def test_a_forecast_leaves_out_a_job_on_which_it_raises_between_its_cycles(place: Place) -> None:
    snapshot = cluster(*racks(count=1, nodes=2))
    jobs = [gang(f"g{i}", gpus=2, at=float(i)) for i in range(4)]
    cycle = CycleInput(snapshot=snapshot, pending=tuple(jobs), policy=Policy(), now=0.0)
    with planted(place, jobs[1].uid) as raised:
        starts = expected_starts(cycle, samples=4)
    assert raised[jobs[1].uid] == 1
    assert starts == expected_starts(replace(cycle, pending=(jobs[0], *jobs[2:])), samples=4)


def in_forecast(file: str) -> bool:
    return Path(file).parent.name == "forecast"


def planted_everywhere(
    forecast: Callable[[CycleInput, OnFault], Sequence[ExpectedStart]], number: int
) -> int:
    """Plant an exception in each function of a forecast that is called about a gang.

    Return the number of functions.
    """
    given = cycle_of(some_world(number))
    running = {held.gang.uid for held in given.snapshot.admitted}
    uids = running | {each.uid for each in given.pending}
    sites = dict[CallSite, int]()
    with traced(sites, files=in_forecast, uids=uids):
        forecast(given, ignored)
    chosen = {site.code: site for site in Random(number).sample(list(sites), len(sites))}
    for site in chosen.values():
        faults = list[GangFault]()
        # An exception ends the tracing, so it is raised once. What is left out stays left out.
        with traced({}, raising=site, files=in_forecast, uids=uids):
            starts = forecast(given, faults.append)
        assert [fault.uid for fault in faults] == [site.uid], site
        assert faults[0].stage == "forecast"
        assert faults[0].error.startswith("PlantedError: planted")
        # A gang that waits is left out. One that runs stays where it is.
        assert starts == forecast(
            replace(
                given,
                pending=tuple(each for each in given.pending if each.uid != site.uid),
                snapshot=replace(
                    given.snapshot,
                    admitted=tuple(
                        staying(held) if held.gang.uid == site.uid else held
                        for held in given.snapshot.admitted
                    ),
                ),
            ),
            ignored,
        ), site
    return len(chosen)


@pytest.mark.parametrize("number", WORLDS)
def test_an_exception_anywhere_in_a_simulated_forecast_leaves_the_others_alone(
    number: int,
) -> None:
    """The functions are those that the forecast calls, so a new one is planted, too."""

    def forecast(given: CycleInput, on_fault: OnFault) -> Sequence[ExpectedStart]:
        return expected_starts(given, samples=1, on_fault=on_fault)

    assert planted_everywhere(forecast, number) >= 7


@pytest.mark.parametrize("number", WORLDS)
def test_an_exception_anywhere_in_a_rough_forecast_leaves_the_others_alone(number: int) -> None:
    given = cycle_of(some_world(number))
    line = [each for each in decide(given).blocked if each.reason not in CANNOT_START]

    def forecast(given: CycleInput, on_fault: OnFault) -> Sequence[ExpectedStart]:
        return rough_starts(
            snapshot=given.snapshot,
            waiting={each.uid: each for each in given.pending},
            line=line,
            known={},
            now=given.now,
            on_fault=on_fault,
        )

    assert planted_everywhere(forecast, number) >= 1


@pytest.mark.parametrize("method", ["_end_with_work", "_hold"])
def test_a_running_job_on_which_a_forecast_raises_counts_as_staying(method: str) -> None:
    start = cluster(*racks(count=1, nodes=2))
    running = [gang(f"r{i}", nodes=1, gpus=2, max_runtime_seconds=600.0) for i in range(2)]
    snapshot = after(start, running, run(start, *running))
    waits = gang("w", nodes=2, gpus=2, at=5.0)
    given = CycleInput(snapshot=snapshot, pending=(waits,), policy=Policy(), now=0.0)
    faults = list[GangFault]()
    place = Place(owner=ForecastCluster, method=method, uids=first_held)
    with planted(place, *(each.uid for each in running[:1])):
        (starts,) = expected_starts(given, samples=4, on_fault=faults.append)
    if method == "_hold":  # of gangs that change: this one does not
        assert (starts.never, faults) == (False, [])
        return
    assert starts.never, "it needs the place of the job that stays"
    assert [(fault.key, fault.stage) for fault in faults] == [(running[0].key, "forecast")]


def test_a_forecast_that_no_gang_explains_fails() -> None:
    given = CycleInput(
        snapshot=cluster(*racks(count=1, nodes=2)),
        pending=tuple(gang(f"g{i}", gpus=2, at=float(i)) for i in range(4)),
        policy=Policy(),
        now=0.0,
    )
    place = Place(owner=Lines, method="heads", uids=lambda *_, **__: ["x"])
    with planted(place, "x"), pytest.raises(PlantedError):
        expected_starts(given, samples=1)
