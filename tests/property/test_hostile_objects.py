"""No object stops a cycle, takes long, or hides what is wrong with it.

A seeded slice; `make test-all WHAT=hostile` plays 10^5 objects. A world that fails is
repeated with HOSTILE_SEED=<its seed>: the first world of a run has the seed itself.
"""

from __future__ import annotations

import resource

import pytest

from tests.property.hostile_world import OBJECTS, Tally, World
from tests.property.scale import many
from tests.seeds import seed_of

SEED = seed_of("HOSTILE_SEED") * 1_000_000
PARTS = 4
WORLDS = many(25, 100_000 // OBJECTS // PARTS + 1)
MAX_GROWTH_KIB = 256 * 1024


@pytest.mark.parametrize("part", range(PARTS))
def test_no_object_stops_a_cycle_or_hides_what_is_wrong(part: int) -> None:
    tally = Tally()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(WORLDS):
        seed = SEED + part * WORLDS + number
        try:
            World(seed, tally).play()
        except BaseException as error:
            error.add_note(f"HOSTILE_SEED: world {seed}")
            raise
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"part {part}: {WORLDS} worlds, {tally}, {grown} KiB")
    assert grown < MAX_GROWTH_KIB
    assert tally.objects == WORLDS * OBJECTS
    assert min(tally.unreadable, tally.refused, tally.decided, tally.undecodable) > 0
