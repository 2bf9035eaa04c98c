"""How a pod ends, in the words of its exit code and its termination message."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drumline_trainer.agent.base.events import AgentEvent, log
from drumline_trainer.agent.base.outcome import Failed, Preempted, StopRequested
from drumline_trainer.contract import AgentPhase, ExitCode, FinalReport

if TYPE_CHECKING:
    from drumline_trainer.agent.api.service import Service
    from drumline_trainer.agent.base.outcome import Outcome

TERMINATED_CODE = 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True, kw_only=True)
class PodExit:
    """A verdict, as the operator reads it."""

    verdict: Outcome
    error: str = ""

    @property
    def exit_code(self) -> int:
        """The pod's exit code."""
        match self.verdict:
            case Failed(exit_code=code):
                return code
            case StopRequested():
                return TERMINATED_CODE
            case Preempted():
                return ExitCode.PREEMPTED
            case _:
                return ExitCode.OK

    @property
    def phase(self) -> AgentPhase:
        """The agent's last phase."""
        return AgentPhase.SUCCEEDED if self.exit_code == ExitCode.OK else AgentPhase.FAILED

    @property
    def report(self) -> str:
        """Why, in one line; empty on success."""
        match self.verdict:
            case Failed(reason=reason):
                return self.error or reason
            case StopRequested():
                return self.error or "terminated before its ranks had finished"
            case _:
                return self.error


def report_exit(service: Service, ending: PodExit) -> int:
    """Write the termination message. Returns the exit code."""
    service.status.phase = ending.phase
    failed = ending.verdict if isinstance(ending.verdict, Failed) else None
    report = FinalReport(
        progress=service.status.progress,
        error=ending.report,
        failed_rank=None if failed is None else failed.rank,
        fault_class=None if failed is None else failed.fault_class,
    )
    with suppress(OSError):  # outside of a pod there is no such file
        service.settings.termination_log.write_bytes(report.encode())
    well = ending.exit_code in (ExitCode.OK, ExitCode.PREEMPTED)
    log(
        AgentEvent.FINISHED if well else AgentEvent.GANG_FAILED,
        exit_code=ending.exit_code,
        step=report.progress.step,
        error=report.error,
        failed_rank=report.failed_rank,
    )
    return ending.exit_code
