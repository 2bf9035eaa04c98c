"""Suspends again what was let go: for a job that preempts, or for the sake of its own queue.

A workload of several pods is of no use with a part of them: it leaves as a whole, by its own
switch, and waits at its old place in line. The mark `ANNOTATION_ADMITTED` goes with the same write.
So what is suspended and marked was suspended by its owner, and is not resumed until they take the
mark off. It is written onto the version that was read: if the owner changed it meanwhile, nothing
has happened, and the next cycle decides again.
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
    """Writes the switch.

    Args:
        client: fenced writes to the API server.
        recorder: of what users read.
    """

    def __init__(self, *, client: KubeClient, recorder: EventRecorder) -> None:
        self._client = client
        self.events: Final = WorkloadEvents(recorder)

    async def suspend(self, workload: ForeignWorkload, *, reason: str, why: str) -> str:
        """Suspend it, if it is one that was let go; returns why it goes on, '' if it does not.

        That it does not means that this was written, or that it is gone or suspended already.

        Raises:
            NotLeader: this process may not write any more.
        """
        about = workload.regarding
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
        self.events.suspended(workload, reason=reason, why=why)
        log.info("workload_suspended", workload=workload.key, reason=reason, why=why)
        return ""
