"""What-if questions about a large cluster: `make bench WHAT=what_if`.

500 nodes of 8 GPUs are full, and 4,000 jobs of two queues wait. The page asks several questions of
one baseline, so the baseline is not part of a question. The first question also pays imports. No
two questions about quota are equal, so each of them simulates the futures again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from drumline_cli.decide import what_if
from drumline_cli.decide.cycle import read_policy
from drumline_cli.decide.live_objects import documents
from drumline_cli.decide.what_if import Baseline, Change, MoreQuota, NewJob
from tests.unit.cli.decide.test_command import Json, a_job, a_node, a_pool, a_queue
from tools.bench.report import Row, publish

NODES: Final = 500
WAITING: Final = 4000
RUNS: Final = 5
MOST_SECONDS: Final = 1.0
NOW: Final = 1_795_500_000.0
QUESTIONS: Final[dict[str, Callable[[int], Change]]] = {
    "one more job": lambda _: NewJob(queue="q", nodes=1, gpus_per_node=8),
    "more quota": lambda number: MoreQuota(queue="q", pool="h100", gpus=64 + 8 * number),
}


def main() -> None:
    """Ask each question several times, and publish the least and the first."""
    rows: list[Row] = []
    for name, question in QUESTIONS.items():
        known = what_if.baseline(documents(_objects(), as_of=NOW), policy=read_policy(None))
        took = [_seconds(known, question(number)) for number in range(RUNS)]
        about = f"{name}, {NODES} nodes, {WAITING} jobs wait: least of {RUNS}, processor time"
        least = min(took)
        met = least <= MOST_SECONDS
        rows.append(Row(name=about, value=least, unit="s", goal=f"{MOST_SECONDS:g}", met=met))
        rows.append(Row(name="the same, first question", value=took[0], unit="s"))
    publish("what_if", rows)


def _objects() -> list[dict[str, Any]]:
    """Jobs of 1 to 4 nodes with deadlines, half of them in each of two queues."""
    objects: list[Json] = [a_pool(), *(_queue(name) for name in ("q", "other"))]
    objects += [_stored(a_node(f"n{i}", rack=f"r{i // 20}")) for i in range(NODES)]
    for i in range(NODES):
        places = {"gpuPool": "h100", "nodes": [f"n{i}"]}
        since = f"2026-11-24T{i % 24:02}:00:00Z"
        status = {"phase": "Running", "generation": 1, "admittedAt": since, "assignment": places}
        objects.append(_job(f"runs-{i}", i, nodes=1, status=status))
    blocked = {"phase": "Pending", "reason": "QuotaExhausted", "queuedAt": "2026-11-24T01:00:00Z"}
    objects += [_job(f"waits-{i}", i, nodes=1 + i % 4, status=blocked) for i in range(WAITING)]
    return objects


def _queue(name: str) -> Json:
    return _stored(a_queue(NODES * 4, name=name))


def _job(name: str, number: int, *, nodes: int, status: Json) -> Json:
    queue = ("q", "other")[number % 2]
    seconds = 3600 * (1 + number % 48)
    job = a_job(name, queue=queue, nodes=nodes, activeDeadlineSeconds=seconds, status=status)
    return _stored(job)


def _stored(raw: Json) -> Json:
    """Give an object what a server adds."""
    metadata = raw["metadata"]
    more = {"uid": f"uid-{metadata['name']}", "resourceVersion": "1"}
    more["creationTimestamp"] = "2026-11-24T00:00:00Z"
    return {**raw, "metadata": {**metadata, **more}}


def _seconds(known: Baseline, change: Change) -> float:
    begun = time.process_time()
    what_if.answer(known, change)
    return time.process_time() - begun


if __name__ == "__main__":
    main()
