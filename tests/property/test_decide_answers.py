"""What `drumline decide` answers for a small cluster is what the operator then does to it.

A seed makes a cluster of three nodes with up to five jobs, in the middle of things: some run, some
are being evicted, pods have failed or are going. Pods of others wait at our gate. Its objects are
written as `kubectl get -o json` prints them and the command is asked. Then the real operator (its
caches, cycle, admission, committer, reconciler and executor, see `tiny_operator`) acts on the same
objects, and what it has written is compared with the answer, job by job: the places of a job that
starts and the nodes of its pods, who is evicted for whom, what is held for whom, which pods are let
go, and that nothing else changed. Half of the pools may grow: then also which nodes are asked for
on whose behalf, to the last byte of memory.

`decide` is asked once and the operator decides for itself: what both share is the pure decision.
What may differ, and is compared here, is all around it: how objects are read, completed and counted
on either side, and what the operator makes of a decision.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
import structlog

from drumline.lifecycle.model.members import members_of
from drumline.lifecycle.model.timestamps import timestamp
from drumline_api.load import parse
from drumline_api.trainingjob import TrainingJobStatus
from drumline_cli.arguments import parser
from drumline_cli.decide import command
from tests.property import tiny_operator
from tests.property.scale import ALL, many
from tests.property.tiny_autoscaler import TinyAutoscaler
from tests.property.tiny_cluster import NOW, JobState, Json, a_job, helped, text_of, troubled
from tests.property.tiny_operator import cluster_objects
from tests.property.tiny_workloads import gated_pods
from tests.seeds import seed_of

QUOTAS = (8, 16, 24)
LARGER_QUOTAS = (24, 40, 64)
WORLDS = many(12, 1000)
States = dict[str, JobState]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


@pytest.mark.timeout(3600)
def test_the_operator_does_what_decide_answers(tmp_path: Path) -> None:
    first = 0 if ALL else seed_of("DECIDE_SEED") * WORLDS
    verdicts: Counter[str] = Counter()
    wrong: list[str] = []
    for seed in range(first, first + WORLDS):
        chance = Random(seed)
        autoscaler = an_autoscaler(chance) if seed % 2 else None
        quota = chance.choice(QUOTAS) if autoscaler is None else chance.choice(LARGER_QUOTAS)
        tiny = World(states={}, quota=quota, autoscaler=autoscaler)
        fill(tiny, chance)
        tiny.gated = gated_pods(chance)
        answer = answered(tiny, folder=tmp_path)
        verdicts.update(verdict["verdict"] for verdict in answer.values())
        verdicts["asks for nodes"] += sum("needsNodes" in each for each in answer.values())
        before = dict(tiny.states)
        released = act(tiny)
        unlike = [*differences(before, answer, tiny.states), *let_go_otherwise(released, answer)]
        if autoscaler is not None:
            unlike += asked_otherwise(tiny, autoscaler, answer)
        wrong += [f"seed {seed}: {text}" for text in unlike]
    print(f"{WORLDS} worlds from seed {first}: {dict(verdicts)}; {len(wrong)} answers were wrong")
    assert not wrong, "\n".join(wrong)
    if ALL:  # of so few worlds as a day has, none may preempt
        wanted = {"Placed", "Preempted", "Waits", "Admitted", "asks for nodes"}
        assert wanted <= verdicts.keys()


@dataclass
class World:
    """A tiny cluster."""

    states: States
    quota: int
    autoscaler: TinyAutoscaler | None
    gated: list[Json] = field(default_factory=list[Json])
    """Pods that wait for the queue."""


def an_autoscaler(chance: Random) -> TinyAutoscaler:
    """It adds up to three nodes, and may have failed to."""
    most = 3 + chance.randint(1, 3)
    zones = chance.choice(((), (), ("zone-a", "zone-b")))
    status: Json = {}
    if chance.random() < 0.2:
        pause = {"zone": zones[0] if zones else "", "poolNodes": chance.randint(4, 6)}
        until = timestamp(NOW + chance.choice((-60, 60)))
        status = {"autoscaling": {"pauses": [{**pause, "until": until, "timeouts": 1}]}}
    return TinyAutoscaler(most=most, zones=zones, status=status)


def fill(tiny: World, chance: Random) -> None:
    """Put jobs in it, in the middle of things."""
    for number in range(chance.randint(2, 5)):
        name = f"job-{number}"
        tiny.states[name] = _job(chance, name)
        for _ in range(chance.randint(0, 4)):
            _step(chance, tiny)


def _job(chance: Random, name: str) -> JobState:
    state = a_job(
        name, nodes=chance.randint(1, 3), priority="high" if chance.random() < 0.3 else None
    )
    job = json.loads(state.job)
    job["spec"]["gpusPerNode"] = chance.choice((2, 4, 8, 8))
    if chance.random() < 0.3:
        job["spec"]["activeDeadlineSeconds"] = 3600
    return state._replace(job=text_of(job))


def _step(chance: Random, tiny: World) -> None:
    states = tiny.states
    name = chance.choice(sorted(states))
    match chance.choice(("cycle", "cycle", "reconcile", "kubelet", "kubelet", "fault", "node")):
        case "cycle":
            cycle(tiny)
        case "reconcile":
            reconcile(tiny, name)
        case "kubelet":
            states[name] = chance.choice([states[name], *helped(states[name])])
        case "node":
            if tiny.autoscaler is not None and tiny.autoscaler.pods:
                tiny.autoscaler.nodes = min(tiny.autoscaler.most, tiny.autoscaler.nodes + 1)
        case _:
            states[name] = chance.choice([states[name], *troubled(states[name])])


def cycle(tiny: World) -> frozenset[str]:
    """Returns which pods' gates are gone."""
    taken = tiny_operator.cycle(
        tiny.states, quota=tiny.quota, autoscaler=tiny.autoscaler, gated=tiny.gated
    )
    tiny.states.update(taken.after)
    return taken.released


