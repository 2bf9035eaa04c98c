"""Peers beside us: the same gang in the words of each, the turns' ratios, Kueue's baseline."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from drumline.kube.kinds import JOBS, PODS
from tools.bench.engine.virtual import SHAPES
from tools.bench.load import StalledError, Timed, of_round
from tools.bench.peers import baseline, objects
from tools.bench.peers.objects import Json, Made
from tools.bench.peers.programs import volcano_configuration, watched
from tools.bench.peers.ratios import Failed, ratio_text, rows, seconds_of
from tools.bench.shapes import HIGH, Shape, peers_shapes, shapes_of
from tools.cluster.model import ClusterError
from tools.cluster.process import spawn

NODES = 60
ALL = (*shapes_of(NODES, singles=20), *peers_shapes(NODES))
SIDES = {
    "native": objects.native,
    "kueue": objects.kueue,
    "volcano": objects.volcano,
    "kai": objects.kai,
}


def timed(seconds: float) -> Timed:
    return Timed(seconds=seconds, cpu_seconds={"kube-apiserver": 2 * seconds})


def pods_in(made: Made) -> int:
    """Pods of an object: itself, or those that a controller creates from it."""
    count = 0
    for kind, body in made:
        if kind == PODS:
            count += 1
        elif kind == JOBS:
            count += body["spec"]["parallelism"]
        elif kind == objects.VOLCANO_JOBS:
            count += body["spec"]["tasks"][0]["replicas"]
    return count


@pytest.mark.parametrize("shape", ALL, ids=lambda shape: shape.name)
@pytest.mark.parametrize("side", SIDES)
def test_every_side_gets_the_pods_of_the_shape_with_names_of_the_round(
    side: str, shape: Shape
) -> None:
    make = SIDES[side]
    first = [made for job in of_round(shape.jobs(), 1) for made in make(job)]
    assert pods_in(first) == shape.pods
    second = [made for job in of_round(shape.jobs(), 2) for made in make(job)]
    names = [(kind.plural, body["metadata"]["name"]) for kind, body in (*first, *second)]
    assert len(set(names)) == len(names)
    before = [made for job in of_round(shape.before(), 3) for made in make(job)]
    assert pods_in(before) in {0, NODES, 8 * NODES}


def spec_of(made: Made) -> Json:
    return made[0][1]["spec"]


def test_a_gang_in_one_rack_asks_each_side_for_the_same_rack() -> None:
    racks = next(shape for shape in ALL if shape.name == "racks")
    job = racks.jobs()[0]
    label = "drumline.dev/rack"
    assert spec_of(objects.native(job))["schedulingConstraints"] == {"topology": [{"key": label}]}
    assert spec_of(objects.kai(job))["topologyConstraint"]["requiredTopologyLevel"] == label
    assert spec_of(objects.volcano(job))["networkTopology"]["mode"] == "hard"
    ((_, suspended),) = objects.kueue(job)
    annotations = suspended["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {"kueue.x-k8s.io/podset-required-topology": label}
    assert suspended["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "racks"


def test_volcano_may_evict_the_pods_of_the_full_cluster() -> None:
    preempt = next(shape for shape in ALL if shape.name == "preempt")
    for job in (preempt.before()[0], preempt.jobs()[0]):
        ((_, made),) = objects.volcano(job)
        assert made["metadata"]["annotations"] == {"volcano.sh/preemptable": "true"}


def test_only_kueues_pods_have_no_priority_of_their_own() -> None:
    preempt = next(shape for shape in ALL if shape.name == "preempt")
    job = preempt.jobs()[0]
    for make in (objects.native, objects.kai):
        assert {body["spec"]["priorityClassName"] for _, body in make(job)} == {HIGH}
    ((_, suspended),) = objects.kueue(job)
    assert "priorityClassName" not in suspended["spec"]["template"]["spec"]
    assert suspended["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == HIGH


@pytest.mark.parametrize(
    ("preempts", "racks", "actions"),
    [(False, True, "enqueue, allocate, backfill"), (True, False, "allocate, preempt, backfill")],
)
def test_volcano_is_configured_as_shipped_but_for_what_the_shape_needs(
    actions: str, *, preempts: bool, racks: bool
) -> None:
    text = volcano_configuration(preempts=preempts, racks=racks)
    assert f"actions: {actions}\n" in text
    assert ("network-topology-aware" in text) is racks


def test_a_ratio_is_of_medians_with_the_range_of_the_turns() -> None:
    ours, peer = [timed(2), timed(3), timed(4)], [timed(4), timed(4), timed(5)]
    assert ratio_text(ours, peer) == "0.75 x (0.50 to 0.80)"
    assert ratio_text(ours, [Failed(why="stalled")] * 3) == ""
    assert ratio_text([*ours[:2], Failed(why="stalled")], peer) == "0.62 x (0.50 to 0.75)"
    assert seconds_of([Failed(why="stalled")]) is None


def test_the_best_peer_is_one_whose_rounds_all_ended() -> None:
    rounds = {
        "Drumline": [timed(1), timed(1)],
        "native": [timed(1.5), Failed(why="StalledError: 3 pods")],
        "Volcano": [timed(4), timed(4)],
    }
    versions = dict.fromkeys(rounds, "1")
    result = list(rows("gang", "one gang", rounds, versions=versions, whole=True))
    best = result[-1]
    assert (best.name, best.value, best.met) == ("  beside the best peer, Volcano", 0.25, True)
    (native,) = (row for row in result if row.name == "  native 1")
    assert "1 of 2 rounds failed: StalledError: 3 pods" in native.peer
    small = list(rows("gang", "one gang", rounds, versions=versions, whole=False))
    assert small[-1].met is None


@pytest.mark.parametrize("make", [baseline.batch_job, baseline.workload])
def test_a_job_of_the_baseline_asks_kueue_for_the_units_of_its_class(
    make: Callable[..., Json],
) -> None:
    large = next(kind for kind in SHAPES["baseline"].classes if kind.name == "large")
    job = make(large, "cohort-0-1", "large-0-1-7")
    spec = job["spec"]
    template = spec["template"] if "template" in spec else spec["podSets"][0]["template"]
    (container,) = template["spec"]["containers"]
    assert container["resources"]["requests"] == {"nvidia.com/gpu": "20"}
    queue = spec.get("queueName") or job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    assert queue == "cohort-0-1"


def test_the_queues_of_the_baseline_borrow_within_their_cohort() -> None:
    made = baseline.kueue_setting()
    queues = [each for each in made if each["kind"] == "ClusterQueue"]
    assert len(queues) == 30
    assert {queue["spec"]["cohortName"] for queue in queues} == {f"cohort-{c}" for c in range(5)}
    (flavor,) = queues[0]["spec"]["resourceGroups"][0]["flavors"]
    assert flavor["resources"] == [
        {"name": "nvidia.com/gpu", "nominalQuota": 20, "borrowingLimit": 100}
    ]


def condition(name: str, state: str) -> Json:
    return {"type": name, "status": state, "lastTransitionTime": "2026-11-29T12:00:00Z"}


def test_an_evicted_workload_is_released_once_and_an_admitted_one_ends() -> None:
    admitted = {"conditions": [condition("QuotaReserved", "True"), condition("Admitted", "True")]}
    assert baseline.kueue_admission(admitted) == "2026-11-29T12:00:00Z"
    assert baseline.kueue_release(admitted) is None
    ended = baseline.kueue_end(admitted)["conditions"]
    assert [each["type"] for each in ended] == ["QuotaReserved", "Admitted", "Finished"]
    evicted = {"conditions": [*admitted["conditions"], condition("Evicted", "True")]}
    released = baseline.kueue_release(evicted)
    assert released is not None
    assert released["admission"] is None
    assert baseline.kueue_release(released) is None
    assert baseline.kueue_admission(released) == ""


def test_a_training_job_is_admitted_while_it_has_nodes_and_none_evicts_it() -> None:
    assert baseline.our_admission({"phase": "Pending"}) == ""
    placed = {"generation": 2, "assignment": {"nodes": ["fake-1"]}}
    assert baseline.our_admission(placed) == "2"
    assert baseline.our_admission({**placed, "disruption": {"kind": "Preemption"}}) == ""


def test_a_turn_ends_at_once_when_a_program_of_it_ends(tmp_path: Path) -> None:
    async def turn() -> None:
        spawn(["/bin/sh", "-c", "read line < go; echo no such flag"], folder=tmp_path, role="peer")
        async with watched(tmp_path):
            await asyncio.to_thread((tmp_path / "go").write_text, "now\n")
            await asyncio.Event().wait()

    os.mkfifo(tmp_path / "go")
    with contextlib.chdir(tmp_path), pytest.raises(ClusterError, match="peer ended: no such flag"):
        asyncio.run(turn())


def test_what_stalls_a_turn_is_raised_as_it_is(tmp_path: Path) -> None:
    async def turn() -> None:
        async with watched(tmp_path):
            raise StalledError("3 of 4 pods")

    with pytest.raises(StalledError, match="3 of 4 pods"):
        asyncio.run(turn())
