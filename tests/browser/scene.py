"""A cluster worth a picture: two pools in six racks, three queues, jobs of every kind."""

from __future__ import annotations

from math import exp
from random import Random
from typing import Any, Final

from drumline_contract import ComputePoint, StepPoint, rank_compute
from drumline_contract.step_series import encode, shares_of
from tests.unit.cli.manifests import an_event, an_incident
from tests.unit.overview.objects import (
    a_job,
    a_node,
    a_pool,
    a_priority_class,
    a_queue,
    at,
)

Json = dict[str, Any]
STEPS: Final = 40_000
CORDONED: Final = 7
_IS_RUNNING: Final = {
    "type": "Running",
    "status": "True",
    "reason": "Training",
    "message": "",
    "lastTransitionTime": at(-9000),
}
_NO_QUOTA: Final = (
    "queue {queue} has 0 of {quota} nominal GPUs free in pool h100; needs {gpus}; held by {holders}"
)


def objects() -> tuple[Json, ...]:
    """All of them."""
    return (*_places(), *_running(), *_waiting(), *_ended())


def events() -> tuple[Json, ...]:
    """What was said of llama-70b."""
    about = {"kind": "TrainingJob", "name": "llama-70b", "namespace": "team", "uid": ""}
    lines = (
        ("MemberReplaced", "pod llama-70b-2-g1 was lost with node h100-09", -2800),
        ("CheckpointSaved", "step 18000", -1500),
        ("CheckpointSaved", "step 20000", -300),
    )
    return tuple(
        an_event(reason=reason, note=note, regarding=about, deprecatedLastTimestamp=at(when))
        for reason, note, when in lines
    )


def _places() -> list[Json]:
    made = [a_pool("h100"), a_pool("a100")]
    sick = [{"type": "Ready", "status": "False", "message": "the kubelet is silent"}]
    for number in range(48):
        pool = "h100" if number < 32 else "a100"
        node = a_node(f"{pool}-{number:02}", rack=f"r{number // 8}", pool=pool)
        node["status"]["allocatable"] |= {"memory": "1Ti", "pods": "110"}
        if number == CORDONED:
            node["spec"] = {"unschedulable": True}
        if number == 20:
            node["status"]["conditions"] = sick
        made.append(node)
    queues = (("lab", 64, 24, 1), ("nlp", 56, 56, 2), ("research", 112, 112, 3))
    for name, quota, used, weight in queues:
        usage = [{"gpuPool": "h100", "nominalGpus": quota, "usedGpus": used}]
        queue = a_queue(name, gpus=quota, status={"usage": usage}, weight=weight)
        queue["spec"]["quotas"][0]["gpuPool"] = "h100"
        made.append(queue)
    made[-1]["spec"]["budget"] = {"gpuHours": 60_000, "windowDays": 30}
    days = [
        {"day": f"2027-01-{day:02}", "gpuSeconds": (1500 + 97 * day % 900) * 3600}
        for day in range(1, 16)
    ]
    made[-1]["status"]["budget"] = {"spentGpuHours": 31_000, "until": at(0), "days": days}
    classes = (("urgent", 1000, False), ("normal", 0, True), ("whenever", -100, False))
    return made + [a_priority_class(*each[:2], default=each[2]) for each in classes]


