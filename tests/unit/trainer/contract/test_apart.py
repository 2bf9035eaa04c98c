"""A program that fetches files for minutes, and the rank that waits for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drumline_contract.buckets.apart import answer_apart, waits_reported

# It ends once somebody has reported, or in the end by itself.
PROGRAM = """
import os, sys, time
from pathlib import Path

folder = Path(sys.argv[1])
(folder / "pid").write_text(str(os.getpid()))
for _ in range(3000):
    if (folder / "reported").exists():
        print("fetched")
        sys.exit()
    time.sleep(0.02)
sys.exit(1)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "slow_fetch.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return "slow_fetch"


def test_a_wait_is_reported_until_the_answer_comes(program: str, tmp_path: Path) -> None:
    with waits_reported((tmp_path / "reported").touch):
        assert answer_apart(program, str(tmp_path)) == b"fetched\n"


def test_a_rank_that_is_told_to_leave_ends_the_program(program: str, tmp_path: Path) -> None:
    def leave() -> None:
        if (tmp_path / "pid").exists():
            raise InterruptedError("the membership has ended")

    with waits_reported(leave), pytest.raises(InterruptedError, match="membership"):
        answer_apart(program, str(tmp_path))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
