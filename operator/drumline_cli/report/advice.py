"""Give advice about a job, in the sentences of docs/troubleshooting.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from drumline.overview.advice import advice_for
from drumline_api.conditions import Phase, Reason
from drumline_api.trainingjob import TrainingJob
from drumline_cli.formatting import many
from drumline_cli.report.model import IncidentReport, RestartBudget
from drumline_contract import FaultClass, plain

_BY_CLASS: Final[Mapping[str, str]] = {
    FaultClass.APPLICATION: "the next error of the training code fails the job: fix its cause,"
    " or raise recovery.maxRestarts",
    FaultClass.OUT_OF_MEMORY: "the next out-of-memory error fails the job: lower the micro-batch"
    " or the model size, or raise resources.memory",
    FaultClass.HANG: "the next hang fails the job: find out where the rank hung (the cause names"
    " step and phase)",
    FaultClass.INFRASTRUCTURE: "the next lost pod fails the job: raise"
    " recovery.maxInfrastructureRestarts, or find out why nodes are"
    " lost",
}
_SUSPECT_INCIDENTS: Final = 3


def next_steps(
    job: TrainingJob, *, incidents: tuple[IncidentReport, ...], budgets: tuple[RestartBudget, ...]
) -> tuple[str, ...]:
    """Return sentences, the most urgent first. Empty: the user has nothing to do.

    Args:
        job: the TrainingJob.
        incidents: its incidents.
        budgets: remaining restarts by class.
    """
    return tuple(dict.fromkeys(_advice(job, incidents=incidents, budgets=budgets)))


def _advice(
    job: TrainingJob, *, incidents: tuple[IncidentReport, ...], budgets: tuple[RestartBudget, ...]
) -> Iterator[str]:
    status = job.status
    if status is None or status.phase is None:
        yield (
            "If this persists, check whether an operator leads: kubectl get lease --namespace"
            " drumline-system."
        )
        return
    reason = plain(status.reason or "")
    ended = status.phase in {Phase.SUCCEEDED, Phase.FAILED}
    yield from advice_for(reason, suspended=job.spec.suspend, ended=ended)
    if ended:
        return
    reasons = {condition.reason for condition in status.conditions or []}
    if Reason.NO_DURABLE_STORAGE in reasons:
        yield from advice_for(Reason.NO_DURABLE_STORAGE, suspended=job.spec.suspend)
    for budget in budgets:
        if budget.left == 0 and budget.used:
            yield f"{budget.fault_class} restarts are used up; {_BY_CLASS[budget.fault_class]}."
    yield from _suspects(incidents)


def _suspects(incidents: tuple[IncidentReport, ...]) -> Iterator[str]:
    """Return nodes that are at fault repeatedly, whatever they report about themselves."""
    nodes = Counter(incident.node for incident in incidents if incident.node)
    for node, times in nodes.most_common():
        if times >= _SUSPECT_INCIDENTS:
            yield (
                f"Node {node} was at fault in {times} of the last"
                f" {many(len(incidents), 'incident')}: cordon it and inspect it."
            )
