"""How the cost of a cycle grows: three sizes, and the power of the size that it follows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from drumline_scheduler import CycleInput, Gang, Policy, Snapshot, decide
from tools.bench.engine.worlds import empty, full, gangs, pod
from tools.bench.report import FOLDER, Row

MOST = 1.15
"""A power of 1 is linear; the rest is for the noise of three small measurements."""
ROUNDS = 5
WIDTH = 50


def rows() -> list[Row]:
    """Nodes at equal waiting shapes, and waiting shapes at equal nodes."""
    return [
        _grown("nodes", (1250, 2500, 5000), lambda size: (empty(nodes=size), _shapes(200))),
        _grown(
            "waiting shapes that start",
            (250, 500, 1000),
            lambda size: (empty(nodes=4000), _shapes(size)),
        ),
        _grown(
            "waiting shapes that are refused",
            (250, 500, 1000),
            lambda size: (full(nodes=1000, pods=4), _shapes(size)),
        ),
        _grown(
            "waiting gangs of one shape",
            (2500, 5000, 10_000),
            lambda size: (empty(nodes=1000), gangs(size, pods=4)),
        ),
    ]


def _shapes(count: int) -> list[Gang]:
    """Gangs of which no two ask for the same, each of about four nodes of 8 GPUs."""
    return [
        replace(item, per_pod=replace(pod(8), cpu_millis=8000 + i), required_level="rack")
        for i, item in enumerate(gangs(count, pods=4))
    ]


def _grown(
    what: str, sizes: Sequence[int], world: Callable[[int], tuple[Snapshot, list[Gang]]]
) -> Row:
    took = [_milliseconds(*world(size)) for size in sizes]
    power = math.log(took[-1] / took[0]) / math.log(sizes[-1] / sizes[0])
    _plot(what, sizes, took)
    points = ", ".join(f"{size}: {ms:.0f} ms" for size, ms in zip(sizes, took, strict=True))
    return Row(
        name=f"power of the number of {what} that a cycle costs ({points})",
        value=power,
        unit="",
        goal=f"<= {MOST}",
        met=power <= MOST,
    )


def _milliseconds(snapshot: Snapshot, pending: list[Gang]) -> float:
    took: list[float] = []
    for _ in range(ROUNDS):
        start = time.process_time()
        decide(CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=0.0))
        took.append(1000 * (time.process_time() - start))
    return median(took)


def _plot(what: str, sizes: Sequence[int], took: Sequence[float]) -> None:
    """Bars as long as the time; the dot is where a linear cost would end."""
    longest = max(*took, took[0] * sizes[-1] / sizes[0])
    lines = [f"milliseconds of a cycle by number of {what} (. = linear)"]
    for size, ms in zip(sizes, took, strict=True):
        linear = round(WIDTH * took[0] * size / sizes[0] / longest)
        bar = ("#" * round(WIDTH * ms / longest)).ljust(WIDTH + 1)
        lines.append(f"{size:>7} |{bar[:linear]}.{bar[linear + 1 :]} {ms:.0f}")
    text = "\n".join(lines)
    print(text, flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    Path(FOLDER / f"growth_{what.replace(' ', '_')}.txt").write_text(text + "\n")
