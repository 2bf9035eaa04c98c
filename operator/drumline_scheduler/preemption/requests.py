"""The request of a preemptor, and the victims that were chosen for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from drumline_scheduler.model import Gang, PreemptionRule
from drumline_scheduler.placement.search import Search
from drumline_scheduler.preemption.eviction_simulation import EvictionUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionRequest:
    """The slots that a gang needs in a pool, and its queue's preemption rule."""

    gang: Gang
    rule: PreemptionRule
    pool: str
    size: int
    """Main pods of the whole gang."""
    gpus: int
    """GPUs of the requested slots."""
    kept: Mapping[int, str] = field(default_factory=dict[int, str])
    """Nodes of a broken gang's other pods, by position."""
    is_broken: bool = False
    """True if the gang runs and requests slots for its lost positions."""

    @property
    def paid(self) -> int:
        """Number of main pods that it already has."""
        return sum(position >= self.gang.extras for position in self.kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimChoice:
    """A permitted set of victims for a request."""

    request: PreemptionRequest
    search: Search
    """Search on the projected view. It finds the slots once the victims are evicted."""
    units: Sequence[EvictionUnit]

    @property
    def cost(self) -> float:
        """GPU-seconds that the victims lose."""
        return sum(unit.cost for unit in self.units)
