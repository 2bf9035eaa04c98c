"""Whether a job can be scheduled as it is written: judged once for each metadata.generation."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.api.conditions import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedulable:
    """Nothing speaks against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unjudged:
    """Not known yet: it is being judged beside the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """It cannot be; the job shows this as its condition InvalidConfig."""

    reason: Reason
    message: str
    """Begins with the field at fault."""


Verdict = Schedulable | Unjudged | Refusal
