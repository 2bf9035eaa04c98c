"""Parts run side by side, and their output is printed in order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.seeds import SEED
from tools.suite import lanes
from tools.suite.parts import Part

WAIT_FOR = """
import sys, time
from pathlib import Path

folder, name, awaited = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
(folder / name).touch()
while not all((folder / other).exists() for other in awaited):
    time.sleep(0.01)
print(f"output of {name}")
sys.exit(1 if (folder / "alone").exists() and name != "alone" else 0)
"""


def part(name: str, folder: Path, *awaited: str, group: str = "any", niceness: int = 0) -> Part:
    """Touches a file of its name, and ends when those of the awaited parts are there."""
    command = (sys.executable, "-c", WAIT_FOR, str(folder), name, *awaited)
    return Part(
        name=name, budget_minutes=1, command=command, checks=1, group=group, niceness=niceness
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lanes, "FOLDER", tmp_path / "logs")
    monkeypatch.setattr(lanes, "LOOK_SECONDS", 0.01)


def test_two_parts_run_at_a_time_and_are_printed_in_the_order_of_the_table(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = [part("first", tmp_path, "third"), part("second", tmp_path), part("third", tmp_path)]

    results = lanes.run_all(parts)

    assert [result.passed for result in results] == [1, 1, 1]
    printed = [line for line in capfd.readouterr().out.splitlines() if line.startswith("output")]
    assert printed == ["output of first", "output of second", "output of third"]


def test_the_seeds_are_printed_when_a_part_begins(capfd: pytest.CaptureFixture[str]) -> None:
    command = (sys.executable, "-c", "")
    lanes.run_all([Part(name="one", budget_minutes=1, command=command, checks=1, seeds=("X",))])
    first = capfd.readouterr().out.splitlines()[0]
    assert first == f"started one (budget 1 min, X={SEED})"


def test_a_part_runs_beside_those_of_its_group_alone(tmp_path: Path) -> None:
    """The others fail if they run once it has begun; so it begins when they have ended."""
    parts = [
        part("first", tmp_path, "second"),
        part("second", tmp_path, "first"),
        part("alone", tmp_path, "first", "second", group="alone"),
    ]
    assert [result.failed for result in lanes.run_all(parts)] == [0, 0, 0]


def test_a_part_that_yields_runs_beside_two_others_of_any_group(tmp_path: Path) -> None:
    parts = [
        part("first", tmp_path, "second", "yields"),
        part("second", tmp_path, "first", "yields"),
        part("yields", tmp_path, "first", "second", group="nodes", niceness=1),
        part("after", tmp_path, "yields", niceness=1),
    ]
    assert [result.failed for result in lanes.run_all(parts)] == [0, 0, 0, 0]


def test_parts_that_yield_take_the_lane_that_no_other_part_needs(tmp_path: Path) -> None:
    first, second = part("first", tmp_path), part("second", tmp_path)
    yields, after = (part(name, tmp_path, niceness=1) for name in ("yields", "after"))
    assert lanes.next_part([after], [first, second, yields]) is None
    assert lanes.next_part([second, after], [first, yields]) is second
    assert lanes.next_part([after], [first, yields]) is after
    assert lanes.next_part([after], [yields]) is after


def test_everything_waits_for_the_binaries(tmp_path: Path) -> None:
    binaries = part("binaries", tmp_path, group=lanes.BINARIES_GROUP)
    rest = [part("first", tmp_path), part("yields", tmp_path, niceness=1)]
    assert lanes.next_part([binaries, *rest], []) is binaries
    assert lanes.next_part(rest, [binaries]) is None
    assert lanes.next_part(rest, []) is rest[0]
    assert lanes.next_part(rest[1:], [rest[0]]) is rest[1]


def test_a_part_may_yield_to_what_runs_beside_it(capfd: pytest.CaptureFixture[str]) -> None:
    command = (sys.executable, "-c", "import os; print('niceness', os.nice(0))")
    lanes.run_all([Part(name="nice", budget_minutes=1, command=command, checks=1, niceness=19)])
    assert "niceness 19" in capfd.readouterr().out


def test_the_dots_of_pytest_are_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    written = "..F...s   [ 71%]\n.E        [100%]\nE   assert 1 == 2\n8 passed [as said]"
    command = (sys.executable, "-c", f"print({written!r})")
    lanes.run_all([Part(name="dots", budget_minutes=1, command=command, checks=1)])
    _, _, _, *printed, _ = capfd.readouterr().out.splitlines()
    assert printed == ["E   assert 1 == 2", "8 passed [as said]"]


def test_a_part_that_this_machine_cannot_run_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lanes, "obstacle", lambda _part: "no root")
    (result,) = lanes.run_all([part("first", tmp_path)])
    assert (result.skipped, result.passed, result.failed) == (1, 0, 0)
    assert "no root" in capfd.readouterr().out