def reconcile(tiny: World, name: str) -> None:
    states, autoscaler = tiny.states, tiny.autoscaler
    taken = tiny_operator.reconcile(name, states, quota=tiny.quota, autoscaler=autoscaler)
    tiny.states.update(taken.after)


def answered(tiny: World, *, folder: Path) -> dict[str, Json]:
    """What the command says of each job that it names."""
    file = folder / "all.json"
    items = cluster_objects(
        tiny.states, quota=tiny.quota, autoscaler=tiny.autoscaler, gated=tiny.gated
    )
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    os.utime(file, (NOW, NOW))
    chosen = parser("drumline").parse_args(
        ["decide", "-f", str(file), "-o", "json", "--no-forecast"]
    )
    said = json.loads(command.run(chosen, {}).text)
    assert said["unreadable"] == []
    return {verdict["job"].partition("/")[2]: verdict for verdict in said["verdicts"]}


def act(tiny: World) -> frozenset[str]:
    """A cycle of the operator, and then its work on each job; returns the pods it has let go."""
    released = cycle(tiny)
    for name in sorted(tiny.states):
        reconcile(tiny, name)
    return released


def let_go_otherwise(released: frozenset[str], answer: dict[str, Json]) -> Iterator[str]:
    """Pods at a gate that the operator lets go and that were not the answer, or the reverse."""
    pods = sum(each["pods"] for each in answer.values() if each["verdict"] == "Admitted")
    alone = {
        name.removeprefix("pods/")
        for name, each in answer.items()
        if each["verdict"] == "Admitted" and name.startswith("pods/gated")
    }
    if pods != len(released) or not alone <= released:
        yield f"was to let go {pods} pods, {sorted(alone)} among them, and has {sorted(released)}"


def asked_otherwise(
    tiny: World, autoscaler: TinyAutoscaler, answer: dict[str, Json]
) -> Iterator[str]:
    """What is asked for, once the operator has acted, and was not the answer."""
    for name, state in tiny.states.items():
        verdict = answer.get(name, {})
        pods = autoscaler.asked_for(json.loads(state.job)["metadata"]["uid"])
        said = _needed(verdict["needsNodes"]) if "needsNodes" in verdict else Counter[str]()
        asked = Counter(map(_requested, pods))
        if said != asked:
            yield f"{name}: was to ask for {dict(said)}, and asks for {dict(asked)}"


def _needed(needs: Json) -> Counter[str]:
    """How often what is asked for where."""
    return Counter(
        {
            str((needs["pool"], needs.get("zone", ""), each["gpus"], each.get("memoryBytes", 0))): (
                each["nodes"]
            )
            for each in needs["takes"]
        }
    )


def _requested(pod: Json) -> str:
    (container,) = pod["spec"]["containers"]
    requests = container["resources"]["requests"]
    zone = pod["spec"]["nodeSelector"].get("topology.kubernetes.io/zone", "")
    (owner,) = pod["metadata"]["ownerReferences"]
    gpus, memory = int(requests["nvidia.com/gpu"]), int(requests.get("memory", 0))
    return str((owner["name"], zone, gpus, memory))


def differences(states: States, answer: dict[str, Json], after: States) -> Iterator[str]:
    """What the operator did that was not the answer, and what it left undone."""
    for name in states:
        was, now = (parse(TrainingJobStatus, each[name].status) for each in (states, after))
        verdict = answer.get(name, {})
        match verdict.get("verdict"):
            case None:
                wrong = _unnamed(was, now)
            case "Placed" | "Repaired":
                wrong = _placed(verdict, now, pods=_live_pods(after[name]))
            case "Preempted":
                wrong = _preempted(verdict, now)
            case "Waits":
                wrong = _waits(verdict, now)
            case other:
                wrong = f"{other} is not expected of such jobs"
        if wrong:
            yield f"{name}: {wrong}"


def _unnamed(was: TrainingJobStatus, now: TrainingJobStatus) -> str | None:
    if now.assignment is not None and was.assignment is None:
        return "was not named, and has places"
    if now.disruption is not None and was.disruption is None:
        return "was not named, and is to leave"
    return None


def _placed(verdict: Json, now: TrainingJobStatus, *, pods: list[str]) -> str | None:
    places = [member.node for member in members_of(now)]
    if places != verdict["nodes"]:
        return f"was to get {verdict['nodes']}, and has {places}"
    return None if sorted(pods) == sorted(places) else f"has {places}, and pods on {pods}"


def _preempted(verdict: Json, now: TrainingJobStatus) -> str | None:
    if now.assignment is None:
        return None  # it could not be asked to save, and has left at once
    notice = now.disruption.by if now.disruption is not None else None
    if notice == verdict["by"]:
        return None
    return f"was to leave for {verdict['by']}, and has {notice}"


def _waits(verdict: Json, now: TrainingJobStatus) -> str | None:
    if now.assignment is not None:
        return "was to wait, and has places"
    held = [] if now.nominated is None else list(now.nominated.node_names())
    if held == list(verdict.get("nodes", ())):
        return None
    return f"was to hold {verdict.get('nodes')}, and holds {held}"


def _live_pods(state: JobState) -> list[str]:
    pods = [json.loads(text) for _, text in state.pods]
    return [
        pod["spec"]["nodeName"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        and pod["status"]["phase"] in {"Pending", "Running"}
    ]
