"""A cluster with hostile objects, as the operator sees it (`cycle_fuzz`)."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Final

from drumline.app.process import YOUNG_OBJECTS
from drumline.controller.pools.autoscaling import offers_of
from drumline.controller.scheduler.garbage import GarbageCollector
from drumline.controller.state.cluster import ClusterCache
from drumline.kube import codec
from drumline.kube.codec import Undecodable
from drumline.kube.kinds import JOB_SETS, JOBS, PYTORCH_JOBS, RAY_CLUSTERS, Resource
from drumline.kube.suspendable import decoder_for
from drumline.kube.views import ObjectView
from drumline_scheduler import (
    Admitted,
    BlockReason,
    CycleCache,
    CycleInput,
    Decisions,
    Gang,
    Policy,
    WaitingRule,
    decide,
)
from drumline_scheduler.model import AskedNodes
from drumline_scheduler.queueing.arrivals import Arrivals
from drumline_scheduler.queueing.deferral import TRY_BUDGET
from drumline_scheduler.work import TimeLimit, Work
from tests.property.fuzz_settings import (
    PRIORITIES,
    drawn_setting,
    some_elastic,
    some_roles,
    some_topology,
)
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

CYCLES: Final = 6
LATE: Final = 2
"""Cycles in which a modest job is decided. More namespaces than a few take turns."""
FEW_NAMESPACES: Final = 8
MOST_CYCLES: Final = 40
"""Cycles of a world in which new gangs still enter after `CYCLES`."""
KINDS: Final = ("job", "gated", "group", "running", "batch", "jobset", "ray", "pytorch")
DRAWN_FIELDS: Final = (
    *("drawn roles", "drawn topology", "drawn sizes", "whole group", "small groups", "chain"),
    "small sweep",
)
"""Fields that are drawn for each job, beside those at their bounds."""
_GATE: Final[Json] = {"schedulingGates": [{"name": "drumline.dev/queue"}]}
_LABELS: Final = {"drumline.dev/queue": "q"}


@dataclass(slots=True, kw_only=True)
class Played:
    """Times and decisions of one world."""

    about: str
    seconds: list[float] = field(default_factory=list[float])
    """Processor time of each cycle: snapshot, waiting gangs and decision."""
    events: list[str] = field(default_factory=list[str])
    """Changes of the cluster before each cycle (`fuzz_churn`)."""
    faults: int = 0
    late: int = 0
    """Modest jobs that were not decided in the first two cycles after they came."""
    differing: int = 0
    """Cycles that are decided differently without a cache (`fuzz_churn`)."""


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
        self.setting = setting = drawn_setting(seed, nodes=nodes)
        self.state: ClusterCache = cluster(nodes=nodes, pools=tuple(setting.pools) or ("h",))
        self._running = {held.gang.uid: held for held in setting.running}
        self._nominated: dict[str, Gang] = {}
        self._passed: frozenset[str] = frozenset()
        self._known: frozenset[str] = frozenset()
        self._put_off: tuple[str, ...] = ()
        self._asked: tuple[AskedNodes, ...] = ()
        self._cache, self._arrivals = CycleCache(), Arrivals()
        self._deferred: tuple[str, ...] = ()
        self._queues: dict[str, ObjectView] = {}
        self._size = nodes
        self.later = 0.0
        """Seconds that passed between cycles."""
        self._garbage = GarbageCollector()
        self.given: CycleInput | None = None
        """Arguments of the last cycle."""
        self._deletions: list[Callable[[], object]] = []
        """Delete the objects of the tenants, the oldest first."""
        self._is_plain = Random(seed).random() < 0.5  # apart from `dice`, so worlds stay the same
        preempts = dice.random() < 0.3
        if preempts:
            quota = {"gpuPool": "h", "nominalGpus": dice.choice([8, 4000, 100_000])}
            spec = {"quotas": [quota], "preemption": {"withinQueue": "LowerPriority"}}
            if not setting.varied:
                self._queue("q", spec)
        self._set_up()
        busy = dice.choice([0, nodes // 2, nodes])
        if setting.running:
            busy = 0
        for index in range(busy):
            requests = {"nvidia.com/gpu": dice.choice(["8", "7", "4"])}
            self._pod(f"busy{index}", _container(requests), node=f"n{index:03}")
        self._add_modest("modest", number=99_999)
        self.count = count or dice.choice([1, 10, 100])
        drawn = dice.sample(KINDS, dice.choice([1, 1, 2])) if dice.random() < 0.5 else ["job"]
        self.kinds = kinds or tuple(drawn)
        drawable = sorted([*AT_BOUNDS, *(DRAWN_FIELDS if setting.varied else ())])
        self.fields = fields or tuple(dice.sample(drawable, dice.randint(1, 3)))
        waiting = dice.choice([WaitingRule.BEST_EFFORT, WaitingRule.BACKFILL])
        self.policy = setting.policy or Policy(waiting=waiting)
        self.about = (
            f"{self.count} of {'plain ' if self._is_plain else ''}{', '.join(self.kinds)}"
            f"{' with ' + ', '.join(self.fields) if 'job' in self.kinds else ''}; {busy} nodes in"
            f" use, {waiting}{', preempts' if preempts else ''}; {setting.about}"
        )

    def play(self) -> Played:
        """Let the hostile objects come, and decide some cycles."""
        self.begin()
        self.arrive()
        played, decided = Played(about=self.about), False
        for number in range(1, MOST_CYCLES + 1):
            if number > CYCLES and self._arrivals.is_complete:
                break
            took, decisions = self.cycle(number)
            played.seconds.append(took)
            played.faults += len(decisions.faults)
            is_soon = number <= LATE * (1 if self.setting.namespaces <= FEW_NAMESPACES else 3)
            decided |= is_soon and is_decided("team-b/modest-2", by=decisions)
        gc.unfreeze()
        played.late = not decided
        return played

    def begin(self) -> None:
        """Decide the first cycle, and freeze what it made.

        The operator does the same after its first cycle (`app.process`).
        """
        self.cycle(0)
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)

    def arrive(self, *, first: int = 0, modest: str = "modest-2") -> None:
        """Let the hostile objects come, and a modest job after them.

        Args:
            first: number of the first object.
            modest: name of the modest job.
        """
        for index in range(first, first + self.count):
            for kind in self.kinds:
                try:
                    self._add(kind, index)
                except Undecodable:
                    continue  # the operator does not see it
        self._add_modest(modest, number=99_998)

    def cycle(self, number: int) -> tuple[float, Decisions]:
        """Decide once, as the operator does, and return the processor time."""
        began, now = time.thread_time(), NOW + number + self.later
        snapshot = self.state.scheduling.snapshot(now=now)
        if self.setting.varied:
            snapshot = replace(
                snapshot,
                admitted=(*snapshot.admitted, *self._running.values()),
                offers=offers_of(self.state.pools.by_name),
                asked=self._asked,
            )
        given = CycleInput(
            snapshot=snapshot,
            pending=tuple(self._arrivals.let_in(self._pending())),
            policy=self.policy,
            now=now,
            try_budget=TRY_BUDGET,
            deferred=self._deferred,
            put_off=self._put_off,
            passed=self._passed,
            known=self._known,
        )
        limit = TimeLimit.for_nodes(len(snapshot.nodes), clock=time.thread_time)
        decisions = decide(given, cache=self._cache, work=Work(limit=limit))
        took = time.thread_time() - began
        self._deferred, self._passed = decisions.deferred, decisions.passed
        self._put_off, self._known = decisions.put_off, decisions.known
        self.given = given
        self._apply(decisions, given=given)
        self._garbage.collect()
        return took, decisions

    def _pending(self) -> list[Gang]:
        """Return the waiting gangs, without those that started, nominated ones with their places.

        A nominated gang stays the same object.
        """
        pending = self.state.scheduling.pending()
        if not self.setting.applies:
            return pending
        waiting = (self._nominated.get(gang.uid, gang) for gang in pending)
        return [gang for gang in waiting if gang.uid not in self._running]

    def _apply(self, decisions: Decisions, *, given: CycleInput) -> None:
        """Start gangs, let victims leave one cycle later, and remember requests for nodes."""
        self._asked = tuple(
            AskedNodes(uid=each.uid, pool=each.pool, zone=each.zone, nodes=each.nodes)
            for each in decisions.needs_nodes
        )
        if not self.setting.applies:
            return
        gangs = {gang.uid: gang for gang in given.pending}
        self._running = {uid: held for uid, held in self._running.items() if not held.leaving}
        for start in decisions.placed:
            held = self._running.get(start.uid)
            gang = gangs.get(start.uid) or (held and held.gang)
            if gang is None:
                continue
            self._running[start.uid] = Admitted(
                gang=replace(gang, nominated=(), nominated_pool=""),
                pool=start.pool,
                assignment=start.assignment,
                reserved=frozenset(range(len(start.assignment))),
                admitted_at=given.now,
            )
        for preemption in decisions.preemptions:
            if gang := gangs.get(preemption.uid):
                self._nominated[gang.uid] = replace(
                    gang, nominated=preemption.assignment, nominated_pool=preemption.pool
                )
            for victim in preemption.victims:
                self._leave(victim.uid, now=given.now)
        for eviction in decisions.evictions:
            self._leave(eviction.uid, now=given.now)

    def _leave(self, uid: str, *, now: float) -> None:
        if held := self._running.get(uid):
            self._running[uid] = replace(held, leaving=True, leaves_by=now + 30)

    def _add(self, kind: str, index: int) -> None:
        dice, name = self.dice, f"{kind}-{index:04}"
        match kind:
            case "job":
                changes = [self._change(each, index) for each in self.fields]
                number = index if dice.random() < 0.9 else 0
                if self.setting.varied:
                    changes.append(self._variation())
                namespace = self._namespace(index)
                view = add_job(self.state, name, *changes, number=number, namespace=namespace)
                self._deletions.append(partial(self.state.on_job, view, None))
            case "gated":
                self._pod(name, {**_GATE, **self._pod_spec(index)})
            case "group":
                spec = {**_GATE, **self._pod_spec(index % dice.choice([3, 32, self.count]))}
                size = {"drumline.dev/pod-group-size": str(self.count)}
                self._pod(name, spec, labels={"drumline.dev/pod-group": "g"}, annotations=size)
            case "running":
                extended = {f"e{index}.com/{number}": "1" for number in range(5000)}
                requests = {"nvidia.com/gpu": "1", "cpu": "1m", **extended}
                self._pod(name, _container(requests), node=f"n{index % self._size:03}")
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

    def _set_up(self) -> None:
        """Add the priority classes, pools and queues of the setting."""
        for name, value in PRIORITIES.items():
            priority = {"metadata": metadata(name), "value": value}
            self.state.on_priority_class(None, codec.priority_class(raw(priority)))
        for name, spec in self.setting.pools.items():
            view = codec.custom_object(raw({"metadata": metadata(name), "spec": spec}))
            self.state.on_pool(None, view)
        for name, spec in self.setting.queues.items():
            self._queue(name, spec)

    def _queue(self, name: str, spec: Json) -> None:
        view = codec.custom_object(raw({"metadata": metadata(name), "spec": spec}))
        self.state.on_queue(self._queues.get(name), view)
        self._queues[name] = view

    def _add_modest(self, name: str, *, number: int) -> None:
        queue = [{"queue": "modest"}] if self.setting.varied else []
        add_job(self.state, name, *queue, number=number, namespace="team-b")

    def _namespace(self, index: int) -> str:
        return f"team-{index % self.setting.namespaces}" if self.setting.namespaces > 1 else "team"

    def _change(self, name: str, index: int) -> Json:
        """Return a field at its bound, or one that is drawn for each job."""
        match name:
            case "drawn roles":
                return some_roles(self.dice)
            case "drawn topology":
                return some_topology(self.dice)
            case "drawn sizes":
                return some_elastic(self.dice)
            case "whole group":
                return {"group": {"name": "g", "jobs": min(self.count, 256)}}
            case "small groups":
                return {"group": {"name": f"g{index // 4}", "jobs": min(self.count, 4)}}
            case "chain":
                return {"after": [{"job": f"job-{index - 1:04}"}]} if index else {}
            case "small sweep":
                return {"sweep": {"name": "s", "maxParallel": 3}}
            case _:
                return AT_BOUNDS[name]

    def _variation(self) -> Json:
        """Return the queue, the priority and the user of a job."""
        dice = self.dice
        queues = [each for each in self.setting.queues if each not in ("modest", "root", "middle")]
        change: Json = {"queue": dice.choice(queues), "user": f"u{dice.randint(0, 99)}"}
        if dice.random() < 0.3:
            change["priorityClassName"] = dice.choice(sorted(PRIORITIES))
        return change

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
        if dice.random() < 0.4 and not self._is_plain:
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
            namespace=self._namespace(self.dice.randrange(100)) if self.setting.varied else "team",
            labels={**_LABELS, **(labels or {})},
            annotations=annotations or {},
        )
        placed = {"nodeName": node, **spec} if node else spec
        phase = {"phase": "Running" if node else "Pending"}
        view = codec.pod(raw({"metadata": about, "spec": placed, "status": phase}))
        self.state.on_pod(None, view)
        self._deletions.append(partial(self.state.on_pod, view, None))

    def _workload(self, kind: Resource, name: str, spec: Json) -> None:
        about = metadata(name, namespace="team", labels=_LABELS)
        document = {"metadata": about, "spec": {"suspend": True, **spec}, "status": {}}
        view = decoder_for(kind)(raw(document))
        self.state.on_workload(kind, None, view)
        self._deletions.append(partial(self.state.on_workload, kind, view, None))


def is_decided(key: str, *, by: Decisions) -> bool:
    """Return whether a cycle has tried a job."""
    answers = {each.key: each.reason for each in by.blocked}
    is_tried = answers.get(key) not in (None, BlockReason.NOT_TRIED)
    return is_tried or any(each.key == key for each in by.placed)


def _container(requests: Json) -> Json:
    return {"containers": [{"name": "c", "resources": {"requests": requests}}]}
