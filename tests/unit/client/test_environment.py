from __future__ import annotations

from pathlib import Path

import pytest

from drumline_client.environment import RankPlace, SnapshotPlace

BY_AGENT = SnapshotPlace(folder=Path("/s"), generation=2, attempt=1, restore_step=None)
BY_LAUNCHER = SnapshotPlace(
    folder=Path("/s"),
    generation=2,
    attempt=1,
    restore_step=40,
    world_size=8,
    first_rank=4,
    ranks=4,
)


@pytest.mark.parametrize("place", [BY_AGENT, BY_LAUNCHER])
def test_a_place_is_read_back(place: SnapshotPlace) -> None:
    assert SnapshotPlace.parse(place.encode()) == place


def test_an_older_agent_has_started_the_ranks_itself() -> None:
    text = '{"folder": "/s", "generation": 2, "attempt": 1, "restore_step": null}'
    assert SnapshotPlace.parse(text) == BY_AGENT


@pytest.mark.parametrize(
    ("rank", "world_size", "fits"),
    [(4, 8, True), (7, 8, True), (3, 8, False), (8, 16, False), (4, 2, False)],
)
def test_a_launcher_s_rank_fits_where_the_agents_look_for_it(
    rank: int, world_size: int, fits: bool
) -> None:
    place = RankPlace(rank=rank, local_rank=0, world_size=world_size)
    assert BY_LAUNCHER.fits(place) is fits
    assert BY_AGENT.fits(place)
