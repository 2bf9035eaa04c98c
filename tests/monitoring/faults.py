"""What befalls the stage, and which alerts have to fire for it.

Each fault is a function of the stage; `EXPECTED` is what they fire together under rules whose
times are divided by `HURRY`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from tests.integration.operator.conftest import Site
from tests.integration.operator.growing_pools import create_growing_pool
from tests.kube import Json, phase_is
from tests.monitoring.stage import NAMESPACE, POOL, Stage
from tools.bench.stand import custom, priority_class

EXPECTED: Final = frozenset(
    {
        "DrumlineNoLeader",
        "DrumlineJobsNeverStart",
        "DrumlineCreatesRejected",
        "DrumlineQueueBudgetLow",
        "DrumlineQueueBudgetSpent",
        "DrumlineQueueMoneyLow",
        "DrumlineQueueMoneySpent",
        "DrumlineUserBudgetLow",
        "DrumlineUserBudgetSpent",
        "DrumlineGpusIdleWhileJobsWait",
        "DrumlineJobsFail",
        "DrumlineCapacityRequestFailing",
        "DrumlineNodeBroken",
        "DrumlineJobOnBrokenNode",
        "DrumlineSpotStorm",
        "DrumlineNotificationsDropped",
        "DrumlineSigningKeyMissing",
    }
)
REFUSING: Final = "refusing"
"""A namespace whose ResourceQuota lets no pod in."""
GROWING: Final = "cloud"
_SLEEPER: Final[Json] = {"image": "any:1", "command": ["sleep", "3600"]}


def calm(stage: Stage) -> None:
    """Queues, and jobs that train: nothing is wrong."""
    for name, gpus in (("nlp", 24), ("vision", 40)):
        quotas = [{"gpuPool": POOL, "nominalGpus": gpus}]
        stage.kube.create(custom("TrainingQueue", name, {"quotas": quotas}))
    stage.kube.create(priority_class("urgent", 1000))
    stage.submit(
        "train",
        queue="nlp",
        user="ann",
        nodes=2,
        gpusPerNode=1,
        checkpoint={"claimName": "checkpoints", "everySteps": 20},
        trainer={
            "globalBatchSize": 4,
            "steps": 1_000_000,
            "overrides": {"log_every_steps": 5, "data": {"sequence_length": 32}},
        },
    )
    stage.kube.wait("trainingjobs", "train", NAMESPACE, lambda job: _steps(job) > 20, seconds=180)


def _steps(job: Json | None) -> int:
    return (job or {}).get("status", {}).get("step") or 0


def a_rank_dies(stage: Stage) -> None:
    """SIGKILL: the agents start it again in place."""
    for pid in stage.pods.ranks_of("train")[-1:]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def a_pod_is_lost(stage: Stage) -> None:
    """Its member is placed again."""
    pods = stage.kube.list("pods", NAMESPACE, labels="drumline.dev/job=train")
    stage.kube.delete("pods", max(pod["metadata"]["name"] for pod in pods), NAMESPACE)


def budget_and_broken_node(stage: Stage) -> None:
    """A gang spends its queue's budget on nodes of which one is broken; nothing else is free."""
    spec = {
        "quotas": [{"gpuPool": POOL, "nominalGpus": 64}],
        "budget": {"gpuHours": 1, "windowDays": 7, "cost": "12", "userGpuHours": 1},
    }
    stage.kube.create(custom("TrainingQueue", "budgeted", spec))
    stage.submit("big", queue="budgeted", user="bob", nodes=6, gpusPerNode=8, template=_SLEEPER)
    stage.submit("filler", queue="vision", nodes=1, gpusPerNode=8, template=_SLEEPER)
    job = stage.kube.wait("trainingjobs", "big", NAMESPACE, phase_is("Running"), seconds=90)
    time.sleep(3)  # the filler has its node, or there was none
    assert job is not None
    places = job["status"]["assignment"]
    node = places.get("prefix", "") + places["nodes"][0]
    known = stage.kube.get("nodes", node)["status"]["conditions"]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    broken = {
        "type": "AcceleratedHardwareReady",
        "status": "False",
        "reason": "NvidiaXID79Error",
        "message": "",
        "lastTransitionTime": now,
        "lastHeartbeatTime": now,
    }
    stage.kube.patch_status("nodes", node, {"conditions": [*known, broken]}, None)


