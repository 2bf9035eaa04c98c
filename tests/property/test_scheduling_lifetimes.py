"""Random lives of small clusters with all features (`scheduling_lifetime`); more: `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline_scheduler import Decisions
from drumline_scheduler.capture import decode
from tests.property import soak
from tests.property.scale import ALL
from tests.property.scheduling_lifetime import Life
from tests.property.soak import EVENTS
from tests.seeds import seed_of

LIVES, AT_ONCE = 6000, 100
SLICE = 600
"""Beside the sequences of test_scheduling_sequences: a seeded tenth of the lives."""
LONG_LIVES, LONG_AT_ONCE, LONG_SLICE = 6000, 25, 150
"""Numbers for lives with the number of events of `make soak`."""


def first_seeds(*, lives: int, at_once: int, part: int) -> range:
    """Of the lives that are lived together: the seeded slice, or all of them."""
    if ALL:
        return range(0, lives, at_once)
    first = seed_of("LIFE_SEED") * part % lives
    return range(first, first + part, at_once)


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("first", first_seeds(lives=LIVES, at_once=AT_ONCE, part=SLICE))
def test_whatever_happens_every_cycle_is_right_and_the_cluster_calms_down(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        Life(seed).live()


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize(
    "first", first_seeds(lives=LONG_LIVES, at_once=LONG_AT_ONCE, part=LONG_SLICE)
)
def test_long_lives_are_right(first: int) -> None:
    for seed in range(first, first + LONG_AT_ONCE):
        Life(seed).live(EVENTS)


def test_a_soak_goes_on_after_a_crash_and_says_how_to_see_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cycle, seed = Life.cycle, 7

    def crashes(life: Life) -> Decisions:
        decisions = cycle(life)
        if life.seed == seed and len(life.log) == 2:
            raise IndexError("planted")
        return decisions

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Life, "cycle", crashes)
    assert soak.main(["--first", "5", "--lives", "5"]) == 1
    said = capsys.readouterr().out
    assert "life 7, " in said
    assert "IndexError: planted" in said
    assert "5 lives of up to 30 events, 1 went wrong" in said
    capture = decode((tmp_path / "build/soak/life-7.json").read_bytes())
    assert capture.snapshot.nodes


def test_elastic_gangs_that_reclaim_from_each_other_come_to_an_end() -> None:
    """Each started larger than it had reclaimed, with what the other was entitled to."""
    life = Life(3257)
    for event in (life.leave, life.lose, life.submit):
        life.happen(event)
    life.calm_down()


def test_a_gang_stays_in_its_rack_though_its_slices_ask_for_a_block_only() -> None:
    """A cordoned node's pod moved into another rack of the block where its slice is."""
    Life(21376).live()


def test_a_reclaim_counts_a_gang_that_is_about_to_move_as_one_that_stays() -> None:
    """The invariant took it for one that leaves, and its queue for one that borrows nothing."""
    Life(5227).live()


def test_a_rejection_is_the_same_where_a_node_has_no_room_for_a_pod_that_must_go_there() -> None:
    """Its figures came from an index that had not read the last changes."""
    Life(1710).live(30)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(60_006_070, id="a later reservation needs the quota of the first pool"),
        pytest.param(60_008_689, id="two gangs evict each other while others borrow"),
        pytest.param(65_005_662, id="two gangs that move were told places that only one can have"),
        pytest.param(61_001_533, id="a gang borrows after the one that is blamed"),
    ],
)
def test_lives_that_went_wrong_once_are_right(seed: int) -> None:
    Life(seed).live(EVENTS)
