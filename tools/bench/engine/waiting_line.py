"""What it costs to give everybody in a long line an expected start, in the cycle that rejects them.

A cluster of which every GPU is held, and 5,000 jobs that wait. All of them are new at first: a new
leader's case. Then one more comes: what each new job costs. Processor time, not wall time.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from statistics import median
from time import process_time

from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.queues.usage_history import QueueUsageHistory
from drumline.controller.scheduler.forecasts import Forecasts
from drumline.controller.state.cluster import ClusterCache
from drumline.telemetry.metrics import Metrics
from drumline_scheduler import CycleInput, Policy, decide
from drumline_scheduler.decisions import Blocked, BlockReason
from tools.bench.engine import worlds
from tools.bench.report import Row

WAITING = 5000
NODES = 1250
NOW = 100_000.0


def rows() -> list[Row]:
    """The figures."""
    return asyncio.run(_measured())


async def _measured() -> list[Row]:
    snapshot = worlds.full(nodes=NODES, pods=2)
    snapshot = replace(
        snapshot,
        admitted=tuple(
            replace(
                held,
                admitted_at=NOW - 60.0 * (number % 100),
                gang=replace(held.gang, max_runtime_seconds=4 * 3600.0, priority=1),
            )
            for number, held in enumerate(snapshot.admitted)
        ),
    )
    pending = worlds.gangs(WAITING, pods=2, max_runtime_seconds=3600.0)
    line = decide(CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=NOW)).blocked
    forecasts = Forecasts(
        state=ClusterCache(nodes=NodeCache(clock=lambda: NOW)),
        usage=QueueUsageHistory(half_life=3600.0),
        policy=Policy(),
        clock=lambda: NOW,
        wake=lambda: None,
        caught_up=_at_once,
        metrics=Metrics().forecasts,
    )
    began = process_time()
    forecasts.add_rough_forecasts(line, snapshot=snapshot, pending=pending, now=NOW)
    everybody = process_time() - began
    took: list[float] = []
    for number in range(100):
        (new,) = worlds.gangs(1, pods=2, key=f"team/new-{number}", uid=f"new-{number}")
        pending.append(new)
        rejected = Blocked(
            key=new.key, uid=new.uid, reason=BlockReason.INSUFFICIENT_GPUS, message=""
        )
        line = (*line, rejected)
        began = process_time()
        forecasts.add_rough_forecasts(line, snapshot=snapshot, pending=pending, now=NOW)
        took.append(process_time() - began)
    without = sum(forecasts.of(gang.uid) is None for gang in pending)
    return [
        Row(
            name=f"{WAITING} waiting jobs, all new: an expected start for each",
            value=1000 * everybody,
            unit="ms",
        ),
        Row(
            name="the same, jobs left without one",
            value=without,
            unit="",
            goal="0",
            met=not without,
        ),
        Row(
            name=f"one more comes to {WAITING}: its expected start, median of 100",
            value=1000 * median(took),
            unit="ms",
            goal="<= 30 ms",
            met=median(took) <= 0.03,
        ),
    ]


async def _at_once() -> None:
    """Nothing to catch up with."""
