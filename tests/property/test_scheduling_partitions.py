"""Whole GPUs and parts of them on the same nodes: nothing overcommits, and charges are exact.

The worlds are made by the conversion of nodes and jobs that the operator uses, so what is counted
here by resource name is what a kubelet would count.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.controller.jobs.conversion import gang_of
from drumline.controller.nodes.conversion import node_of, pool_of
from drumline_api.gpupool import GpuPoolSpec
from drumline_scheduler import Admitted, CycleInput, Gang, Queue, Snapshot, decide
from drumline_scheduler.decisions import BlockReason
from drumline_scheduler.model import Policy
from drumline_scheduler.resources import NOTHING
from tests.builders import a_job
from tests.property.invariants import violations
from tests.property.scale import many
from tests.unit.controller.views import node_view

WHOLE, SMALL, LARGE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
PARTS = {WHOLE: 7, SMALL: 1, LARGE: 3}
MIXED = GpuPoolSpec.model_validate(
    {
        "nodeSelector": {"pool": "mixed"},
        "partitions": {
            "partsPerGpu": PARTS[WHOLE],
            "resources": [
                {"resource": SMALL, "parts": PARTS[SMALL]},
                {"resource": LARGE, "parts": PARTS[LARGE]},
            ],
        },
    }
)
Asked = tuple[str, int]
"""A resource, and how many pods of one each, or for whole GPUs one pod with so many."""


@st.composite
def jobs(draw: st.DrawFn) -> list[tuple[str, Asked]]:
    asked = st.tuples(st.sampled_from([WHOLE, SMALL, SMALL, LARGE]), st.integers(1, 4))
    return draw(st.lists(st.tuples(st.sampled_from(["a", "b"]), asked), min_size=1, max_size=8))


offered = st.fixed_dictionaries(
    {WHOLE: st.integers(0, 3), SMALL: st.integers(0, 7), LARGE: st.integers(0, 2)}
)


@settings(max_examples=many(150, 3000), derandomize=True, deadline=None)
@given(
    nodes=st.lists(offered, min_size=1, max_size=3),
    waves=st.lists(jobs(), min_size=1, max_size=3),
    nominal=st.fixed_dictionaries({"a": st.integers(0, 30), "b": st.integers(0, 30)}),
    is_cohort=st.booleans(),
)
def test_no_resource_is_overcommitted_and_every_part_is_charged(
    nodes: list[dict[str, int]],
    waves: list[list[tuple[str, Asked]]],
    nominal: dict[str, int],
    is_cohort: bool,
) -> None:
    queues = tuple(
        Queue(name=name, nominal={"mixed": parts}, parent="both" if is_cohort else None)
        for name, parts in nominal.items()
    )
    both = (Queue(name="both", nominal={}),) if is_cohort else ()
    bare = [
        node_of(_view(f"n{i}", amounts), pool="mixed", spec=MIXED, used=NOTHING)
        for i, amounts in enumerate(nodes)
    ]
    held: tuple[Admitted, ...] = ()
    asked_by: dict[str, tuple[str, Asked]] = {}
    for number, wave in enumerate(waves):
        pending = [_gang(f"{number}-{i}", *each) for i, each in enumerate(wave)]
        asked_by |= {gang.uid: each for gang, each in zip(pending, wave, strict=True)}
        snapshot = Snapshot(
            nodes=tuple(replace(node, used=_used(node.name, held)) for node in bare),
            pools=(pool_of("mixed", MIXED),),
            queues=(*queues, *both),
            admitted=held,
        )
        decisions = decide(CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=0.0))
        assert violations(snapshot=snapshot, pending=pending, decisions=decisions) == ()
        gangs = {gang.uid: gang for gang in pending}
        held += tuple(
            Admitted(gang=gangs[placed.uid], pool="mixed", assignment=placed.assignment)
            for placed in decisions.placed
        )
        _check(nodes, held, asked_by, nominal, is_cohort=is_cohort)
        _check_waiting(nodes, held, {b.uid: b.reason for b in decisions.blocked}, asked_by)


def _check(
    nodes: list[dict[str, int]],
    held: tuple[Admitted, ...],
    asked_by: dict[str, tuple[str, Asked]],
    nominal: dict[str, int],
    *,
    is_cohort: bool,
) -> None:
    taken, charged = _taken(held, asked_by), Counter[str]()
    for each in held:
        queue, (resource, count) = asked_by[each.gang.uid]
        charged[queue] += PARTS[resource] * count
        assert each.gpus == PARTS[resource] * count
    for i, amounts in enumerate(nodes):
        assert all(taken[f"n{i}", name] <= count for name, count in amounts.items())
    if is_cohort:
        assert charged.total() <= sum(nominal.values())
    else:
        assert all(charged[name] <= parts for name, parts in nominal.items())


def _check_waiting(
    nodes: list[dict[str, int]],
    held: tuple[Admitted, ...],
    reasons: dict[str, BlockReason],
    asked_by: dict[str, tuple[str, Asked]],
) -> None:
    """What waits for GPUs finds too few of its own kind, however many parts are free."""
    taken = _taken(held, asked_by)
    for uid, reason in reasons.items():
        if reason in (BlockReason.INSUFFICIENT_GPUS, BlockReason.INSUFFICIENT_RESOURCES):
            resource, count = asked_by[uid][1]
            free = [amounts[resource] - taken[f"n{i}", resource] for i, amounts in enumerate(nodes)]
            assert max(free) < count if resource == WHOLE else sum(free) < count


def _taken(
    held: tuple[Admitted, ...], asked_by: dict[str, tuple[str, Asked]]
) -> Counter[tuple[str, str]]:
    taken = Counter[tuple[str, str]]()
    for each in held:
        resource, count = asked_by[each.gang.uid][1]
        for name in each.assignment:
            taken[name, resource] += count if resource == WHOLE else 1
    return taken


def _gang(name: str, queue: str, asked: Asked) -> Gang:
    resource, count = asked
    shape: dict[str, Any] = (
        {"nodes": 1, "gpusPerNode": count}
        if resource == WHOLE
        else {"nodes": count, "gpusPerNode": 1, "gpuPartition": resource}
    )
    job = replace(a_job(queue=queue, gpuPool="mixed", **shape), name=name, uid=name)
    return gang_of(job, priority=0, pool=MIXED)


def _view(name: str, amounts: dict[str, int]) -> Any:
    plain = {"cpu": 1_000_000, "memory": 2**40, "pods": 110}
    return node_view(name, labels={"pool": "mixed"}, allocatable={**plain, **amounts})


def _used(name: str, held: tuple[Admitted, ...]) -> Any:
    total = NOTHING
    for each in held:
        total += each.gang.per_pod.times(each.assignment.count(name))
    return total
