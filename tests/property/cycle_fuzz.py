"""Cycles beside tenants that write the largest legal objects: `make fuzz MINUTES=8`.

Each world has 500 nodes of different sizes, a modest job, and 1, 10 or 100 hostile objects: jobs
with one to three fields at their bounds, gated pods, pod groups, running pods with many resources,
suspended Jobs, JobSets, RayClusters and PyTorchJobs. They come at once. Six cycles follow. Printed
are cycles above `LIMIT_SECONDS` of processor time, and worlds in which the modest job is not
decided in the first or second of them.

A cycle is deterministic, but its processor time depends on what else the machine does. A world with
a slow cycle is therefore repeated, and the least time of each cycle counts.
`python -m tests.property.cycle_fuzz --seed N` plays one world again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from drumline.controller.state.cluster import ClusterCache
from drumline.kube import codec
from drumline.kube.codec import Undecodable
from drumline.kube.kinds import JOB_SETS, JOBS, PYTORCH_JOBS, RAY_CLUSTERS, Resource
from drumline.kube.suspendable import decoder_for
from drumline_scheduler import (
    BlockReason,
    CycleCache,
    CycleInput,
    Decisions,
    Policy,
    WaitingRule,
    decide,
)
from drumline_scheduler.queueing.arrivals import Arrivals
from drumline_scheduler.queueing.deferral import TRY_BUDGET
from tests.property.tenant_bounds import (
    AT_BOUNDS,
    GATED_AT_BOUNDS,
    NOW,
    Json,
    add_job,
    cluster,
    metadata,
    raw,
)

LIMIT_SECONDS: Final = 0.1
CYCLES: Final = 6
TIMES: Final = 3
"""Times that a world with a slow cycle is played."""
KINDS: Final = ("job", "gated", "group", "running", "batch", "jobset", "ray", "pytorch")
_GATE: Final[Json] = {"schedulingGates": [{"name": "drumline.dev/queue"}]}
_LABELS: Final = {"drumline.dev/queue": "q"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Times and decisions of one world."""

    about: str
    seconds: list[float]
    """Processor time of each cycle: snapshot, waiting gangs and decision."""
    faults: int
    late: bool
    """True if the modest job was not decided in the first two cycles."""


