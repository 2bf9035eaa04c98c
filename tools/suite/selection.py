"""Which tests of the suite run: those of `make test`, all others, or a seeded share of the others.

A test is in `make test` unless it is marked:

    @pytest.mark.extended            # a test, a parameter, or a module with `pytestmark`
    @pytest.mark.extended(keep=3)    # three of them, picked by the seed, are in `make test`
    @pytest.mark.extended(keep=3, of="pods")    # three of all tests that name `pods`, in any file

`make test-slice` runs one in `SHARE` of the others. Consecutive seeds pick different ones: after
`SHARE` seeds every test has run. A module that is marked without `keep` runs as a whole, since its
tests share one expensive fixture. Without an option pytest runs every test.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence

import pytest

from tests.seeds import seed_of

MARK = "extended"
SEED_VARIABLE = "SUITE_SEED"
SHARE = 40
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
        chosen = {item.nodeid for item in items} - extended.keys()
    else:
        chosen = extended.keys() if choice == EXTENDED else _share(extended, seed=seed)
    left_out = [item for item in items if item.nodeid not in chosen]
    items[:] = [item for item in items if item.nodeid in chosen]
    config.hook.pytest_deselected(items=left_out)


def _extended(items: Sequence[pytest.Item], *, seed: int) -> dict[str, str]:
    """Return the marked tests that are not in `make test`, each with what it runs together with."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    kept: dict[str, int] = {}
    for item in items:
        for node, mark in item.iter_markers_with_node(MARK):
            group = mark.kwargs.get("of") or node.nodeid.partition("[")[0]
            groups[group].append(item.nodeid)
            kept[group] = mark.kwargs.get("keep", 0)
            break
    output: dict[str, str] = {}
    for group, names in groups.items():
        whole = "::" not in group and not kept[group]
        chosen = _chosen(names, count=kept[group], turn=seed)
        output |= {name: group if whole else name for name in names if name not in chosen}
    return output


def _chosen(names: Sequence[str], *, count: int, turn: int) -> set[str]:
    """Return `count` names. Files take turns, and so do the tests of each file."""
    by_file: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(names, key=_number):
        by_file[name.partition("::")[0]].append(name)
    files = sorted(by_file, key=_number)
    chosen: set[str] = set()
    for place in itertools.count(turn * count):
        if len(chosen) >= min(count, len(names)):
            break
        round_number, file = divmod(place, len(files))
        tests = by_file[files[file]]
        chosen.add(tests[round_number % len(tests)])
    return chosen


def _share(extended: Mapping[str, str], *, seed: int) -> set[str]:
    turn = seed % SHARE
    return {name for name, together in extended.items() if _number(together) % SHARE == turn}


def _number(name: str) -> int:
    """Return a number that depends on the name alone, also in another process."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
