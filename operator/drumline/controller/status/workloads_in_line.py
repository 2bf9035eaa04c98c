"""One of status.waitingWorkloads of a queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from drumline.api.gpupool import GpuPoolSpec
from drumline.controller.cache.workloads import WorkloadInLine
from drumline.lifecycle.model.timestamps import timestamp
from drumline.scheduling.forecast.expected_starts import ExpectedStart

Json = dict[str, Any]


def workload_in_line(
    waiting: WorkloadInLine,
    *,
    pools: Mapping[str, GpuPoolSpec],
    expected: Callable[[str], ExpectedStart | None],
) -> Json:
    """What the status says of a workload that waits.

    Its gangs start together: it starts with the last of them.

    Args:
        waiting: it, and why.
        pools: by which its GPUs are counted.
        expected: when a gang will probably start, by its uid.
    """
    starts = [start for uid in waiting.gangs if (start := expected(uid)) is not None]
    p50 = [start.p50_at for start in starts if start.p50_at is not None]
    p90 = [start.p90_at for start in starts if start.p90_at is not None]
    fields: Json = {"workload": waiting.workload.key, "gpus": waiting.workload.gpus(pools)}
    if waiting.position:
        fields["position"] = waiting.position
    if waiting.workload.queued_at:
        fields["queuedAt"] = timestamp(waiting.workload.queued_at)
    if p50 and len(p50) == len(waiting.gangs):
        fields["expectedStart"] = timestamp(max(p50))
        if len(p90) == len(p50):
            fields["expectedStartBy"] = timestamp(max(p90))
    return {**fields, "reason": waiting.reason, "message": waiting.message}