def _running() -> list[Json]:
    places = {
        "llama-70b": ("research", range(8), 14, 3),
        "gpt-oss-finetune": ("nlp", range(9, 13), 61, 0),
        "vit-l": ("lab", range(13, 15), 88, 1),
        "moe-8x": ("research", (15, *range(16, 20), 21), 23, 0),
        "bert-large": ("nlp", (22,), 97, 0),
        "sweep-a1": ("nlp", (23, 24), 40, 0),
        "t5-xl": ("lab", (25,), 5, 0),
    }
    made: list[Json] = []
    for name, (queue, numbers, part, restarts) in places.items():
        nodes = [8 if number == CORDONED else number for number in numbers]
        hours = 2 + part / 20
        seconds = int(hours * 3600 * 8 * len(nodes))
        status = {
            "phase": "Running",
            "reason": "Training",
            "generation": 1 + restarts,
            "restarts": restarts,
            "assignment": {
                "gpuPool": "h100",
                "prefix": "h100-",
                "nodes": [f"{number:02}" for number in nodes],
            },
            "queuedAt": at(-hours * 3600 - 900),
            "admittedAt": at(-hours * 3600),
            "startedAt": at(-hours * 3600 + 95),
            "expectedEnd": at(hours * 3600 * (100 - part) / part),
            "ready": f"{len(nodes)}/{len(nodes)}",
            "step": STEPS * part // 100,
            "totalSteps": STEPS,
            "loss": f"{4.2 - part / 40:.3f}",
            "tokensPerSecond": 9_300 * 8 * len(nodes),
            "gpuSeconds": {
                "until": at(0),
                "starting": seconds // 40,
                "productive": seconds * 37 // 40,
                "repeated": seconds // 60,
                "recovering": seconds // 50,
            },
            "checkpoint": {"step": STEPS * part // 100 - 140, "digest": "3804c73aaad6"},
            "series": _series(STEPS * part // 100, restarts=restarts),
            "computeByRank": _compute_by_rank(
                STEPS * part // 100, ranks=8 * len(nodes), restarts=restarts
            ),
            "conditions": [_IS_RUNNING],
        }
        if restarts:
            failed = STEPS * part // 100 * 36 // 48 + 4
            status["lastIncident"] = an_incident(
                pod=f"{name}-2-g1",
                node="h100-09",
                faultAt=at(-2810),
                generation=restarts,
                failedStep=failed,
                restoredStep=failed - 2,
            )
        made.append(
            a_job(name, spec=_spec(queue, len(nodes)), status=status, created=-hours * 3600)
        )
    return made


def _series(newest: int, *, restarts: int) -> str:
    """A loss that falls with noise; where it was restarted, a slow node before the fault."""
    noise = Random(newest)
    points: list[StepPoint] = []
    for number in range(1, 49):
        step = newest * number // 48
        slow = 1.3 if restarts and 32 <= number < 37 else 1.0
        compute, wait = 640 / slow, 150 + 500 * (slow - 1)
        parts = {"compute": compute, "tensor": 90, "data": wait, "optimizer": 50, "rest": 20}
        points.append(
            StepPoint(
                step=step,
                generation=1 + (restarts if number >= 37 else 0),
                checkpoint=step // 1000 * 1000 or None,
                loss=2.1 + 5 * exp(-step / 1500) + noise.gauss(0, 0.04),
                gradient_norm=0.7 + abs(noise.gauss(0, 0.15)),
                tokens_per_second=595_000 / slow + noise.gauss(0, 4000),
                step_seconds=0.88 * slow,
                parts=shares_of(parts),
            )
        )
    return encode(points)


def _compute_by_rank(newest: int, *, ranks: int, restarts: int) -> str:
    """All about as fast; where it was restarted, its second node was slow before the fault."""
    noise = Random(newest)
    points: list[ComputePoint] = []
    for number in range(1, 25):
        ratios = [noise.gauss(1.0, 0.02) for _ in range(ranks)]
        if restarts and 16 <= number < 19:
            ratios[8:16] = [ratio * 1.4 for ratio in ratios[8:16]]
        points.append(rank_compute.point_of(ratios, step=newest * number // 24))
    return rank_compute.encode(points)


def _waiting() -> list[Json]:
    research = _NO_QUOTA.format(
        queue="research", quota=112, gpus="{gpus}", holders="team/llama-70b (64), team/moe-8x (48)"
    )
    nlp = _NO_QUOTA.format(
        queue="nlp", quota=56, gpus="{gpus}", holders="team/gpt-oss-finetune (32)"
    )
    lines = (
        ("deepseek-sft", "research", 4, research, 1500, 700, (26, 27, 28, 29)),
        ("eval-suite", "research", 1, research, 1200, 1400, ()),
        ("ablation-3", "nlp", 2, nlp, 600, 2800, ()),
    )
    made: list[Json] = []
    for name, queue, nodes, why, waited, starts, promised in lines:
        status: Json = {
            "phase": "Pending",
            "reason": "QuotaExhausted",
            "message": why.format(gpus=8 * nodes),
            "queuedAt": at(-waited),
            "expectedStart": at(starts),
            "expectedStartBy": at(starts * 3),
        }
        if promised:
            rest = [str(number) for number in promised]
            status["nominated"] = {"gpuPool": "h100", "prefix": "h100-", "nodes": rest}
        made.append(a_job(name, spec=_spec(queue, nodes), status=status, created=-waited))
    return made


def _ended() -> list[Json]:
    lines = (
        ("tokenizer-check", "Succeeded", "Completed", 300),
        ("vit-b", "Failed", "NoProgress", 5400),
    )
    return [
        a_job(
            name,
            spec=_spec("lab", 1),
            status={
                "phase": phase,
                "reason": reason,
                "startedAt": at(-ago - 4000),
                "finishedAt": at(-ago),
            },
        )
        for name, phase, reason, ago in lines
    ]


def _spec(queue: str, nodes: int) -> Json:
    return {
        "queue": queue,
        "nodes": nodes,
        "gpusPerNode": 8,
        "trainer": {"steps": STEPS, "globalBatchSize": 256, "sequenceLength": 2048},
        "checkpoint": {"claimName": "checkpoints"},
    }


def crowded() -> tuple[Json, ...]:
    """A cluster of 240 nodes in 24 racks, 100 running jobs, and 100 waiting ones of two queues."""
    made = [a_pool("h100"), a_queue("nlp", gpus=960), a_queue("vision", gpus=960)]
    made += [a_node(f"h100-{n}", rack=f"rack-{n // 10 + 1}", pool="h100") for n in range(240)]
    for number in range(100):
        places = {"gpuPool": "h100", "prefix": "h100-", "nodes": [str(number)]}
        status: Json = {"phase": "Running", "reason": "Training", "assignment": places}
        status |= {"admittedAt": at(-9000), "startedAt": at(-8900), "conditions": [_IS_RUNNING]}
        made.append(a_job(f"runs-{number}", spec=_spec("nlp", 1), status=status))
    for number in range(100):
        why = _NO_QUOTA.format(queue="nlp", quota=960, gpus=8, holders="team/runs-1 (8)")
        status = {"phase": "Pending", "reason": "QuotaExhausted", "message": why}
        status |= {"queuedAt": at(-number), "expectedStart": at(60), "expectedStartBy": at(900)}
        queue = ("nlp", "vision")[number % 2]
        made.append(a_job(f"waits-{number}", spec=_spec(queue, 1), status=status))
    return tuple(made)
