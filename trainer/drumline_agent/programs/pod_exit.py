"""The end of a pod: its exit code and its termination message (`contract.FinalReport`)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from drumline_agent.api.service import Service
from drumline_agent.base.events import AgentEvent, log
from drumline_agent.base.exit_codes import STOPPED_EXIT_CODE
from drumline_agent.base.outcome import Failed, Outcome, Preempted, StopRequested
from drumline_contract import AgentPhase, ExitCode, FinalReport


@dataclass(frozen=True, slots=True, kw_only=True)
class PodExit:
    """An outcome, as the operator reads it."""

    outcome: Outcome
    error: str = ""

    @property
    def exit_code(self) -> int:
        """The pod's exit code."""
        match self.outcome:
            case Failed(exit_code=code):
                return code
            case StopRequested():
                return STOPPED_EXIT_CODE
            case Preempted():
                return ExitCode.PREEMPTED
            case _:
                return ExitCode.OK

    @property
    def phase(self) -> AgentPhase:
        """The agent's last phase."""
        return AgentPhase.SUCCEEDED if self.exit_code == ExitCode.OK else AgentPhase.FAILED

    @property
    def reason(self) -> str:
        """Why the pod ended, in one line; empty on success, as in the final report."""
        match self.outcome:
            case Failed(reason=reason):
                return self.error or reason
            case StopRequested():
                return self.error or "terminated before its ranks had finished"
            case _:
                return self.error


def report_exit(service: Service, pod_exit: PodExit) -> int:
    """Write the termination message. Returns the exit code."""
    service.status.phase = pod_exit.phase
    failed = pod_exit.outcome if isinstance(pod_exit.outcome, Failed) else None
    report = FinalReport(
        progress=service.status.progress,
        error=pod_exit.reason,
        failed_rank=None if failed is None else failed.rank,
        fault_class=None if failed is None else failed.fault_class,
        held_seconds=service.status.held_seconds,
    )
    with suppress(OSError):  # outside of a pod there is no such file
        service.settings.termination_log.write_bytes(report.encode())
    well = pod_exit.exit_code in (ExitCode.OK, ExitCode.PREEMPTED)
    log(
        AgentEvent.FINISHED if well else AgentEvent.GANG_FAILED,
        exit_code=pod_exit.exit_code,
        step=report.progress.step,
        error=report.error,
        failed_rank=report.failed_rank,
    )
    return pod_exit.exit_code
