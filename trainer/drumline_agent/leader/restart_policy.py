"""Decision whether a gang is restarted in place after a fault; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from drumline_agent.base.exit_codes import SIGNALS_FROM_OUTSIDE, describe_exit_code
from drumline_agent.protocol.member_reports import Fault
from drumline_contract import ExitCode, FaultClass, Incident

SAME_ERROR_LIMIT = 3
STUCK_LIMIT = 3
MAX_CORE_CHARS = 256
NEVER_RESTARTED: Final = (ExitCode.CONFIG, ExitCode.CORRUPT_CHECKPOINT)
"""Exit codes after which another start cannot help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartHistory:
    """Earlier incidents and restarts of the gang at the time of a fault."""

    incidents: Sequence[Incident]
    """Earlier incidents, oldest first."""
    restarts_left: Mapping[str, int]
    """Restarts that the generation record allows, by fault class. Other classes have no limit."""
    restarts: Mapping[FaultClass, int]
    """Number of used restarts, by class."""
    stuck_attempts: int
    """Attempts in a row, with the one that failed now, that finished no step."""


def objection_to_restart(fault: Fault, history: RestartHistory) -> str | None:
    """Return why the gang cannot be restarted in place after this fault, or None if it can."""
    # 1. Faults that are certain to repeat.
    if fault.exit_code in NEVER_RESTARTED:
        return "starting again cannot help"
    # 2. The operator's budget for this class.
    left = history.restarts_left.get(fault.fault_class)
    used = history.restarts.get(fault.fault_class, 0)
    # The cause of a mere consequence may be a lost pod, which the operator counts.
    if not fault.consequence and left is not None and used >= left:
        return f"no restart of class {fault.fault_class} is left"
    # An attempt that got on although its step is 0 is of a command whose steps are not known.
    known = fault.step > 0 or history.stuck_attempts > 0
    if known and _same_failures_before(fault, incidents=history.incidents) >= SAME_ERROR_LIMIT - 1:
        return f"the same error {SAME_ERROR_LIMIT} times in a row at step {fault.step}"
    # 4. No progress at all. A storage outage is excluded, because waiting can mend it.
    if history.stuck_attempts >= STUCK_LIMIT and fault.exit_code != ExitCode.STORAGE:
        return f"{STUCK_LIMIT} attempts in a row finished no step"
    return None


def _same_failures_before(fault: Fault, *, incidents: Sequence[Incident]) -> int:
    """Count the newest incidents with this error at this step."""
    if fault.exit_code == ExitCode.STORAGE:
        return 0  # a storage that is full is full for all
    if any(describe_exit_code(code) in fault.cause for code in SIGNALS_FROM_OUTSIDE):
        return 0  # a signal from outside says nothing about the program
    count = 0
    # Consecutive failures only: another failure in between means that the program got further.
    for incident in reversed(incidents):
        if incident.failed_step != fault.step or not _caused_by(incident.cause, fault):
            break
        count += 1
    return count


def _caused_by(cause: str, fault: Fault) -> bool:
    """Return whether an incident's cause begins with this error. The root cause comes first."""
    return error_core(cause).startswith(error_core(fault.cause))


def error_core(text: str) -> str:
    """Return the beginning of a cause, without the parts that differ each time."""
    return without_numbers(text)[:MAX_CORE_CHARS]


def without_numbers(text: str) -> str:
    """Replace ranks, addresses, process ids and times in a cause."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", text)
