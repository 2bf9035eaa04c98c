"""Whether what a gang is told about its quota is enough: it may want for places too.

A remedy is only told if the gang starts with it, all else as it is. So where quota is short and no
places are free either, more quota alone is no remedy; and of those whose leaving would free quota,
some more may have to leave before there are places. O(places of those who leave).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from drumline.scheduling.decisions import RemedyKind
from drumline.scheduling.model import Gang
from drumline.scheduling.placing.picture import Picture
from drumline.scheduling.placing.roster import Holder
from drumline.scheduling.placing.search import Search
from drumline.scheduling.placing.seating import Seating
from drumline.scheduling.refusals import Refusal, necessary


@dataclass(frozen=True, slots=True, kw_only=True)
class Enough:
    """Completes refusals for want of quota, in the picture of now."""

    now: Picture
    seating: Seating
    _holders: dict[str, tuple[int, dict[str, Holder]]] = field(
        default_factory=dict[str, tuple[int, dict[str, Holder]]]
    )
    """By pool: who holds places by key, and the version of the quota book at which that was."""

    def told(self, refusal: Refusal, *, gang: Gang, pool: str, pods: int) -> Refusal:
        """The refusal with all whose leaving is needed, or without a remedy.

        Args:
            refusal: what the gang would be told about its quota.
            gang: who was refused.
            pool: where.
            pods: with how many main pods.
        """
        if refusal.remedy is None:
            return refusal
        search = self.now.search(gang=gang, pool=pool, pods=pods)
        if isinstance(search, Refusal):
            return replace(refusal, remedy=None)
        if self.seating.has_room(search):
            return refusal
        if refusal.remedy.kind is not RemedyKind.WAIT_FOR:
            return replace(refusal, remedy=None)
        others = self.seating.find(gang=gang, pool=pool, pods=pods)
        more = others.blockers if isinstance(others, Refusal) else ()
        holders = self._by_key(pool)
        return _all_who_leave(refusal=refusal, more=more, search=search, by_key=holders)

    def _by_key(self, pool: str) -> dict[str, Holder]:
        version, found = self._holders.get(pool, (-1, {}))
        if version != self.now.quota.version:
            found = {one.gang.key: one for one in self.now.views[pool].holders.values()}
            self._holders[pool] = (self.now.quota.version, found)
        return found


def _all_who_leave(
    *, refusal: Refusal, more: tuple[str, ...], search: Search, by_key: Mapping[str, Holder]
) -> Refusal:
    """With those whose places are needed as well once the others are gone."""
    undo = [search.view.release(by_key[key]) for key in refusal.blockers if key in by_key]
    # Who moves inside the pool stands there twice: for what it holds, and for what is kept for it.
    rest = [key for key in dict.fromkeys(more) if key not in refusal.blockers]
    fits = search.has_room
    needed: list[str] = []
    if not fits():
        gangs = [by_key[key] for key in rest if key in by_key]
        found = necessary(leavers=gangs, leave=search.view.release, fits=fits)
        undo += [search.view.release(holder) for holder in found]
        # Foreign pods, and places that are kept for others, cannot be imagined gone: all then.
        needed = [holder.gang.key for holder in found] if fits() else rest
        if not needed:
            refusal = replace(refusal, remedy=None)
    for step in reversed(undo):
        step()
    return replace(refusal, blockers=(*refusal.blockers, *needed))
