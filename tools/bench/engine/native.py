"""The shapes of Kubernetes' own scheduler benchmark: 5,000 nodes, and where they are racks, 50."""

from __future__ import annotations

from collections.abc import Iterator

from drumline_scheduler import Decisions, Gang, Snapshot
from tools.bench.engine.shape import Shape, all_placed, milliseconds, milliseconds_each, per_second
from tools.bench.engine.worlds import empty, gangs, running, with_running

NODES = 5000
RACK = 100


def shapes() -> Iterator[Shape]:
    """Gangs of 3; gangs of 4 and of 1,000 that require one rack; one as large as the cluster."""
    for count, peer in ((1000, 3.7), (2000, 5.0), (3000, 5.7)):
        yield Shape(
            name=f"{count} gangs of 3 pods on 5,000 nodes, one rack preferred: each",
            world=lambda count=count: (
                empty(nodes=NODES, rack=RACK),
                gangs(count, pods=3, gpus=1, preferred_level="rack"),
            ),
            figure=milliseconds_each(count),
            unit="ms",
            goal=0.3,
            peer=f"native gang scheduling {peer} ms an attempt, without topology",
            expect=all_placed(count),
        )
    for count, peer in ((750, "562-630"), (1500, "526-574"), (2250, "492-547")):
        yield Shape(
            name=f"{count} gangs of 4 that require one of 50 racks, all racks scored",
            world=lambda count=count: (
                empty(nodes=NODES, rack=RACK),
                gangs(count, pods=4, gpus=1, required_level="rack"),
            ),
            figure=per_second(4 * count),
            unit="pods/s",
            goal=5000,
            at_least=True,
            peer=f"native {peer} pods/s scoring 10 % of the racks, 104-114 scoring all",
            expect=all_placed(count),
        )
    yield Shape(
        name="9 gangs of 1,000 pods that require one of 50 racks",
        world=lambda: (
            empty(nodes=NODES, rack=RACK, gpus=16),
            gangs(9, pods=1000, gpus=1, required_level="rack"),
        ),
        figure=per_second(9000),
        unit="pods/s",
        goal=20_000,
        at_least=True,
        peer="native 615-642 pods/s adaptive, 124 scoring all",
        expect=all_placed(9),
    )
    yield Shape(
        name="one gang of 5,000 pods x 8 GPUs on 5,000 nodes",
        world=lambda: (empty(nodes=NODES, rack=RACK), gangs(1, pods=NODES)),
        figure=milliseconds,
        unit="ms",
        goal=50,
        expect=all_placed(1),
    )
    yield Shape(
        name="12 nodes, leaves of 2, spines of 4, five busy: three pods belong on n5, n7, n8",
        world=_switches,
        figure=milliseconds,
        unit="ms",
        peer="knavigator's topology case: the only right answer",
        expect=_on_n5_n7_n8,
    )


def _switches() -> tuple[Snapshot, list[Gang]]:
    """Names are n1 to n12 here, in the order of `empty`."""
    nodes = empty(nodes=12, rack=2, levels=2, fan=2)
    busy = tuple(
        running(f"busy-{i}", on=(f"node-{i - 1:05}",), gpus=8, at_risk=0.0)
        for i in (1, 3, 6, 11, 12)
    )
    return with_running(nodes, busy), gangs(1, pods=3, preferred_level="rack")


def _on_n5_n7_n8(decisions: Decisions) -> str:
    if not decisions.placed:
        return "not placed"
    chosen = {int(name.removeprefix("node-")) + 1 for name in decisions.placed[0].assignment}
    return "" if chosen == {5, 7, 8} else f"on {sorted(chosen)}"
