"""Offers that are ruled out by the request of a gang would not have helped it."""

from __future__ import annotations

import os

import pytest

from drumline_scheduler import Gang, NodeOffer, decide
from drumline_scheduler.autoscaling.useful_offers import UsefulOffers
from tests.property.planted_faults import cycle_of, full_world

WORLDS = 2000 if os.environ.get("DRUMLINE_PROPERTIES") == "all" else 100


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("first", range(0, WORLDS, 100))
def test_decisions_are_those_of_trying_every_offer(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    helps, ruled_out = UsefulOffers.helps, 0

    def counted(self: UsefulOffers, offer: NodeOffer, item: Gang) -> bool:
        nonlocal ruled_out
        result = helps(self, offer, item)
        ruled_out += not result
        return result

    cycles = [cycle_of(full_world(number)) for number in range(first, first + 100)]
    cycles = [each for each in cycles if each.snapshot.offers]
    monkeypatch.setattr(UsefulOffers, "helps", counted)
    decided = [decide(each) for each in cycles]
    assert ruled_out > 2
    monkeypatch.setattr(UsefulOffers, "helps", lambda *_: True)
    monkeypatch.setattr(UsefulOffers, "may_help", lambda *_: True)
    assert [decide(each) for each in cycles] == decided
