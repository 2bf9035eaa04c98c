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
    for seed in os.environ["SEEDS"].split():
        os.environ["SUITE_SEED"] = seed
        chosen = list(items)
        selection.select(config, chosen)
        for item in chosen:
            print(seed, item.nodeid)
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
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def chosen(folder: Path, choice: str, *seeds: int) -> list[set[str]]:
    """Collect once. Return the chosen names for each seed."""
    options = ("-q", "--collect-only", "-s", f"--choose={choice}", "-c", "/dev/null")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir=."],
        cwd=folder,
        env={**NO_PLUGINS, "PYTHONPATH": str(ROOT), "SEEDS": " ".join(map(str, seeds))},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.partition(" ") for line in done.stdout.splitlines() if " test_" in line]
    return [{name for number, _, name in lines if number == str(seed)} for seed in seeds]


def test_make_test_and_the_extended_tests_are_all_tests(folder: Path) -> None:
    everything, essential, extended = (
        chosen(folder, choice, 5)[0] for choice in ("all", "essential", "extended")
    )
    assert extended == everything - essential
    assert len(everything) == 22
    assert essential > ALWAYS
    in_groups = essential - ALWAYS
    assert sum("test_many" in name for name in in_groups) == 2
    assert sum("test_module" in name for name in in_groups) == 1
    assert len(in_groups) == 3


def test_consecutive_seeds_run_every_extended_test(folder: Path) -> None:
    slices = chosen(folder, "slice", *range(40, 40 + SHARE))
    together = set[str]().union(*slices)
    assert {"test_file.py::test_marked", "test_file.py::test_a_parameter[b]"} <= together
    assert sum(map(len, slices)) == len(together)
    assert ALWAYS.isdisjoint(together)
    verdicts = [sum("test_story" in name for name in names) for names in slices]
    assert sorted(verdicts) == [0] * (SHARE - 1) + [9]


def test_the_seed_moves_what_is_kept_and_nothing_else_does(folder: Path) -> None:
    first, second = chosen(folder, "essential", 0, 1)
    assert chosen(folder, "essential", 0) == [first]
    assert first != second
