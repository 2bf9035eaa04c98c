"""A small cluster that takes in hostile objects and decides, as the operator does."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.kube import codec
from drumline.lifecycle.model.conditions import condition
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import Observed
from drumline.lifecycle.plan.acceptance import refusal_of
from drumline.lifecycle.plan.planner import plan_job
from drumline_api.conditions import ConditionType, Reason
from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.model import Policy
from tests.property.hostile_objects import (
    Json,
    kinds,
    metadata,
    mutated,
    some_node,
    some_pod,
    valid,
)
from tests.property.tenant_bounds import AT_BOUNDS

NOW = 1_800_000_000.0
CPU_SECONDS = 2.0
"""Of user time, which other processes do not lengthen, for all objects of a world together: a
hundred times what they take."""
AT_BOUNDS_SHARE = 0.15
"""Of a tenant's jobs: valid ones with fields at their largest legal values."""
OBJECTS = 12
"""Of a tenant in each world."""
FIELD = re.compile(r"(spec|status)\.|[a-z][a-zA-Z0-9_.\[\]]*: |team/j[0-9]+: |.+: unknown field")
SCHEMAS = kinds()


class TooLongError(BaseException):
    """The objects took more processor time than their bound."""


@dataclass
class Tally:
    """Objects in the worlds of a run."""

    objects: int = 0
    undecodable: int = 0
    unreadable: int = 0
    refused: int = 0
    decided: int = 0
    reasons: set[str] = field(default_factory=set[str])


