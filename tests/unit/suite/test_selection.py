"""The tests of `make test`, and the seeded share of the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.suite.selection import SHARE

ROOT = Path(__file__).parents[3]
CONFTEST = """
import os

from tools.suite import selection

def pytest_addoption(parser):
    parser.addoption("--choose", choices=selection.CHOICES, default=selection.ALL)

def pytest_collection_modifyitems(config, items):
    for choice in os.environ["CHOICES"].split():
        config.option.choose = choice
        for seed in os.environ["SEEDS"].split():
            os.environ["SUITE_SEED"] = seed
            chosen = list(items)
            selection.select(config, chosen)
            for item in chosen:
                print(choice, seed, item.nodeid)
"""
FILE = """
import pytest

def test_always(): pass

@pytest.mark.extended
def test_marked(): pass

@pytest.mark.extended(keep=2)
@pytest.mark.parametrize("number", range(7))
def test_many(number): pass

@pytest.mark.parametrize("name", ["a", pytest.param("b", marks=pytest.mark.extended)])
def test_a_parameter(name): pass
"""
MODULE = """
import pytest

pytestmark = pytest.mark.extended(keep=1)

def test_one(): pass
def test_two(): pass
"""
NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
POOLS = [
    """
import pytest

@pytest.mark.extended(keep=2, of="pool")
@pytest.mark.parametrize("number", range(3))
def test_pooled(number): pass
""",
    """
import pytest

pytestmark = pytest.mark.extended(keep=2, of="pool")

def test_pooled_too(): pass
""",
]
STORY = """
import pytest

pytestmark = pytest.mark.extended

@pytest.mark.parametrize("number", range(9))
def test_verdict(number): pass
"""
ALWAYS = {"test_file.py::test_always", "test_file.py::test_a_parameter[a]"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {"conftest": CONFTEST, "test_file": FILE, "test_module": MODULE, "test_story": STORY}
    files |= {f"test_pool_{index}": text for index, text in enumerate(POOLS)}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def chosen(folder: Path, *runs: tuple[str, int]) -> list[set[str]]:
    """Collect once. Return the names that each choice picks with each seed."""
    choices, seeds = (" ".join(map(str, dict.fromkeys(each))) for each in zip(*runs, strict=True))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-s", "-c", "/dev/null"],
        cwd=folder,
        env={**NO_PLUGINS, "PYTHONPATH": str(ROOT), "CHOICES": choices, "SEEDS": seeds},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.split(" ", maxsplit=2) for line in done.stdout.splitlines() if " test_" in line]
    return [
        {name for of, number, name in lines if (of, number) == (choice, str(seed))}
        for choice, seed in runs
    ]


def test_make_test_and_the_extended_tests_are_all_tests(folder: Path) -> None:
    everything, essential, extended = chosen(folder, ("all", 5), ("essential", 5), ("extended", 5))
    assert extended == everything - essential
    assert len(everything) == 26
    assert essential > ALWAYS
    in_groups = essential - ALWAYS
    assert sum("test_many" in name for name in in_groups) == 2
    assert sum("test_module" in name for name in in_groups) == 1
    assert sum("test_pooled" in name for name in in_groups) == 2
    assert len(in_groups) == 5


def test_consecutive_seeds_run_every_extended_test(folder: Path) -> None:
    slices = chosen(folder, *(("slice", seed) for seed in range(40, 40 + SHARE)))
    together = set[str]().union(*slices)
    assert {"test_file.py::test_marked", "test_file.py::test_a_parameter[b]"} <= together
    assert sum(map(len, slices)) == len(together)
    assert ALWAYS.isdisjoint(together)
    verdicts = [sum("test_story" in name for name in names) for names in slices]
    assert sorted(verdicts) == [0] * (SHARE - 1) + [9]


def test_the_seed_moves_what_is_kept_and_nothing_else_does(folder: Path) -> None:
    first, second = chosen(folder, ("essential", 0), ("essential", 1))
    assert chosen(folder, ("essential", 0)) == [first]
    assert first != second
    pooled = [{name for name in names if "test_pooled" in name} for names in (first, second)]
    assert [len(names) for names in pooled] == [2, 2]
    for names in pooled:  # each file has a turn, however many tests the other one has
        assert "test_pool_1.py::test_pooled_too" in names
    assert len(pooled[0] | pooled[1]) == 3
