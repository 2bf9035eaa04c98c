"""The chart's own tests, as helm-unittest reads them: they pass, and they leave no value out."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tools.cluster.binaries import ensure_binaries

CHART = Path(__file__).parents[2] / "helm/drumline"
SUITES = sorted((CHART / "tests").glob("*_test.yaml"))
ENOUGH = 150
"""Assertions."""

Json = dict[str, Any]


def cases() -> Iterator[Json]:
    """Every test, with what its suite sets."""
    for path in SUITES:
        suite = yaml.safe_load(path.read_text())
        for test in suite["tests"]:
            yield test | {"set": suite.get("set", {}) | test.get("set", {})}


def leaves(node: Json, path: str = "") -> Iterator[str]:
    """The paths of everything that is not an object with keys of its own."""
    for name, below in node.items():
        here = f"{path}.{name}".lstrip(".")
        if isinstance(below, dict) and below:
            yield from leaves(cast("Json", below), here)
        else:
            yield here


@pytest.mark.extended(keep=4)
@pytest.mark.parametrize("suite", SUITES, ids=lambda path: path.name.removesuffix("_test.yaml"))
def test_a_suite_passes(suite: Path) -> None:
    program = ensure_binaries(["helm-unittest"], say=print)["helm-unittest"]
    command = [program, "--strict", f"--file=tests/{suite.name}", CHART]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    tests = len(yaml.safe_load(suite.read_text())["tests"])
    assert f"Tests:       {tests} passed" in done.stdout


def test_they_assert_enough() -> None:
    assert sum(len(test["asserts"]) for test in cases()) >= ENOUGH


def test_every_value_is_set_by_a_test() -> None:
    chosen = {path for test in cases() for path in leaves(test["set"])}
    values = set(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))
    untested = {
        value for value in values if not any(f"{each}.".startswith(f"{value}.") for each in chosen)
    }
    assert untested == set()


def test_the_package_holds_no_tests() -> None:
    assert "tests/" in (CHART / ".helmignore").read_text().split()
