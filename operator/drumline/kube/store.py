"""The cache behind an informer: views by key, and the version that they show.

Invariants, whatever a broken or restarted stream contains:

* a view is never replaced by an older one. Versions are compared as numbers (KEP-5504, guaranteed
  since 1.35). The API server's own kinds and CRDs are in etcd, whose revisions have always been
  such numbers. A version that is not newer than the store is a repetition.
* `replace` reports the disappearance of every object that the list lacks. No object stays because
  its DELETED event was lost in a gap.
* an object that is replaced by another one of the same name is reported as deleted and added.
* `has_reached` returns whether the store contains a write of our own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from drumline.kube.views import Key, View, key_of

V = TypeVar("V", bound=View)


class Change(StrEnum):
    """Kind of a change to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Generic[V]):
    """One change of the cache.

    Attributes:
        change: What happened.
        view: The object after the change; for DELETED its last known state.
        previous: The object before the change, None for ADDED.
    """

    change: Change
    view: V
    previous: V | None

    @property
    def key(self) -> Key:
        """Return the present or last key of the object."""
        return key_of(self.view)


class Store(Generic[V]):
    """Views by key; every change is handed to `emit` after it is made.

    Args:
        emit: Called with every change, in order.
    """

    def __init__(self, *, emit: Callable[[Event[V]], None]) -> None:
        self._emit = emit
        self._views: dict[Key, V] = {}
        self.resource_version = ""

    def get(self, key: Key) -> V | None:
        """Return the object at this key, or None."""
        return self._views.get(key)

    def values(self) -> Collection[V]:
        """Return a live view of all objects. Events change it, so copy it before an await."""
        return self._views.values()

    def has_reached(self, resource_version: str) -> bool:
        """Return whether the store contains the write that made this version, or a later one."""
        known = self.resource_version
        # The caller's version comes from an answer of the server, so it must be a number.
        return bool(known) and int(resource_version) <= _number(known)

    def is_rewind(self, resource_version: str) -> bool:
        """Return whether a list of this version is older than the store."""
        known = self.resource_version
        return bool(known) and _number(resource_version) < _number(known)

    def replace(
        self,
        views: Iterable[V],
        *,
        resource_version: str,
        keep: Collection[Key] = frozenset(),
    ) -> None:
        """Make the store what a whole list says.

        The list is believed even if its version is lower: a cluster restored from a backup counts
        from an older number on.

        Args:
            views: All objects of the list.
            resource_version: The version of the list.
            keep: Keys the list has, but that could not be decoded: their last good view stays.
        """
        # A list holds each key once, so a dict loses nothing.
        listed = {key_of(view): view for view in views}
        self.resource_version = resource_version
        # The comprehension is complete before the first removal, which changes the dict.
        for key in [key for key in self._views if key not in listed and key not in keep]:
            self._remove(key, final=None)
        for key, view in listed.items():
            known = self._views.get(key)
            # Equal versions mean equal objects, so no subscriber is called for them.
            if known is None or known.resource_version != view.resource_version:
                self._put(key, view)

    def apply(self, change: Change, view: V) -> None:
        """Take in one event of a watch."""
        # Two streams feed the store during a catch-up. The slower one repeats what is known.
        if not self._is_news(view.resource_version):
            return
        self.advance(view.resource_version)
        key = key_of(view)
        if change is not Change.DELETED:
            self._put(key, view)
        elif (known := self._views.get(key)) is not None and known.uid == view.uid:
            # A late DELETED of an earlier object must not remove its successor.
            self._remove(key, final=view)

    def discard(self, key: Key, *, uid: str) -> None:
        """Take in the deletion of an object whose last state cannot be decoded."""
        # The version stays where it is. The next event or bookmark advances it.
        known = self._views.get(key)
        if known is not None and known.uid == uid:
            self._remove(key, final=None)

    def advance(self, resource_version: str) -> None:
        """Everything up to this version has been seen."""
        if self._is_news(resource_version):
            self.resource_version = resource_version

    def _is_news(self, resource_version: str) -> bool:
        if not self.resource_version:
            return True
        return _number(resource_version) > _number(self.resource_version)

    def _put(self, key: Key, view: V) -> None:
        known = self._views.get(key)
        # Both uids are reported, so an owner of the old object can free what it held.
        if known is not None and known.uid != view.uid:
            self._remove(key, final=None)
            known = None
        self._views[key] = view
        change = Change.ADDED if known is None else Change.MODIFIED
        # Emit after the change: a subscriber that reads the store must see this event in it.
        self._emit(Event(change=change, view=view, previous=known))

    def _remove(self, key: Key, *, final: V | None) -> None:
        known = self._views.pop(key)
        self._emit(Event(change=Change.DELETED, view=final or known, previous=known))


def _number(resource_version: str) -> int:
    """Return a version as a number. An invalid one is older than all others, so never new."""
    return int(resource_version) if resource_version.isdecimal() else -1
