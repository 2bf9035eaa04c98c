"""Scheduler, lifecycle and executor in every order of steps: 3 jobs, 3 nodes, up to 2 crashes.

From an empty cluster all states are visited that any order of these steps leads to: a cycle of the
scheduler; a reconcile of a job; an operator that ends in the middle of those, twice in a history; a
pod starts, ends well, fails, vanishes, or is gone after it was deleted; the most important job is
submitted. In each state I1 and I2 hold and no member is there twice; the decisions keep their
invariants, and nothing is created before the status that says so. From each there is a way on until
all jobs are over (I7), and the operator alone never goes round in circles.

Not played here: caches that are behind (the operator sees its own writes at once), time, agents.
`tests/integration/operator/loss` has those.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.reconciler import executor
from tests.property import tiny_operator
from tests.property.exploration import Bounds, Exploration, Wrong
from tests.property.scale import ALL
from tests.property.tiny_cluster import a_job
from tests.seeds import seed_of

pytestmark = pytest.mark.extended(keep=2)

EVERY_DAY = (Bounds(crashes=2, faults=0, quota=16), Bounds(crashes=0, faults=0, quota=24))
WHOLE = (
    Bounds(crashes=2, faults=0, quota=24),
    Bounds(crashes=2, faults=0, quota=16),
    Bounds(crashes=1, faults=1, quota=16),
)
"""With 24 GPUs the nodes are what is short; with 16 a node stays empty."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


def exploration(bounds: Bounds) -> Exploration:
    return Exploration(
        submitted={"first": a_job("first", nodes=2), "second": a_job("second", nodes=1)},
        coming={"urgent": a_job("urgent", nodes=2, priority="high")},
        bounds=bounds,
    )


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("bounds", WHOLE if ALL else EVERY_DAY, ids=str)
def test_no_order_of_steps_and_crashes_breaks_an_invariant_or_ends_in_a_dead_end(
    bounds: Bounds,
) -> None:
    explored, before = exploration(bounds), time.process_time()
    situations = explored.run()
    seconds = time.process_time() - before
    print(
        f"{bounds}: {situations} states, {explored.steps.total()} steps, of which the operator"
        f" took {explored.computed}: {dict(explored.steps)}; {seconds:.0f} s of CPU"
    )


def test_a_reconcile_does_not_depend_on_other_jobs() -> None:
    """What lets its result be computed once for each state of its job."""
    bounds = Bounds(crashes=0, faults=0, quota=16)
    explored = exploration(bounds)
    explored.run()
    for states in explored.some_clusters(20, seed=seed_of("EXPLORATION_SEED")):
        for name, state in states.items():
            whole = tiny_operator.reconcile(name, states, quota=bounds.quota)
            alone = tiny_operator.reconcile(name, {name: state}, quota=bounds.quota)
            assert whole.after == {**states, **alone.after}
            assert [cut[name] for cut in whole.cut] == [cut[name] for cut in alone.cut]


# --- what looks for faults finds them ----------------------------------------------------------


def finds(words: str, *, crashes: int, quota: int) -> None:
    with pytest.raises(Wrong, match=words):
        exploration(Bounds(crashes=crashes, faults=0, quota=quota)).run()


def test_quota_that_is_free_before_the_pods_have_gone_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(NodeCache, "charged", lambda _: ())
    finds("GPUs of a quota of 16", crashes=0, quota=16)


def test_a_node_that_is_given_away_before_its_pod_has_gone_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = NodeCache.on_pod

    def early(self: NodeCache, old: Any, new: Any) -> None:
        if new is None or not new.terminating:
            right(self, old, new)
        elif old is not None:
            right(self, old, None)

    monkeypatch.setattr(NodeCache, "on_pod", early)
    finds("is given away 2 times", crashes=0, quota=24)


def test_pods_that_are_created_twice_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an operator that creates the whole gang again, under other names."""
    right, numbers = executor.pod_manifests, itertools.count()

    def again(job: Any, *, indices: Any, **rest: Any) -> list[Any]:
        manifests = right(job, indices=tuple(range(job.spec.nodes)), **rest) if indices else []
        for manifest in manifests:
            manifest["metadata"]["name"] += f"-{next(numbers)}"
        return manifests

    monkeypatch.setattr(executor, "pod_manifests", again)
    finds(r"member \d is there 2 times", crashes=1, quota=24)


def test_victims_that_never_leave_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def kept(*_: Any, **__: Any) -> None:
        """Delete nothing."""

    monkeypatch.setattr(executor.Executor, "_delete_pods", kept)
    finds("a dead end", crashes=0, quota=16)
