"""Events of a pod or workload that waits for a queue. `kubectl describe` shows them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from drumline.controller.job_events import EventAction
from drumline.controller.workloads.conversion import ForeignWorkload
from drumline.controller.workloads.workloads import WorkloadInLine
from drumline.kube.events import EventRecorder, Occurrence
from drumline.telemetry import logs

log = logs.get("drumline.controller.workloads.events")

HEAD: Final = 20
"""Most workloads of a queue that get an event. Thousands may wait for the same reason."""


class WorkloadEvents:
    """Reports that a workload waits or was admitted, each reason once.

    Args:
        recorder: writes the events asynchronously. It drops events that it cannot write.
    """

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._reasons: dict[str, str] = {}
        """Last reason, by uid of the workload."""

    def waits(self, waiting: WorkloadInLine) -> None:
        """Report that a workload cannot be admitted now."""
        workload, reason = waiting.workload, waiting.reason
        if waiting.position <= HEAD and self._reasons.get(workload.uid) != reason:
            self._reasons[workload.uid] = reason
            log.info(
                "workload_waits", workload=workload.key, reason=reason, message=waiting.message
            )
            self._record(workload, reason=reason, note=waiting.message)

    def keep_only(self, uids: Collection[str]) -> None:
        """Forget all workloads but these."""
        for uid in self._reasons.keys() - set(uids):
            del self._reasons[uid]

    def admitted(self, workload: ForeignWorkload, *, pool: str) -> None:
        """Report that its queue has admitted a workload."""
        where = f" in pool {pool}" if pool else ""
        self._record(
            workload, reason="Admitted", note=f"queue {workload.queue} has admitted it{where}"
        )

    def suspended(self, workload: ForeignWorkload, *, reason: str, why: str) -> None:
        """Report that an admitted workload was suspended again.

        Args:
            workload: the suspended object.
            reason: CamelCase reason of the event.
            why: text of the event.
        """
        self._reasons.pop(workload.uid, None)
        self._record(workload, reason=reason, note=why)

    def _record(self, workload: ForeignWorkload, *, reason: str, note: str) -> None:
        self._recorder.record(
            Occurrence(
                regarding=workload.regarding,
                reason=reason,
                action=EventAction.ADMIT,
                note=note,
            )
        )
