"""What `drumline decide` answers for a small cluster is what the operator then does to it.

A seed makes a cluster of three nodes with up to five jobs, in the middle of things: some run, some
are being evicted, pods have failed or are going. Its objects are written as `kubectl get -o json`
prints them and the command is asked. Then the real operator (its caches, cycle, committer,
reconciler and executor, see `tiny_operator`) acts on the same objects, and what it has written is
compared with the answer, job by job: the places of a job that starts and the nodes of its pods,
who is evicted for whom, what is held for whom, and that nothing else changed.

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
from pathlib import Path
from random import Random

import pytest
import structlog

from drumline.api.load import parse
from drumline.api.trainingjob import TrainingJobStatus
from drumline.cli.arguments import parser
from drumline.cli.decide import command
from drumline.lifecycle.model.members import members_of
from tests.property import tiny_operator
from tests.property.scale import ALL, many
from tests.property.tiny_cluster import NOW, JobState, Json, a_job, helped, text_of, troubled
from tests.property.tiny_operator import cluster_objects
from tests.seeds import seed_of_the_day

QUOTAS = (8, 16, 24)
WORLDS = many(40, 1000)
States = dict[str, JobState]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


@pytest.mark.timeout(3600)
def test_the_operator_does_what_decide_answers(tmp_path: Path) -> None:
    first = 0 if ALL else seed_of_the_day("DECIDE_SEED") * WORLDS
    verdicts: Counter[str] = Counter()
    wrong: list[str] = []
    for seed in range(first, first + WORLDS):
        chance = Random(seed)
        quota = chance.choice(QUOTAS)
        states = a_world(chance, quota=quota)
        answer = answered(states, quota=quota, folder=tmp_path)
        verdicts.update(verdict["verdict"] for verdict in answer.values())
        after = acted(states, quota=quota)
        wrong += [f"seed {seed}: {text}" for text in differences(states, answer, after)]
    print(f"{WORLDS} worlds from seed {first}: {dict(verdicts)}; {len(wrong)} answers were wrong")
    assert not wrong, "\n".join(wrong)
    if ALL:  # of so few worlds as a day has, none may preempt
        assert {"Placed", "Preempted", "Waits"} <= verdicts.keys()


def a_world(chance: Random, *, quota: int) -> States:
    """Jobs in the middle of things."""
    states: States = {}
    for number in range(chance.randint(2, 5)):
        name = f"job-{number}"
        states[name] = _job(chance, name)
        for _ in range(chance.randint(0, 4)):
            _step(chance, states, quota=quota)
    return states


def _job(chance: Random, name: str) -> JobState:
    state = a_job(
        name, nodes=chance.randint(1, 3), priority="high" if chance.random() < 0.3 else None
    )
    job = json.loads(state.job)
    job["spec"]["gpusPerNode"] = chance.choice((2, 4, 8, 8))
    if chance.random() < 0.3:
        job["spec"]["activeDeadlineSeconds"] = 3600
    return state._replace(job=text_of(job))


def _step(chance: Random, states: States, *, quota: int) -> None:
    name = chance.choice(sorted(states))
    match chance.choice(("cycle", "cycle", "reconcile", "kubelet", "kubelet", "fault")):
        case "cycle":
            states.update(tiny_operator.cycle(states, quota=quota).after)
        case "reconcile":
            states.update(tiny_operator.reconcile(name, states, quota=quota).after)
        case "kubelet":
            states[name] = chance.choice([states[name], *helped(states[name])])
        case _:
            states[name] = chance.choice([states[name], *troubled(states[name])])


def answered(states: States, *, quota: int, folder: Path) -> dict[str, Json]:
    """What the command says of each job that it names."""
    file = folder / "all.json"
    objects = {"apiVersion": "v1", "kind": "List", "items": cluster_objects(states, quota=quota)}
    file.write_text(json.dumps(objects))
    os.utime(file, (NOW, NOW))
    chosen = parser("drumline").parse_args(
        ["decide", "-f", str(file), "-o", "json", "--no-forecast"]
    )
    said = json.loads(command.run(chosen, {}).text)
    assert said["unreadable"] == []
    return {verdict["job"].partition("/")[2]: verdict for verdict in said["verdicts"]}


def acted(states: States, *, quota: int) -> States:
    """A cycle of the operator, and then its work on each job."""
    after = dict(tiny_operator.cycle(states, quota=quota).after)
    for name in sorted(after):
        after.update(tiny_operator.reconcile(name, after, quota=quota).after)
    return after


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
