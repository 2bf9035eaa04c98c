"""The cache never goes back in time and never keeps a ghost."""

from __future__ import annotations

import pytest

from drumline.kube.store import Change, Event, Store
from drumline.kube.views import Key, PodView


def _pod(name: str, version: int, *, uid: str | None = None) -> PodView:
    return PodView(namespace="a", name=name, uid=uid or name, resource_version=str(version))


class _Log:
    """A store and what it reported."""

    def __init__(self) -> None:
        self.events: list[tuple[Change, str, str]] = []
        self.store: Store[PodView] = Store(emit=self._note)

    def _note(self, event: Event[PodView]) -> None:
        self.events.append((event.change, event.view.uid, event.view.resource_version))

    def taken(self) -> list[tuple[Change, str, str]]:
        events, self.events = self.events, []
        return events


@pytest.fixture
def log() -> _Log:
    log = _Log()
    log.store.replace([_pod("x", 3), _pod("y", 5)], resource_version="10")
    log.taken()
    return log


def test_events_change_the_cache_in_order(log: _Log) -> None:
    log.store.apply(Change.ADDED, _pod("z", 11))
    log.store.apply(Change.MODIFIED, _pod("x", 12))
    log.store.apply(Change.DELETED, _pod("y", 13))
    assert log.taken() == [
        (Change.ADDED, "z", "11"),
        (Change.MODIFIED, "x", "12"),
        (Change.DELETED, "y", "13"),
    ]
    assert sorted(view.name for view in log.store.values()) == ["x", "z"]
    assert log.store.resource_version == "13"


def test_an_event_that_is_not_newer_is_an_echo(log: _Log) -> None:
    log.store.apply(Change.MODIFIED, _pod("x", 9))
    log.store.apply(Change.ADDED, _pod("gone-before", 10))
    log.store.apply(Change.DELETED, _pod("y", 4))
    assert log.taken() == []
    assert log.store.get(Key("a", "x")) == _pod("x", 3)


def test_versions_are_numbers_not_text(log: _Log) -> None:
    log.store.apply(Change.MODIFIED, _pod("x", 99))
    log.store.apply(Change.MODIFIED, _pod("x", 100))
    assert log.store.get(Key("a", "x")) == _pod("x", 100)


def test_a_list_reports_what_vanished_unseen(log: _Log) -> None:
    log.store.replace([_pod("x", 20)], resource_version="21")
    assert log.taken() == [(Change.DELETED, "y", "5"), (Change.MODIFIED, "x", "20")]


def test_a_list_reports_nothing_for_what_did_not_change(log: _Log) -> None:
    log.store.replace([_pod("x", 3), _pod("y", 5)], resource_version="30")
    assert log.taken() == []


def test_an_object_listed_but_unreadable_is_not_reported_as_deleted(log: _Log) -> None:
    log.store.replace([_pod("x", 3)], resource_version="30", keep={Key("a", "y")})
    assert log.taken() == []
    assert log.store.get(Key("a", "y")) == _pod("y", 5)


def test_a_successor_of_the_same_name_is_another_object(log: _Log) -> None:
    log.store.apply(Change.MODIFIED, _pod("x", 12, uid="x2"))
    assert log.taken() == [(Change.DELETED, "x", "3"), (Change.ADDED, "x2", "12")]


def test_the_deletion_of_a_predecessor_spares_its_successor(log: _Log) -> None:
    log.store.apply(Change.DELETED, _pod("x", 12, uid="older"))
    log.store.discard(Key("a", "x"), uid="older")
    assert log.taken() == []


def test_a_restored_cluster_that_counts_from_a_lower_number_is_believed(log: _Log) -> None:
    log.store.replace([_pod("x", 2)], resource_version="4")
    log.store.apply(Change.ADDED, _pod("z", 5))
    assert log.taken() == [
        (Change.DELETED, "y", "5"),
        (Change.MODIFIED, "x", "2"),
        (Change.ADDED, "z", "5"),
    ]


def test_a_write_is_seen_once_the_stream_has_passed_it(log: _Log) -> None:
    assert not log.store.has_reached("11")
    log.store.advance("12")
    assert log.store.has_reached("11")
