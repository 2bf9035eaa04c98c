"""The shapes of KAI's scale tests and engine benches, and Kueue's worst case of preemption."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from drumline_scheduler import Decisions, Gang, MoveBudget, Policy
from tools.bench.engine.shape import Shape, all_placed, milliseconds
from tools.bench.engine.worlds import empty, full_of_gangs, full_of_small, gangs, three_of_eight

GENEROUS = Policy(moves=MoveBudget(gangs=100_000, gpu_seconds=1e9))


def shapes() -> Iterator[Shape]:
    """Filling, reclaiming, refusing and consolidating a cluster of 8-GPU nodes."""
    yield Shape(
        name="500 nodes filled by 4,000 one-GPU jobs",
        world=lambda: (empty(nodes=500), gangs(4000, pods=1, gpus=1)),
        figure=milliseconds,
        unit="ms",
        peer="KAI 397.8 s end to end",
        expect=all_placed(4000),
    )
    yield Shape(
        name="512 nodes in 3 levels, one gang of 512 pods x 2 GPUs, one rack preferred",
        world=lambda: (
            empty(nodes=512, rack=2, levels=3),
            gangs(1, pods=512, gpus=2, preferred_level="rack"),
        ),
        figure=milliseconds,
        unit="ms",
        peer="KAI 48.7 s end to end",
        expect=all_placed(1),
    )
    for nodes, goal, peer in ((500, 800, "9.2 s"), (1000, 3000, "76.3 s")):
        yield Shape(
            name=f"{nodes} nodes full of one-GPU jobs, {nodes // 2} x 8 GPUs reclaimed",
            world=lambda nodes=nodes: (
                full_of_small(nodes=nodes, deserved=0),
                gangs(1, pods=nodes // 2),
            ),
            figure=milliseconds,
            unit="ms",
            goal=goal,
            peer=f"KAI's engine {peer}",
            expect=sends_away(4 * nodes),
        )
    for level, runs in product((None, "rack"), (True, False)):
        yield Shape(
            name="1,000 nodes, 10 x 8 GPUs, 1 GPU too few to reclaim"
            + (", one rack required" if level else "")
            + ("" if runs else ": an operator's first cycle"),
            world=lambda level=level: (
                full_of_small(nodes=1000, deserved=8000 - 79),
                gangs(1, pods=10, required_level=level),
            ),
            already=_one_waits if runs else None,
            figure=milliseconds,
            unit="ms",
            goal=10 if runs else None,
            peer="KAI 249.5 s end to end at 500 nodes",
            expect=sends_away(0),
        )
    yield Shape(
        name="500 nodes full of one-GPU jobs, one more job reclaims one",
        world=lambda: (full_of_small(nodes=500, deserved=0), gangs(1, pods=1, gpus=1)),
        figure=milliseconds,
        unit="ms",
        peer="KAI 13.9 s end to end",
        expect=sends_away(1),
    )
    yield Shape(
        name="500 nodes full of one-GPU jobs, 50 gangs of 10 x 5 GPUs reclaim",
        world=lambda: (full_of_small(nodes=500, deserved=0), gangs(50, pods=10, gpus=5)),
        figure=milliseconds,
        unit="ms",
        peer="KAI 716.9 s end to end",
        expect=sends_away(2500),
    )
    yield Shape(
        name="2,000 nodes, 700 candidates, a gang of 16 that requires one rack",
        world=lambda: (
            full_of_gangs(nodes=2100, pods=3),
            gangs(1, pods=16, required_level="rack"),
        ),
        figure=milliseconds,
        unit="ms",
        goal=500,
        peer="Kueue cycles of 40 s",
        expect=lambda decisions: "" if decisions.preemptions else "nobody was sent away",
    )
    yield Shape(
        name="512 nodes, 64 gangs of 4 preempt 64 of 128",
        world=lambda: (full_of_gangs(nodes=512, pods=4), gangs(64, pods=4)),
        figure=milliseconds,
        unit="ms",
        expect=sends_away(64),
    )
    yield Shape(
        name="500 nodes, 3 of 8 jobs left on each, 41 gangs of 10 x 6 GPUs by moves",
        world=lambda: (three_of_eight(nodes=500), gangs(41, pods=10, gpus=6)),
        figure=milliseconds,
        unit="ms",
        goal=2000,
        peer="KAI 455.7 s end to end",
        policy=GENEROUS,
        expect=_all_have_places,
    )


def _one_waits() -> list[Gang]:
    """Somebody who was refused in the cycle before."""
    return gangs(1, pods=12, key="team/earlier", uid="uid-earlier")


def sends_away(count: int) -> Callable[[Decisions], str]:
    """Whether so many running gangs have to go."""

    def problem(decisions: Decisions) -> str:
        gone = sum(len(preemption.victims) for preemption in decisions.preemptions)
        return "" if gone == count else f"{gone} sent away, not {count}"

    return problem


def _all_have_places(decisions: Decisions) -> str:
    served = len(decisions.placed) + len(decisions.preemptions)
    return "" if served == 41 else f"{served} of 41 gangs get places"
