"""Those who are admitted, sorted by what a cycle has to do about them: mostly nothing at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_

from drumline.scheduling.model import Admitted


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedGangs:
    """All gangs that are admitted."""

    admitted: tuple[Admitted, ...]
    uids: frozenset[str]
    unsettled: tuple[Admitted, ...]
    """Those that are broken, leave or shrink, or for which places are kept."""
    elastic: tuple[Admitted, ...]

    @property
    def broken(self) -> Sequence[Admitted]:
        """Those to be repaired."""
        return [held for held in self.unsettled if held.lost and not held.leaving]

    @property
    def may_grow(self) -> Sequence[Admitted]:
        """Elastic ones that are whole and stay."""
        return [held for held in self.elastic if not (held.lost or held.leaving or held.giving_up)]

    def are(self, admitted: Sequence[Admitted]) -> bool:
        """Whether these are the very same."""
        return len(admitted) == len(self.admitted) and all(map(is_, admitted, self.admitted))


def running(admitted: tuple[Admitted, ...]) -> AdmittedGangs:
    """Sort those who are admitted. O(admitted)."""
    return AdmittedGangs(
        admitted=admitted,
        uids=frozenset(held.gang.uid for held in admitted),
        unsettled=tuple(
            held
            for held in admitted
            if held.lost or held.leaving or held.giving_up or held.nominated
        ),
        elastic=tuple(held for held in admitted if held.gang.sizes),
    )