@contextmanager
def cpu_bound(seconds: float) -> Iterator[None]:
    def too_long(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class World:
    """One cluster, two nodes, one honest job, and what the dice add."""

    def __init__(self, seed: int, tally: Tally) -> None:
        self.dice = Random(seed)
        self.tally = tally
        self.state = ClusterCache(nodes=NodeCache(clock=lambda: NOW))
        self.names: list[str] = []
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        amounts = {"cpu": "64", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
        for name in ("n0", "n1"):
            labels = {"gpu": "h100", "rack": "r"}
            node = {
                "metadata": metadata(self.dice, name, labels=labels),
                "status": {"allocatable": amounts, **ready},
            }
            self.state.nodes.on_node(None, codec.node(raw(node)))
        levels = [{"name": "rack", "nodeLabel": "rack"}]
        pool = {"nodeSelector": {"gpu": "h100"}, "topologyLevels": levels}
        self.state.on_pool(None, self.view("h100", {"spec": pool}))
        most = self.dice.choice((16, 100_000))  # administrators write a large one for "no limit"
        quota = {"quotas": [{"gpuPool": "h100", "nominalGpus": most}]}
        self.state.on_queue(None, self.view("q", {"spec": quota}))
        self.honest = {"queue": "q", "gpusPerNode": 8, "trainer": {"globalBatchSize": 8}}

    def view(self, name: str, document: Json, **rest: Any) -> Any:
        whole = {"metadata": metadata(self.dice, name, **rest), **document}
        return codec.training_job(raw(whole)) if rest else codec.custom_object(raw(whole))

    def play(self) -> None:
        """Let everything in, decide and plan; whatever is wrong raises."""
        with cpu_bound(CPU_SECONDS):
            for number in range(OBJECTS):
                self.tally.objects += 1
                try:
                    self.add(number)
                except codec.Undecodable:
                    self.tally.undecodable += 1
            self.state.on_job(None, self.view("honest", {"spec": self.honest}, namespace="team"))
            self.cycle()
            self.look_at_jobs()
            self.cycle()

    def add(self, number: int) -> None:
        match self.dice.randint(0, 9):
            case 0:
                self.state.on_queue(None, self.view(self.name("q"), self.some("TrainingQueue")))
            case 1:
                self.state.on_pool(None, self.view(self.name("h100"), self.some("GpuPool")))
            case 2:
                node = self.maybe_mutated(some_node(self.dice, f"n{self.dice.randint(0, 3)}"))
                self.state.nodes.on_node(None, codec.node(raw(node)))
            case 3 | 4:
                job, name = self.dice.choice(["j0", "j1", "honest"]), f"p{number}"
                name = self.dice.choice((name, f"{job}-0-g1"))
                node = self.dice.choice(("n0", "n1", "gone", ""))
                pod = self.maybe_mutated(some_pod(self.dice, name, job=job, node=node))
                self.state.on_pod(None, codec.pod(raw(pod)))
            case _:
                self.add_job(f"j{number}")

    def add_job_at_bounds(self, name: str) -> None:
        """A valid job of a tenant that has read the schema: one or two fields at their largest."""
        spec: Json = {"queue": "q", "template": {"image": "x", "command": ["a"]}}
        for field_name in self.dice.sample(sorted(AT_BOUNDS), self.dice.randint(1, 2)):
            spec |= AT_BOUNDS[field_name]
        self.state.on_job(None, self.view(name, {"spec": spec}, namespace="team"))

    def add_job(self, name: str) -> None:
        if self.dice.random() < AT_BOUNDS_SHARE:
            self.add_job_at_bounds(name)
            return
        document = self.some("TrainingJob")
        if self.dice.random() < 0.8:
            document.pop("status", None)
        if isinstance(document.get("spec"), dict) and self.dice.random() < 0.7:
            document["spec"] |= {"queue": "q"}
            for other, trainer in (("template", True), ("trainer", False)):
                if self.dice.random() < 0.5 and isinstance(document["spec"], dict):
                    document["spec"].pop(other, None)
                    if trainer:
                        document["spec"].setdefault("trainer", {})
        first = self.view(name, document, namespace="team")
        self.state.on_job(None, first)
        if self.dice.random() < 0.3:
            later = {**document, "spec": mutated(document.get("spec", {}), self.dice)}
            self.state.on_job(first, self.view(name, later, namespace="team"))

    def some(self, kind: str) -> Json:
        schema, fill = SCHEMAS[kind], self.dice.choice((0.05, 0.15, 0.3))
        document = {
            part: valid(schema["properties"][part], self.dice, fill=fill)
            for part in ("spec", "status")
            if part in schema["properties"]
        }
        if kind != "TrainingJob":
            document.pop("status", None)
        if self.dice.random() < 0.5:
            spec = document["spec"]
            for _ in range(self.dice.randint(1, 2)):
                spec = mutated(spec, self.dice)
            document["spec"] = spec if isinstance(spec, dict) else {"queue": spec}
        return document

    def name(self, common: str) -> str:
        return self.dice.choice((common, "other"))

    def maybe_mutated(self, document: Json) -> Json:
        if self.dice.random() < 0.3:
            part = self.dice.choice(("spec", "status"))
            return {**document, part: mutated(document.get(part, {}), self.dice)}
        return document

    def cycle(self) -> None:
        snapshot = self.state.scheduling.snapshot(now=NOW)
        pending = tuple(self.state.scheduling.pending())
        decisions = decide(CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=NOW))
        decided = {each.uid for each in (*decisions.placed, *decisions.blocked)}
        self.tally.decided += len(decided)
        assert {gang.uid for gang in pending} <= decided, "every waiting job hears something"
        honest = self.state.jobs.get("team/honest")
        assert honest is not None
        assert honest.uid in decided, "the honest job is decided about"

    def look_at_jobs(self) -> None:
        for job in list(self.state.jobs.all()):
            refusal = refusal_of(job)
            if refusal is None:
                continue
            self.tally.reasons.add(str(refusal.reason))
            self.tally.unreadable += refusal.reason is Reason.UNREADABLE
            self.tally.refused += refusal.reason is Reason.CONFIG_REFUSED
            assert refusal.reason is not Reason.OPERATOR_ERROR, refusal.message
            assert FIELD.match(refusal.message), f"it names no field: {refusal.message!r}"
            assert refusal.message.isprintable(), refusal.message
            self.write_condition(job)

    def write_condition(self, job: Job) -> None:
        """What the reconciler writes for a job that waits."""
        if job.status.assignment is not None or job.finished or job.spec.suspend:
            return
        status = plan_job(job, Observed(), now=NOW, epoch=1).status
        if status is None:
            return
        shown = condition(status, ConditionType.INVALID_CONFIG)
        if shown is None:
            return
        assert shown.status == "True"
        json.dumps(status.model_dump(mode="json", by_alias=True)).encode()


def raw(document: Json) -> bytes:
    """As the API server sends it: half a character cannot be stored."""
    text = json.dumps(document, ensure_ascii=False)
    return text.encode(errors="replace")