class CycleWorld:
    """A cluster with hostile objects.

    Args:
        seed: chooses everything.
        kinds: kinds of hostile objects instead of drawn ones.
        fields: fields of hostile jobs instead of drawn ones.
        count: number of objects of each kind.
        nodes: number of nodes.
    """

    def __init__(
        self,
        seed: int,
        *,
        kinds: tuple[str, ...] = (),
        fields: tuple[str, ...] = (),
        count: int = 0,
        nodes: int = 500,
    ) -> None:
        self.dice = dice = Random(seed)
        self.state: ClusterCache = cluster(nodes=nodes)
        self._cache, self._arrivals = CycleCache(), Arrivals()
        self._deferred: tuple[str, ...] = ()
        preempts = dice.random() < 0.3
        if preempts:
            quota = {"gpuPool": "h", "nominalGpus": dice.choice([8, 4000, 100_000])}
            spec = {"quotas": [quota], "preemption": {"withinQueue": "LowerPriority"}}
            queue = codec.custom_object(raw({"metadata": metadata("q"), "spec": spec}))
            self.state.on_queue(None, queue)
        busy = dice.choice([0, nodes // 2, nodes])
        for index in range(busy):
            requests = {"nvidia.com/gpu": dice.choice(["8", "7", "4"])}
            self._pod(f"busy{index}", _container(requests), node=f"n{index:03}")
        add_job(self.state, "modest", number=99_999, namespace="team-b")
        self.count = count or dice.choice([1, 10, 100])
        drawn = dice.sample(KINDS, dice.choice([1, 1, 2])) if dice.random() < 0.5 else ["job"]
        self.kinds = kinds or tuple(drawn)
        self.fields = fields or tuple(dice.sample(sorted(AT_BOUNDS), dice.randint(1, 3)))
        waiting = dice.choice([WaitingRule.BEST_EFFORT, WaitingRule.BACKFILL])
        self.policy = Policy(waiting=waiting)
        self.about = (
            f"{self.count} of {', '.join(self.kinds)}"
            f"{' with ' + ', '.join(self.fields) if 'job' in self.kinds else ''}; {busy} nodes in"
            f" use, {waiting}{', preempts' if preempts else ''}"
        )

    def play(self) -> Played:
        """Let the hostile objects come, and decide some cycles."""
        self.cycle(0)
        for index in range(self.count):
            for kind in self.kinds:
                try:
                    self._add(kind, index)
                except Undecodable:
                    continue  # the operator does not see it
        add_job(self.state, "modest-2", number=99_998, namespace="team-b")
        seconds: list[float] = []
        faults, decided = 0, False
        for number in range(1, CYCLES + 1):
            took, decisions = self.cycle(number)
            seconds.append(took)
            faults += len(decisions.faults)
            answers = {each.key: each.reason for each in decisions.blocked}
            placed = {each.key for each in decisions.placed}
            is_tried = answers.get("team-b/modest-2") not in (None, BlockReason.NOT_TRIED)
            decided = decided or (number <= 2 and ("team-b/modest-2" in placed or is_tried))
        return Played(about=self.about, seconds=seconds, faults=faults, late=not decided)

    def cycle(self, number: int) -> tuple[float, Decisions]:
        """Decide once, as the operator does, and return the processor time."""
        began = time.thread_time()
        given = CycleInput(
            snapshot=self.state.scheduling.snapshot(now=NOW + number),
            pending=tuple(self._arrivals.let_in(self.state.scheduling.pending())),
            policy=self.policy,
            now=NOW + number,
            try_budget=TRY_BUDGET,
            deferred=self._deferred,
        )
        decisions = decide(given, cache=self._cache)
        self._deferred = decisions.deferred
        return time.thread_time() - began, decisions

    def _add(self, kind: str, index: int) -> None:
        dice, name = self.dice, f"{kind}-{index:04}"
        match kind:
            case "job":
                changes = [AT_BOUNDS[each] for each in self.fields]
                add_job(self.state, name, *changes, number=index if dice.random() < 0.9 else 0)
            case "gated":
                self._pod(name, {**_GATE, **self._pod_spec(index)})
            case "group":
                spec = {**_GATE, **self._pod_spec(index % dice.choice([3, 32, self.count]))}
                size = {"drumline.dev/pod-group-size": str(self.count)}
                self._pod(name, spec, labels={"drumline.dev/pod-group": "g"}, annotations=size)
            case "running":
                extended = {f"e{index}.com/{number}": "1" for number in range(5000)}
                requests = {"nvidia.com/gpu": "1", "cpu": "1m", **extended}
                self._pod(name, _container(requests), node=f"n{index:03}")
            case "batch":
                pods = dice.choice([1, 100, 10_000])
                template = {"spec": self._pod_spec(index)}
                self._workload(JOBS, name, {"parallelism": pods, "template": template})
            case "jobset":
                self._workload(JOB_SETS, name, {"replicatedJobs": self._replicated(index)})
            case "ray":
                head = {"template": {"spec": {"containers": [{"name": "c"}]}}}
                spec = {"headGroupSpec": head, "workerGroupSpecs": self._worker_groups(index)}
                self._workload(RAY_CLUSTERS, name, spec)
            case _:
                replicas = {
                    role: {"replicas": pods, "template": {"spec": self._pod_spec(3 * index + pods)}}
                    for role, pods in (("Master", 1), ("Worker", dice.choice([2, 9999])))
                }
                spec = {"runPolicy": {"suspend": True}, "pytorchReplicaSpecs": replicas}
                self._workload(PYTORCH_JOBS, name, spec)

    def _replicated(self, index: int) -> list[Json]:
        return [
            {
                "name": f"p{number}",
                "replicas": self.dice.choice([1, 10, 300]),
                "template": {"spec": {"template": {"spec": self._small_or_large(index, number)}}},
            }
            for number in range(self.dice.choice([4, 32]))
        ]

    def _worker_groups(self, index: int) -> list[Json]:
        return [
            {
                "groupName": f"g{number}",
                "replicas": self.dice.choice([1, 300]),
                "template": {"spec": self._small_or_large(index, number)},
            }
            for number in range(31)
        ]

    def _small_or_large(self, index: int, number: int) -> Json:
        return self._pod_spec(index * 40 + number, conditions=self.dice.choice([10, 120]))

    def _pod_spec(self, index: int, *, conditions: int = 124) -> Json:
        """A pod of a kind of its own, with some conditions, resources or both."""
        dice = self.dice
        requests = {
            "nvidia.com/gpu": str(dice.choice([1, 8, 9, 64])),
            "cpu": dice.choice(["1m", "1", "100"]),
            "memory": str(10**6 + index),
        }
        if dice.random() < 0.4:
            requests |= {f"e{number}.com/x": "1" for number in range(60)}
        spec = _container(requests)
        match dice.randint(0, 6):
            case 0:
                spec["affinity"] = self._affinity(conditions, index)
            case 1:
                keys = [{"key": f"t{n}", "operator": "Exists"} for n in range(conditions)]
                spec["tolerations"] = keys
            case 2:
                spec["nodeSelector"] = {f"s{number}": "x" for number in range(conditions)}
            case 3:
                spec |= dice.choice(
                    [each for name, each in GATED_AT_BOUNDS.items() if name != "resources"]
                )
            case _:
                pass
        return spec

    def _affinity(self, most: int, index: int) -> Json:
        operator = self.dice.choice(["DoesNotExist", "NotIn", "In", "Gt"])
        expressions: list[Json] = []
        used = 0
        while used < most - 10:
            count = min(self.dice.choice([1, 8, 100]), most - used - 6)
            match operator:
                case "NotIn":
                    key = self.dice.choice(["rack", "gpu", f"k{used}"])
                    values = [f"v{number}" for number in range(count)]
                case "In":
                    key, values = "gpu", [*(f"v{number}" for number in range(count - 1)), "h"]
                case "Gt":
                    key, values = "rack", ["9" * 18]
                case _:
                    key, values = f"a{used}", []
            more = {"values": values} if values else {}
            expressions.append({"key": key, "operator": operator, **more})
            used += 1 + len(values)
        expressions.append({"key": f"b{index}", "operator": "DoesNotExist"})
        terms = [{"matchExpressions": expressions}]
        if self.dice.random() < 0.5:
            terms = [{"matchExpressions": [each]} for each in expressions[: (most - 4) // 3]]
        required = {"nodeSelectorTerms": terms}
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}

    def _pod(
        self,
        name: str,
        spec: Json,
        *,
        labels: Json | None = None,
        annotations: Json | None = None,
        node: str = "",
    ) -> None:
        about = metadata(
            name,
            namespace="team",
            labels={**_LABELS, **(labels or {})},
            annotations=annotations or {},
        )
        placed = {"nodeName": node, **spec} if node else spec
        phase = {"phase": "Running" if node else "Pending"}
        self.state.on_pod(
            None, codec.pod(raw({"metadata": about, "spec": placed, "status": phase}))
        )

    def _workload(self, kind: Resource, name: str, spec: Json) -> None:
        about = metadata(name, namespace="team", labels=_LABELS)
        document = {"metadata": about, "spec": {"suspend": True, **spec}, "status": {}}
        self.state.on_workload(kind, None, decoder_for(kind)(raw(document)))


def _container(requests: Json) -> Json:
    return {"containers": [{"name": "c", "resources": {"requests": requests}}]}


@dataclass(slots=True)
class Tally:
    """Totals over the worlds of a run."""

    worlds: int = 0
    cycles: int = 0
    slow: int = 0
    """Cycles that are above the limit each time."""
    slow_once: int = 0
    """Cycles that are above the limit the first time."""
    worst: float = 0.0
    late: int = 0

    def add(self, seed: int, *, play: Callable[[], Played]) -> str:
        """Play a world, repeat it if a cycle was slow, and return what was wrong with it."""
        played = play()
        least = played.seconds
        self.slow_once += sum(each > LIMIT_SECONDS for each in least)
        for _ in range(TIMES - 1):
            if max(least) > LIMIT_SECONDS:
                least = list(map(min, least, play().seconds))
        slow = [f"{each * 1000:.0f} ms" for each in least if each > LIMIT_SECONDS]
        self.worlds, self.cycles = self.worlds + 1, self.cycles + len(least)
        self.slow, self.worst = self.slow + len(slow), max(self.worst, *least)
        self.late += played.late
        wrong = [*slow, *(["late"] if played.late else []), *(["fault"] * played.faults)]
        return f"seed {seed}: {', '.join(wrong)}: {played.about}" if wrong else ""

    def __str__(self) -> str:
        return (
            f"{self.worlds} worlds, {self.cycles} cycles, {self.slow} above"
            f" {LIMIT_SECONDS * 1000:.0f} ms ({self.slow_once} at first), worst"
            f" {self.worst * 1000:.0f} ms, {self.late} with a late decision,"
            f" {time.process_time():.0f} s of processor time"
        )


def main(arguments: list[str] | None = None) -> int:
    """Play worlds until the time is over; return 1 if a cycle was slow or a decision late."""
    parser = argparse.ArgumentParser(prog="python -m tests.property.cycle_fuzz")
    parser.add_argument("--minutes", type=float, default=8.0, help="how long (default: 8)")
    parser.add_argument("--first", type=int, help="first seed (default: the time)")
    parser.add_argument("--seed", type=int, help="play this world only")
    chosen = parser.parse_args(arguments)
    tally, first = Tally(), time.time_ns() // 1_000_000 if chosen.first is None else chosen.first
    if chosen.seed is not None:
        played: Any = CycleWorld(chosen.seed).play()
        print(played.about, [f"{each * 1000:.0f} ms" for each in played.seconds], sep="\n")
        return 0
    print(f"seeds from {first}", flush=True)
    seed, end = first, time.monotonic() + 60 * chosen.minutes
    while time.monotonic() < end:
        seed, number = seed + 1, seed
        problem = tally.add(number, play=lambda number=number: CycleWorld(number).play())
        if problem:
            print(problem, flush=True)
        if tally.worlds % 50 == 0:
            print(tally, flush=True)
    print(tally)
    return 1 if tally.slow or tally.late else 0


if __name__ == "__main__":
    sys.exit(main())
