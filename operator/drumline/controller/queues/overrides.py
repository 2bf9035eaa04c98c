"""The bill of each override: GPU-seconds that its job kept from other queues.

The status of the queue has the GPUs since a moment and the GPU-seconds before it. It is written
only when the GPUs change, so the sum is exact and a new leader continues it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from drumline.lifecycle.model.timestamps import timestamp
from drumline.overview.overrides import gpu_seconds_at
from drumline_api.objects.custom import StoredOverrideUse
from drumline_scheduler.model import Queue

Json = Mapping[str, Any]


def override_fields(
    queue: Queue, *, before: Json, below: Mapping[tuple[str, str], int], now: float
) -> dict[str, Any]:
    """Return the field of a queue's status about its overrides. Empty if it has none.

    Args:
        queue: the queue.
        before: its status.
        below: GPUs that jobs keep from other queues now, by queue and job.
        now: seconds since the epoch.
    """
    if not queue.overrides:
        return {}
    known = {use.job: use for use in stored_uses(before)}
    uses: list[StoredOverrideUse] = []
    for override in queue.overrides:
        gpus = below.get((queue.name, override.job), 0)
        use = known.get(override.job)
        if use is None or use.gpus != gpus:
            spent = 0 if use is None else gpu_seconds_at(use, until=override.until, now=now)
            use = StoredOverrideUse(
                job=override.job, gpus=gpus, gpu_seconds=round(spent), at=timestamp(now)
            )
        uses.append(use)
    return {"overrides": msgspec.to_builtins(uses)}


def stored_uses(status: Json) -> list[StoredOverrideUse]:
    """Return the uses in a queue's status. Malformed ones count as none."""
    try:
        return msgspec.convert(status.get("overrides") or [], list[StoredOverrideUse])
    except msgspec.ValidationError:
        return []
