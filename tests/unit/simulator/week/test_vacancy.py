"""Causes of vacant GPUs, one situation each: two nodes of 8 GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline_scheduler import (
    Admitted,
    CycleInput,
    Decisions,
    Gang,
    Node,
    Placed,
    Policy,
    Queue,
    Snapshot,
)
from drumline_simulator.week.vacancy import Vacancy, VacancyWatch, vacant
from tests.unit.simulator.clusters import a_cluster, a_job


def a_gang(name: str = "a", **more: Any) -> Gang:
    return a_job(name, **more).gang


def held(*nodes: str, gpus: int = 8) -> Admitted:
    gang = a_gang("held", nodes=len(nodes), gpus=gpus)
    return Admitted(gang=gang, pool="p", assignment=nodes)


def a_cycle(
    *pending: Gang, running: tuple[Admitted, ...] = (), quota: int = 16, closed: str = ""
) -> CycleInput:
    cluster = a_cluster(queues=(Queue(name="q", nominal={"p": quota}),))
    snapshot = Snapshot(
        nodes=tuple(_closed(node) if node.name == closed else node for node in cluster.nodes),
        pools=cluster.pools,
        queues=cluster.queues,
        admitted=running,
    )
    return CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=0)


def _closed(node: Node) -> Node:
    return replace(node, closed="goes")


def none_of(causes: dict[Vacancy, float]) -> dict[Vacancy, float]:
    return {cause: gpus for cause, gpus in causes.items() if gpus}


@pytest.mark.parametrize(
    ("cycle", "expected"),
    [
        (a_cycle(running=(held("n0"),)), {}),
        (a_cycle(a_gang(nodes=2), running=(held("n0"),)), {Vacancy.WHOLE: 8}),
        (
            a_cycle(a_gang(nodes=2), running=(held("n0", gpus=6),)),
            {Vacancy.WHOLE: 8, Vacancy.PARTS: 2},
        ),
        (a_cycle(a_gang(nodes=2), running=(held("n0"),), closed="n1"), {Vacancy.CLOSED: 8}),
        (a_cycle(a_gang(), running=(held("n0"),), quota=15), {Vacancy.QUOTA: 8}),
        (a_cycle(a_gang(), running=(held("n0"),)), {Vacancy.FITS: 8}),
        (a_cycle(a_gang(gpus=2), running=(held("n0"),)), {Vacancy.FITS: 2}),
        (
            a_cycle(
                replace(a_gang(nodes=2), nominated=("n0", "n1"), nominated_pool="p"),
                running=(held("n0"),),
            ),
            {Vacancy.KEPT: 8},
        ),
    ],
    ids=["nobody waits", "whole", "parts", "closed", "quota", "fits", "wanted", "kept"],
)
def test_a_vacant_gpu_has_a_cause(cycle: CycleInput, expected: dict[Vacancy, float]) -> None:
    assert none_of(vacant(cycle, Decisions())) == expected


def test_a_start_takes_its_nodes_and_its_quota() -> None:
    start = Placed(key="team/a", uid="a", pool="p", assignment=("n0",))
    cycle = a_cycle(a_gang(), a_gang("b", nodes=2))
    assert none_of(vacant(cycle, Decisions(placed=(start,)))) == {Vacancy.WHOLE: 8}


def test_a_watch_adds_up_the_time_between_cycles() -> None:
    watch = VacancyWatch(lambda _: Decisions())
    cycle = a_cycle(a_gang(nodes=2), running=(held("n0"),))
    for now in (10, 15, 35):
        watch(replace(cycle, now=now))
    assert none_of(watch.gpu_seconds) == {Vacancy.WHOLE: 25 * 8}
