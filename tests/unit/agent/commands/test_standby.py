"""When a standby fits a rank, and what makes its environment the rank's."""

from __future__ import annotations

import pytest

from drumline_agent.commands.standby import RankStart, changes

COMMAND = ["python3", "-u", "train.py", "--lr", "1"]
VARIABLES = {"RANK": "3", "MASTER_PORT": "1", "OMP_NUM_THREADS": "1", "LD_PRELOAD": "a.so"}


def start(*command: str, **variables: str) -> RankStart:
    return RankStart(command=command or COMMAND, environment={**VARIABLES, **variables})


@pytest.mark.parametrize(
    "other",
    [
        start(MASTER_PORT="2", MASTER_ADDR="10.0.0.1", TORCHELASTIC_RESTART_COUNT="1"),
        start(DRUMLINE_SNAPSHOTS="{}", JAX_COORDINATOR_ADDRESS="a:1", PET_MASTER_PORT="2"),
        start("python3", "-u", "train.py", "--lr", "2"),
    ],
    ids=["rendezvous", "snapshots", "arguments"],
)
def test_a_rank_of_the_next_attempt_takes_the_standby(other: RankStart) -> None:
    assert other.seen_by_imports == start().seen_by_imports


@pytest.mark.parametrize(
    "other",
    [
        start(OMP_NUM_THREADS="4"),
        start(RANK="2"),
        start(WORLD_SIZE="2"),
        start("python3", "-u", "eval.py"),
        start("python3", "train.py"),
        start("python3", "-u", "-m", "train"),
    ],
    ids=["threads", "rank", "world size", "script", "options", "module"],
)
def test_a_rank_that_would_import_otherwise_starts_without_it(other: RankStart) -> None:
    assert other.seen_by_imports != start().seen_by_imports


def test_only_what_differs_is_set() -> None:
    before, after = {"A": "1", "B": "1", "C": "1"}, {"A": "1", "B": "2", "D": "3"}
    assert changes(before, after) == {"B": "2", "C": None, "D": "3"}
