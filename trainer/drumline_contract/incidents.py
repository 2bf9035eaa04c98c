"""A fault and the recovery from it, as the agents record it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from drumline_contract import json_fields as read

MAX_CAUSE_CHARS: Final = 512


class FaultClass(StrEnum):
    """Class of a fault. Each class has its own restart budget."""

    APPLICATION = "Application"
    """The training code raised, or died by a signal of its own."""
    OUT_OF_MEMORY = "OutOfMemory"
    HANG = "Hang"
    """A rank was silent while all others waited for it."""
    INFRASTRUCTURE = "Infrastructure"
    """A pod, a node or a link was lost, storage failed, or a signal from outside ended a rank."""
    PREEMPTION = "Preemption"
    """Preempted; never charged."""


class RestoreTier(StrEnum):
    """Source of the restored state."""

    MEMORY = "Memory"
    """Snapshots in the memory of the pods that took them."""
    PEER = "Peer"
    """At least one snapshot came from the memory of another node."""
    STORAGE = "Storage"
    """The newest verified checkpoint on shared storage."""
    INITIAL = "Initial"
    """No checkpoint or snapshot existed, so the initial weights were used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One fault and the recovery from it. Times are seconds since the epoch, in this order.

    (generation, attempt) is the membership that the recovery led to: it numbers the incidents of a
    job. A time that is not known yet is None; a recovery is over once `first_step_at` is known.
    """

    generation: int
    attempt: int
    fault_class: FaultClass
    """Class of the root cause."""
    also: tuple[FaultClass, ...] = ()
    """Classes of other faults of the same recovery: each has its own budget."""
    cause: str
    """One sentence; at most 512 characters."""
    culprit_index: int | None = None
    """Member with the root cause; None: only consequences are known."""
    culprit_rank: int | None = None
    fault_at: float
    """When the root cause struck, as far as known: at the latest the rank's last heartbeat."""
    detected_at: float
    decided_at: float | None = None
    """When the new membership was decided."""
    replaced_at: float | None = None
    """When the missing process or pod was ready."""
    joined_at: float | None = None
    """When all ranks had joined again."""
    restored_at: float | None = None
    first_step_at: float | None = None
    """When the first step after the restore was finished."""
    failed_step: int = 0
    """Steps finished when the fault struck."""
    restored_step: int = 0
    """Step that was restored; `failed_step - restored_step` steps were done twice."""
    tier: RestoreTier | None = None

    @property
    def fault_classes(self) -> tuple[FaultClass, ...]:
        """Each fault class of the recovery, once."""
        return tuple(dict.fromkeys((self.fault_class, *self.also)))

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Incident:
        """Check every field of a decoded JSON object. Raises ContractError."""
        return cls(
            generation=read.integer(raw, "generation"),
            attempt=read.integer(raw, "attempt"),
            fault_class=read.choice(raw, "fault_class", FaultClass),
            also=read.choices(raw, "also", FaultClass),
            cause=read.text(raw, "cause")[:MAX_CAUSE_CHARS],
            culprit_index=read.optional_integer(raw, "culprit_index"),
            culprit_rank=read.optional_integer(raw, "culprit_rank"),
            fault_at=read.number(raw, "fault_at"),
            detected_at=read.number(raw, "detected_at"),
            decided_at=read.optional_number(raw, "decided_at"),
            replaced_at=read.optional_number(raw, "replaced_at"),
            joined_at=read.optional_number(raw, "joined_at"),
            restored_at=read.optional_number(raw, "restored_at"),
            first_step_at=read.optional_number(raw, "first_step_at"),
            failed_step=read.integer(raw, "failed_step"),
            restored_step=read.integer(raw, "restored_step"),
            tier=None if raw.get("tier") is None else read.choice(raw, "tier", RestoreTier),
        )
