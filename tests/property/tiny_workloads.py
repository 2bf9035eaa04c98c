"""Pods of a tiny cluster that wait at our gate, and the operator's admission of them."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from drumline.controller.state.cluster import ClusterCache
from drumline.controller.workloads.admission import WorkloadAdmission
from drumline.controller.workloads.events import WorkloadEvents
from drumline.controller.workloads.suspension import WorkloadSuspension
from drumline.kube.client import KubeClient
from drumline.kube.events import EventRecorder
from drumline.kube.placement import QUEUE_GATE
from drumline.lifecycle.model.timestamps import timestamp
from drumline_scheduler.decisions import Decisions
from drumline_scheduler.model import Gang
from tests.property.tiny_cluster import NAMESPACE, NOW, Json

QUIET_TURNS = 40
"""Turns of the event loop after which whoever writes is done."""


def gated_pods(chance: Random) -> list[Json]:
    """Up to three pods that wait for the queue, some of which are a group."""
    size = chance.choice((0, 0, 1, 2, 3))
    group = size > 1 and chance.random() < 0.5
    missing = group and chance.random() < 0.2
    labels = {"drumline.dev/queue": "queue", **({"drumline.dev/pod-group": "g"} if group else {})}
    annotations = {"drumline.dev/pod-group-size": str(size + missing)} if group else {}
    return [
        {
            "metadata": {
                "name": f"gated-{number}",
                "namespace": NAMESPACE,
                "uid": f"gated-{number}",
                "resourceVersion": "1",
                "creationTimestamp": timestamp(NOW - chance.choice((0, 100_000))),
                "labels": labels,
                "annotations": annotations,
            },
            "spec": {
                "schedulingGates": [{"name": QUEUE_GATE}],
                "containers": [
                    {
                        "name": "main",
                        "resources": {
                            "requests": {"nvidia.com/gpu": str(chance.choice((1, 4, 8)))}
                        },
                    }
                ],
            },
            "status": {"phase": "Pending"},
        }
        for number in range(size)
    ]


def released_by(writes: list[tuple[str, Json]]) -> set[str]:
    """The pods whose gate these patches take away; all run where they are charged."""
    released = {name: body["spec"] for name, body in writes if "spec" in body}
    assert all(spec["nodeSelector"] == {"type": "kwok"} for spec in released.values())
    return set(released)


def suspension(api: KubeClient) -> WorkloadSuspension:
    """What takes workloads back."""
    return WorkloadSuspension(client=api, recorder=EventRecorder(api, instance="tiny"))


async def admit(
    decisions: Decisions, *, pending: tuple[Gang, ...], cache: ClusterCache, api: KubeClient
) -> Decisions:
    """Let the operator's admission carry out what is about pods; returns the rest."""
    assert cache.workloads is not None

    async def seen(*_: Any, **__: Any) -> None: ...

    admission = WorkloadAdmission(
        client=api,
        pools=cache.pools,
        workloads=cache.workloads,
        events=WorkloadEvents(EventRecorder(api, instance="tiny")),
        seen=seen,
        wake_scheduler=lambda: None,
        suspension=suspension(api),
    )
    rest = admission.take(decisions, pending=pending, stopped={})
    running = asyncio.ensure_future(admission.run())
    for _ in range(QUIET_TURNS * (1 + len(decisions.placed))):
        await asyncio.sleep(0)
    running.cancel()
    return rest
