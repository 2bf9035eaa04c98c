"""Suspend admitted workloads again, for a preempting job or because their queue is stopped.

A workload of several pods is useless with a part of them. So it leaves as a whole, by its own
switch, and waits at its old place in line. The mark `ANNOTATION_ADMITTED` is removed in the same
write. So a workload that is suspended and marked was suspended by its owner, and is not resumed
until the owner removes the mark. The write is conditional on the version that was read. If the
owner changed it meanwhile, nothing happens, and the next cycle decides again.
"""

from __future__ import annotations

from typing import Final

import msgspec

from drumline.controller.workloads.conversion import ForeignWorkload
from drumline.controller.workloads.events import WorkloadEvents
from drumline.controller.workloads.resumed import suspended_again
from drumline.kube import reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import Conflict, KubeError, NotFound, NotLeader
from drumline.kube.events import EventRecorder
from drumline.kube.workload_kinds import KINDS, at
from drumline.telemetry import logs

log = logs.get("drumline.controller.workloads.suspension")

PREEMPTED: Final = "Preempted"
QUEUE_STOPPED: Final = "QueueStopped"


class WorkloadSuspension:
    """Suspends workloads.

    Args:
        client: fenced client for the API server.
        recorder: records events that users read.
    """

    def __init__(self, *, client: KubeClient, recorder: EventRecorder) -> None:
        self._client = client
        self.events: Final = WorkloadEvents(recorder)

    async def suspend(self, workload: ForeignWorkload, *, reason: str, why: str) -> str:
        """Suspend a workload that was admitted. Return why it continues, or ''.

        '' means that the suspension was written, or that the workload is gone or suspended already.

        Args:
            workload: the admitted object.
            reason: CamelCase reason of the event.
            why: text of the event.

        Raises:
            NotLeader: this process may not write any more.
        """
        about = workload.regarding
        # Phase 1: read it, and check that it is still the admitted one.
        try:
            stored = await reads.get(
                self._client, about.resource, name=about.name, namespace=about.namespace
            )
            before = msgspec.json.decode(stored)
            body = suspended_again(before, resource=about.resource)
            if before["metadata"]["uid"] != about.uid or at(before, KINDS[about.resource].suspend):
                return ""
            if body is None:
                return "the annotation of its admission was removed"
            # Phase 2: write it, conditional on the version that was read.
            await writes.replace(
                self._client, about.resource, name=about.name, namespace=about.namespace, body=body
            )
        except NotLeader:
            raise
        except NotFound:
            return ""
        except (Conflict, KubeError) as error:
            log.warning("workload_goes_on", workload=workload.key, why=str(error))
            return str(error)
        # Phase 3: report it.
        self.events.suspended(workload, reason=reason, why=why)
        log.info("workload_suspended", workload=workload.key, reason=reason, why=why)
        return ""
