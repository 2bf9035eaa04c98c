"""Which tests of the suite run: those of `make test`, all others, or a seeded share of the others.

A test is in `make test` unless it is marked:

    @pytest.mark.extended            # a test, a parameter, or a module with `pytestmark`
    @pytest.mark.extended(keep=3)    # three of them, picked by the seed, are in `make test`

`make test-slice` runs one in `SHARE` of the others. Consecutive seeds pick different ones: after
`SHARE` seeds every test has run. Without an option pytest runs every test.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

import pytest

from tests.seeds import seed_of

MARK = "extended"
SEED_VARIABLE = "SUITE_SEED"
SHARE = 3
ESSENTIAL, SLICE, EXTENDED, ALL = "essential", "slice", "extended", "all"
CHOICES = (ESSENTIAL, SLICE, EXTENDED, ALL)


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the chosen tests in `items`, in their order."""
    choice = str(config.getoption("choose"))
    if choice == ALL:
        return
    seed = seed_of(SEED_VARIABLE)
    extended = _extended(items, seed=seed)
    if choice == ESSENTIAL:
        chosen = {item.nodeid for item in items} - extended
    else:
        chosen = extended if choice == EXTENDED else _share(extended, seed=seed)
    left_out = [item for item in items if item.nodeid not in chosen]
    items[:] = [item for item in items if item.nodeid in chosen]
    config.hook.pytest_deselected(items=left_out)


def _extended(items: Sequence[pytest.Item], *, seed: int) -> set[str]:
    """Names of the marked tests, without those that `keep` leaves in `make test`."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    kept: dict[str, int] = {}
    for item in items:
        for node, mark in item.iter_markers_with_node(MARK):
            group = node.nodeid.partition("[")[0]
            groups[group].append(item.nodeid)
            kept[group] = mark.kwargs.get("keep", 0)
            break
    output: set[str] = set()
    for group, names in groups.items():
        output |= set(_rotated(names, by=seed * kept[group])[kept[group] :])
    return output


def _share(names: set[str], *, seed: int) -> set[str]:
    return {name for name in names if _number(name) % SHARE == seed % SHARE}


def _rotated(names: Sequence[str], *, by: int) -> list[str]:
    shuffled = sorted(names, key=_number)
    start = by % len(shuffled)
    return shuffled[start:] + shuffled[:start]


def _number(name: str) -> int:
    """Return a number that depends on the name alone, also in another process."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
