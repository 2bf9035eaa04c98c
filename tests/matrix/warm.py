"""The warm process of the matrix: its ranks are struck, and what it forks is written down."""

from __future__ import annotations

import os
from pathlib import Path

from drumline_contract import Env
from tests.faults.agent.warm import WarmStarter
from tests.matrix.diary import PIDS
from tests.matrix.strikes import FOLDER

STRIKING = "tests.matrix.striking"
"""The rank module of all cells."""


def striking_starter() -> WarmStarter:
    """Starts the agents of all cells."""
    return WarmStarter(module=STRIKING, born=introduce)


def introduce(kind: str) -> None:
    """Write down this process for those that are to hit it."""
    name = f"{kind}-{os.environ[Env.INDEX]}"
    (Path(os.environ[FOLDER]) / PIDS / name).write_text(str(os.getpid()))
