"""A fault of a rank, with whatever a test changes."""

from __future__ import annotations

from typing import Any

from drumline_agent.protocol.member_reports import Fault
from drumline_contract import FaultClass

BOOM = "rank 1: ValueError: boom at 0x7f [exit code 1 (APPLICATION)]"


def fault(**changes: Any) -> Fault:
    fields: dict[str, Any] = {
        "generation": 2,
        "attempt": 3,
        "index": 0,
        "rank": 1,
        "fault_class": FaultClass.APPLICATION,
        "cause": BOOM,
        "at": 100.0,
        "detected_at": 100.5,
        "step": 40,
        "exit_code": 1,
    }
    return Fault(**{**fields, **changes})
