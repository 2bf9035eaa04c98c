"""An alert as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["critical", "warning", "info"]
"""critical: wake somebody. warning: today. info: when you are looking anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert."""

    name: str
    """CamelCase after `Drumline`; the heading of its section in docs/runbooks.md."""
    expression: str
    """PromQL; true while it has a result."""
    minutes: int
    """For how long it must be true."""
    severity: Severity
    summary: str
    """A sentence with the figures; `{{ }}` is Prometheus's own."""
    command: str
    """What to type first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertGroup:
    """Alerts that are evaluated together."""

    name: str
    alerts: tuple[Alert, ...]