def impossible_jobs(stage: Stage) -> None:
    """One is larger than its queue, one's pods are refused, one waits for nodes that never come."""
    stage.submit("giant", queue="nlp", nodes=8, gpusPerNode=8, template=_SLEEPER)
    stage.kube.ensure({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": REFUSING}})
    stage.kube.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "nothing", "namespace": REFUSING},
            "spec": {"hard": {"pods": "0"}},
        }
    )
    create_growing_pool(stage.kube, GROWING, max_nodes=4, quota=32, timeout=5)
    for namespace, name, spec in (
        (REFUSING, "refused", {"queue": "nlp", "gpuPool": POOL}),
        (GROWING, "waits", {"queue": GROWING, "gpuPool": GROWING}),
    ):
        stage.kube.create(
            {
                "apiVersion": "drumline.dev/v1alpha1",
                "kind": "TrainingJob",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {**spec, "nodes": 1, "gpusPerNode": 2, "template": _SLEEPER},
            }
        )


def jobs_fail(stage: Stage) -> None:
    """Ten programs end with exit code 1, one begins again, and the channel takes no message.

    The counter begins with what ended before it was first scraped; the rest has to be enough.
    """
    for _ in range(20):
        stage.channel.answers.put((400, {}))
    for number in range(10):
        name = f"fails-{number}"
        stage.submit(
            name,
            queue="nlp",
            user="cem",
            nodes=1,
            gpusPerNode=1,
            recovery={"maxRestarts": 0},
            template=_SLEEPER,
        )
        stage.kube.wait("trainingjobs", name, NAMESPACE, phase_is("Running"), seconds=60)
        _end_pods(stage, name)
        stage.kube.wait("trainingjobs", name, NAMESPACE, phase_is("Failed"), seconds=60)
    stage.submit("restarts", queue="nlp", nodes=1, gpusPerNode=1, template=_SLEEPER)
    stage.kube.wait("trainingjobs", "restarts", NAMESPACE, phase_is("Running"), seconds=60)
    _end_pods(stage, "restarts")


def a_preemption(stage: Stage) -> None:
    """An urgent job takes the place of another in a queue that has room for one."""
    quotas = [{"gpuPool": POOL, "nominalGpus": 2}]
    preemption = {"withinQueue": "LowerPriority"}
    stage.kube.create(
        custom("TrainingQueue", "small", {"quotas": quotas, "preemption": preemption})
    )
    spec: dict[str, Any] = {"nodes": 1, "gpusPerNode": 2, "template": _SLEEPER}
    stage.submit("patient", queue="small", user="dan", **spec)
    stage.kube.wait("trainingjobs", "patient", NAMESPACE, phase_is("Running"), seconds=60)
    stage.submit("urgent", queue="small", user="eva", priorityClassName="urgent", **spec)
    stage.kube.wait("trainingjobs", "urgent", NAMESPACE, phase_is("Running"), seconds=90)


def spot_nodes_go(stage: Stage) -> None:
    """Five nodes are taken back at once; what held GPUs or was placed again and again ends."""
    taint = {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}
    for node in stage.nodes[-5:]:
        stage.kube.patch("nodes", node, {"spec": {"taints": [taint]}})
    for namespace, name in ((NAMESPACE, "big"), (NAMESPACE, "filler"), (REFUSING, "refused")):
        stage.kube.delete("trainingjobs", name, namespace)


def the_operator_is_away(stage: Stage) -> None:
    """It is killed, and another takes over under a key that the gangs before it do not have."""
    stage.operator.kill()
    time.sleep(12)  # long enough for Prometheus to see that nobody leads
    stage.operator.signing_keys = ("another key for tests, long enough",)
    stage.operator.start()


FAULTS: Final[tuple[tuple[Callable[[Stage], None], float], ...]] = (
    (a_rank_dies, 15.0),
    (budget_and_broken_node, 5.0),
    (impossible_jobs, 5.0),
    (jobs_fail, 5.0),
    (a_preemption, 5.0),
    (a_pod_is_lost, 90.0),  # the budget is spent, and the node was broken for an hurried hour
    (spot_nodes_go, 15.0),
    (the_operator_is_away, 100.0),  # GPUs are idle while jobs wait, for two of its short windows
)
"""Each with the seconds until the next."""


def _end_pods(stage: Stage, job: str) -> None:
    """Its program ends with exit code 1."""
    site = Site(kube=stage.kube, namespace=NAMESPACE, pool=POOL, queue="", nodes=())
    site.end_pods(job, exit_code=1)
