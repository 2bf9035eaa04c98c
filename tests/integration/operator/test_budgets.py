"""A queue whose GPU-hours are spent, also under the next leader and after the job that had them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.integration.operator.conftest import Site
from tests.kube import Json, left_because, phase_is, reason_is
from tests.operator_process import OperatorProcess

HOUR = 3600


def set_budget(site: Site, gpu_hours: int) -> None:
    spec = {"budget": {"gpuHours": gpu_hours, "windowDays": 7}}
    site.kube.patch("trainingqueues", site.queue, {"spec": spec})


def had(queue: Json | None) -> int | None:
    """GPU-seconds in the queue's tally; None: it has none."""
    budget: dict[str, Any] | None = (queue or {}).get("status", {}).get("budget")
    return None if budget is None else sum(day["gpuSeconds"] for day in budget.get("days", []))


def test_a_spent_budget_keeps_jobs_waiting_under_the_next_leader_too(
    site: Site, operator: OperatorProcess
) -> None:
    set_budget(site, 1)
    site.kube.wait("trainingqueues", site.queue, None, lambda queue: had(queue) == 0)
    site.submit("runs", gpusPerNode=8)
    site.wait("runs", phase_is("Running"))
    # Each 36 GPU-seconds are a percent, which is written.
    site.kube.wait("trainingqueues", site.queue, None, lambda queue: (had(queue) or 0) > 0)
    operator.stop()
    # The queue had an hour today, of a job that is gone.
    status = site.kube.get("trainingqueues", site.queue)["status"]
    status["budget"]["days"] = [
        {"day": datetime.now(tz=UTC).date().isoformat(), "gpuSeconds": HOUR}
    ]
    site.kube.patch_status("trainingqueues", site.queue, status, None)
    operator.start()
    site.submit("late", gpusPerNode=8)
    late = site.wait("late", reason_is("BudgetSpent"))
    assert f"queue {site.queue} has used 1" in late["status"]["message"]
    assert "% of its budget of 1 GPU-hour in 7 days" in late["status"]["message"]
    assert site.job("runs")["status"]["phase"] == "Running"
    # With another choice of the owner what runs leaves, too, and comes back with hours to have.
    spec = {"budget": {"whenSpent": "Expire"}}
    site.kube.patch("trainingqueues", site.queue, {"spec": spec})
    site.wait("runs", left_because("BudgetSpent"))
    site.kube.patch("trainingqueues", site.queue, {"spec": {"budget": {"whenSpent": "Warn"}}})
    site.wait("runs", phase_is("Running"))
    site.wait("late", phase_is("Running"))
    # What a job had stays when it is gone.
    site.kube.delete("trainingjobs", "runs", site.namespace)
    set_budget(site, 2)
    site.wait("late", phase_is("Running"))
    queue = site.kube.wait(
        "trainingqueues", site.queue, None, lambda queue: (had(queue) or 0) > HOUR
    )
    assert queue is not None
    assert queue["status"]["budget"]["spentGpuHours"] == 1
